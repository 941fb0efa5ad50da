package netrule

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/net/idna"
)

// Limits of names, in bytes (RFC 1035, section 2.3.4; without the trailing dot).
const (
	maxName  = 253
	maxLabel = 63
	// maxText bounds what is given to the IDNA tables: four bytes for each character of the longest name.
	maxText = 4 * maxName
)

// Host is a name or an address in its one canonical form, so that == compares hosts. The zero Host is
// none.
type Host struct {
	name string
	addr netip.Addr
}

// Name returns the name in lower case and in A-labels, without a trailing dot; "" for an address.
func (h Host) Name() string { return h.name }

// Addr returns the address, and false for a name. The address has no zone and is not IPv4 mapped to IPv6.
func (h Host) Addr() (netip.Addr, bool) { return h.addr, h.addr.IsValid() }

// String returns what ParseHost takes: a name or an address without brackets; "" for the zero Host.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// profile is the nontransitional lookup of UTS 46 with two differences: it accepts underscores (RFC 8553)
// and labels with hyphens in third and fourth place, because names in use have both. plainName makes the
// other checks of ASCII.
var profile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false),
	idna.Transitional(false))

// ParseHost reads a name or an address as a program or a person wrote it.
//
// Names fold case, lose one trailing dot and become A-labels by UTS 46. They have letters, digits,
// hyphens and underscores only, no empty label, no hyphen at the edge of a label, 63 bytes a label and
// 253 together. IPv4 addresses are four decimal numbers without leading zeros. ParseHost refuses text
// that other parsers read as an IPv4 address, such as 0x7f.1 or 2130706433, instead of converting it; it
// uses the "ends in a number" test of the WHATWG URL Standard, section 3.5. IPv6 addresses may be in
// brackets and have no zone. IPv4 mapped to IPv6 (RFC 4291, section 2.5.5.2) becomes IPv4.
//
// Every error is of kind errdefs.ErrInvalidArgument.
func ParseHost(s string) (Host, error) {
	switch {
	case s == "":
		return Host{}, badHost(s, "it is empty; write a name or an address")
	case len(s) > maxText:
		return Host{}, badHost(s, "it is longer than a name can be; write at most %d bytes", maxName)
	case !utf8.ValidString(s):
		return Host{}, badHost(s, "it is not UTF-8; write a name or an address")
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || !strings.Contains(inner, ":") {
			return Host{}, badHost(s, "brackets are for IPv6 addresses; write for example [2001:db8::1]")
		}
		return parseIPv6(s, inner)
	}
	if strings.Contains(s, ":") {
		return parseIPv6(s, s)
	}
	for i := range len(s) {
		if s[i] < utf8.RuneSelf && !nameByte(s[i]) && s[i] != '.' {
			return Host{}, badHost(s, "%q cannot be part of a host; write only the name or the address", s[i])
		}
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return Host{addr: a}, nil
	}
	name, err := toASCII(s)
	if err != nil {
		return Host{}, badHost(s, "it is not an internationalised name (%v); write it in ASCII", err)
	}
	name = strings.TrimSuffix(name, ".")
	if why := plainName(name); why != "" {
		return Host{}, badHost(s, "%s", why)
	}
	return Host{name: name}, nil
}

func badHost(s, why string, args ...any) error {
	return fmt.Errorf("cannot read the host %s: %s: %w", quoted(s), fmt.Sprintf(why, args...), errdefs.ErrInvalidArgument)
}

func parseIPv6(s, inner string) (Host, error) {
	if strings.Contains(inner, "%") {
		return Host{}, badHost(s, "zones and escapes are not allowed; write the address without %%")
	}
	a, err := netip.ParseAddr(inner)
	if err != nil {
		return Host{}, badHost(s, "it has a colon and is not an IPv6 address; write a name or an address, without a port")
	}
	return Host{addr: a.Unmap()}, nil
}

// nameByte reports whether c is a letter, digit, hyphen or underscore.
func nameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// toASCII maps a name to A-labels. It may leave a trailing dot, and characters that the mapping made.
func toASCII(s string) (string, error) {
	plain := true
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] < utf8.RuneSelf
	}
	if lower := strings.ToLower(s); plain && !strings.Contains(lower, "xn--") {
		return lower, nil // UTS 46 changes nothing but case in such a name
	}
	name, err := profile.ToASCII(s)
	if err != nil {
		return "", err
	}
	// A second A-label for the same name would be a second spelling.
	shown, err := profile.ToUnicode(name)
	if err != nil {
		return "", err
	}
	if again, err := profile.ToASCII(shown); err != nil || again != name {
		return "", fmt.Errorf("it has two forms: %w", errdefs.ErrInvalidArgument)
	}
	return name, nil
}

// plainName says what is wrong with a name in lower case and ASCII; "" if nothing is.
func plainName(name string) string {
	if len(name) > maxName {
		return fmt.Sprintf("the name has %d bytes; a name has at most %d", len(name), maxName)
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "a label is empty; write exactly one dot between labels"
		case len(label) > maxLabel:
			return fmt.Sprintf("a label has %d bytes; a label has at most %d", len(label), maxLabel)
		case label[0] == '-', label[len(label)-1] == '-':
			return "a label begins or ends with a hyphen; names that do cannot be reached"
		}
		for i := range len(label) {
			if !nameByte(label[i]) {
				return fmt.Sprintf("it has a character that becomes %q; write only the name", label[i])
			}
		}
		last = label
	}
	if number(last) {
		return "it ends in a number and is not a plain IPv4 address; write four decimal numbers without leading zeros"
	}
	return ""
}

// number reports whether URL parsers and inet_aton read a host with this last label, in lower case, as an
// IPv4 address: it is digits only, or 0x and any number of hexadecimal digits.
func number(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
