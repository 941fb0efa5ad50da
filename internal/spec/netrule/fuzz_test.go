package netrule_test

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/idna"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// lookup is what others look a name up by; hyphens and underscores are as ParseHost has them.
var lookup = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false),
	idna.VerifyDNSLength(true))

var seeds = []string{
	"example.org", "EXAMPLE.org.", "bücher.example", "XN--BCHER-KVA.example", "例え。テスト", "127.0.0.1", "0x7f.1", "0177.0.0.1",
	"2130706433", "127.1",
	"::1", "[::1]", "::ffff:127.0.0.1", "[fe80::1%25eth0]", "a\x00b", "user@example.org", "１２７.0.0.1", "example.org:443",
	"*.example.org:8000-8100",
	"10.1.0.0/16:5432", "[2001:db8::/32]:443", "*", "*:25", "xn--xn---3ra", "a\u00adb", "x\u200dy", "٣.example", "1.2.3.0x", "faß.de",
	"ς.gr", "@llm",
}

func FuzzParseHost(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := netrule.ParseHost(s)
		if err != nil {
			if h != (netrule.Host{}) {
				t.Fatalf("%q: %v and %q", s, err, h)
			}
			return
		}
		if again, err := netrule.ParseHost(h.String()); err != nil || again != h {
			t.Fatalf("%q: %q is read as %q, %v", s, h, again, err)
		}
		a, literal := h.Addr()
		if literal {
			if a.Is4In6() || a.Zone() != "" || h.Name() != "" {
				t.Fatalf("%q: the address %q", s, a)
			}
		}
		// What C takes for an IPv4 address is that address, and no name is one, neither as written nor as it
		// is passed on.
		for _, text := range []string{s, strings.TrimSuffix(s, "."), h.Name(), h.Name() + "."} {
			if c, ok := inetAton(text); ok && c != a {
				t.Fatalf("%q: %q, where inet_aton reads %s in %q", s, h, c, text)
			}
			if n, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && n.Unmap() != a {
				t.Fatalf("%q: %q, where %q is %s", s, h, text, n)
			}
		}
		if literal {
			return
		}
		// The name is one that every layer passes on unchanged.
		if len(h.Name()) > 253 || strings.Trim(h.Name(), "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Fatalf("%q: the name %q", s, h)
		}
		if name, err := lookup.ToASCII(h.Name()); err != nil || name != h.Name() {
			t.Fatalf("%q: %q is looked up as %q, %v", s, h, name, err)
		}
		if name, err := lookup.ToASCII(strings.TrimSuffix(s, ".")); err == nil && strings.TrimSuffix(name, ".") != h.Name() {
			t.Fatalf("%q: %q, where UTS 46 says %q", s, h, name)
		}
		if u, err := url.Parse("https://" + h.Name() + ":443/"); err != nil || u.Hostname() != h.Name() || u.User != nil {
			t.Fatalf("%q: %q is in a URL %v, %v", s, h, u, err)
		}
		if tt, err := netrule.ParseTarget(h.Name() + ":443"); err != nil || tt.Host != h {
			t.Fatalf("%q: the target %v, %v", s, tt, err)
		}
		if u, err := url.Parse("https://" + s + "/"); err == nil {
			if again, err := netrule.ParseHost(u.Hostname()); err != nil || again != h {
				t.Fatalf("%q: a URL has the host %q, read as %q, %v", s, u.Hostname(), again, err)
			}
		}
	})
}

