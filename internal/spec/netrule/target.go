package netrule

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Target is a host and a TCP port that a program asked to reach.
type Target struct {
	Host Host
	Port uint16
}

// ParseTarget reads HOST:PORT. An IPv6 address is in brackets: [2001:db8::1]:443. The port is a decimal
// number from 1 to 65535 without sign or leading zero. Every error is of kind errdefs.ErrInvalidArgument.
func ParseTarget(s string) (Target, error) {
	host, port, ok := cutPort(s)
	if !ok {
		return Target{}, fmt.Errorf("cannot read the target %s: it is not a host and a port; write for example example.org:443 or "+
			"[2001:db8::1]:443: %w", quoted(s), errdefs.ErrInvalidArgument)
	}
	p, ok := parsePort(port)
	if !ok {
		return Target{}, fmt.Errorf("cannot read the target %s: the port is not a number from 1 to 65535; write for example "+
			"example.org:443: %w", quoted(s), errdefs.ErrInvalidArgument)
	}
	h, err := ParseHost(host)
	if err != nil {
		return Target{}, err
	}
	return Target{h, p}, nil
}

// String returns HOST:PORT as ParseTarget takes it.
func (t Target) String() string {
	port := strconv.Itoa(int(t.Port))
	if a, ok := t.Host.Addr(); ok {
		return netip.AddrPortFrom(a, t.Port).String()
	}
	return t.Host.name + ":" + port
}

// cutPort cuts the part behind the colon that follows the host. ok is false if there is none, or more
// than one colon outside of brackets.
func cutPort(s string) (host, port string, ok bool) {
	end := 0
	if strings.HasPrefix(s, "[") {
		if end = strings.IndexByte(s, ']') + 1; end == 0 {
			return s, "", false
		}
	}
	before, port, ok := strings.Cut(s[end:], ":")
	if !ok || strings.Contains(port, ":") {
		return s, "", false
	}
	return s[:end] + before, port, true
}

// parsePort reads a port from 1 to 65535 in its only form.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && s[0] != '0' && s[0] != '+'
}

// quoted is s for an error, of bounded length.
func quoted(s string) string {
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	return strconv.Quote(s)
}