func FuzzRule(f *testing.F) {
	for _, s := range seeds {
		f.Add(s, "127.0.0.1:443", uint16(443))
		f.Add(s, s, uint16(22))
	}
	f.Fuzz(func(t *testing.T, text, asked string, port uint16) {
		allow, err := netrule.ParseRule(netrule.Allow, text)
		deny, errDeny := netrule.ParseRule(netrule.Deny, text)
		if (err == nil) != (errDeny == nil) {
			t.Fatalf("%q: %v, and to deny %v", text, err, errDeny)
		}
		if err != nil {
			if allow != (netrule.Rule{}) {
				t.Fatalf("%q: %v and %+v", text, err, allow)
			}
			return
		}
		if allow.Narrow() { // see FuzzRequestRule
			return
		}
		ask, approved := allow, allow
		ask.Action, approved.Action = netrule.Ask, netrule.Approved
		for _, r := range []netrule.Rule{allow, ask, approved, deny} {
			if again, err := netrule.ParseRule(r.Action, r.Text); err != nil || again != r {
				t.Fatalf("%q: %q is read as %+v, %v", text, r.Text, again, err)
			}
		}
		h, err := netrule.ParseHost(asked)
		if tt, errTarget := netrule.ParseTarget(asked); errTarget == nil {
			h, port, err = tt.Host, tt.Port, nil
		}
		if err != nil {
			return
		}
		tt := netrule.Target{Host: h, Port: port}
		yes, no, both := set(t, allow), set(t, deny), set(t, allow, deny)
		if v, n := yes.Judge(tt), no.Judge(tt); v.Action == netrule.Allow &&
			(v.Rule != allow.Text || port == 0 || n != netrule.Verdict{Action: netrule.Deny, Rule: deny.Text}) {
			t.Fatalf("%q: %s: %+v, and to deny %+v", text, tt, v, n)
		}
		if v := both.Judge(tt); v.Action == netrule.Allow {
			t.Fatalf("%q: %s: denied and %+v", text, tt, v)
		}
		// Ask and Approved name what Allow does, and the strictest wins.
		if want := yes.Judge(tt); want.Action == netrule.Allow {
			asks := netrule.Verdict{Action: netrule.Ask, Rule: ask.Text}
			if v, w, u := set(t, ask).Judge(tt), set(t, ask, allow).Judge(tt), set(t, allow, ask).Judge(tt); v != asks || w != asks || u != asks {
				t.Fatalf("%q: %s: asked about %+v, %+v, %+v", text, tt, v, w, u)
			}
			if v, w := set(t, approved).Judge(tt), set(t, ask, approved, allow).Judge(tt); v != want || w != want {
				t.Fatalf("%q: %s: approved %+v, %+v", text, tt, v, w)
			}
		} else if v, w := set(t, ask).Judge(tt), set(t, approved).Judge(tt); v != want || w != want {
			t.Fatalf("%q: %s: not named, and %+v, %+v", text, tt, v, w)
		}
		if v := set(t, approved, ask, deny).Judge(tt); v.Action == netrule.Ask || v.Action == netrule.Allow {
			t.Fatalf("%q: %s: denied and %+v", text, tt, v)
		}
		// One rule that is not about an address never leads to the host or its networks.
		for _, a := range inside {
			tt := netrule.Target{Host: h, Port: max(port, 1)}
			if yes.Address(tt, a) == nil && (!allow.Net.IsValid() || !allow.Net.Contains(a)) {
				t.Fatalf("%q: %s may be reached at %s", text, tt, a)
			}
		}
		if a, ok := h.Addr(); ok && yes.Judge(tt).Action == netrule.Allow && yes.Address(tt, a) != nil {
			t.Fatalf("%q: %s is allowed and %v", text, tt, yes.Address(tt, a))
		}
	})
}

var inside = []netip.Addr{
	netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("10.0.0.1"),
	netip.MustParseAddr("169.254.169.254"),
	netip.MustParseAddr("::1"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fe80::1"),
}

func set(t *testing.T, all ...netrule.Rule) *netrule.Rules {
	r, err := netrule.New(all, netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inetAton reads as the C function of that name does: one to four numbers, decimal, octal with 0 or
// hexadecimal with 0x, of which the last fills what is left. What follows white space is ignored.
func inetAton(s string) (netip.Addr, bool) {
	if i := strings.IndexAny(s, " \t\n\v\f\r\x00"); i >= 0 {
		s = s[:i]
	}
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, p := range parts {
		digits, base := p, 10
		switch {
		case strings.HasPrefix(strings.ToLower(p), "0x"):
			digits, base = p[2:], 16
			if digits == "" {
				digits = "0" // as WHATWG has it
			}
		case len(p) > 1 && p[0] == '0':
			base = 8
		}
		n, err := strconv.ParseUint(digits, base, 64)
		if err != nil || strings.ContainsAny(digits, "+-_") {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			if n > 255 {
				return netip.Addr{}, false
			}
			v |= n << (24 - 8*i)
			continue
		}
		if n >= 1<<(8*(5-len(parts))) {
			return netip.Addr{}, false
		}
		v |= n
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

// The reference itself reads what it is there for.
func TestInetAton(t *testing.T) {
	for _, s := range []string{
		"127.0.0.1", "0x7f.1", "0177.0.0.1", "2130706433", "127.1", "017700000001", "0X7F000001", "127.0.1",
		"127.0.0.1 x",
	} {
		if a, ok := inetAton(s); !ok || a != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("%q: %s, %t", s, a, ok)
		}
	}
	for _, s := range []string{"", "a", "127.0.0.1.", "127.0.0.256", "127.0.0.0.1", "09", "0x100000000", "1..2", "example.org"} {
		if a, ok := inetAton(s); ok {
			t.Errorf("%q: %s", s, a)
		}
	}
}
