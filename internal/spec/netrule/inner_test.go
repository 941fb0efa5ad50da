package netrule_test

import (
	"net/netip"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// A rule is inner exactly if it lets an address be reached that no rule for a name does.
func TestInner(t *testing.T) {
	o := netrule.Options{
		Public: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("10.9.0.0/16")},
		Own:    []netip.Addr{netip.MustParseAddr("8.8.4.4"), netip.MustParseAddr("2a00::7")},
	}
	for text, inner := range map[string]bool{
		"127.0.0.1:80": true, "127.0.0.0/8:80": true, "10.0.0.0/8:1": true, "10.1.2.3:1": true, "169.254.169.254:80": true,
		"192.168.0.0/24:*": true,
		"172.16.0.0/12:1":  true, "100.64.0.1:1": true, "0.0.0.0:1": true, "[::1]:80": true, "[fd00::1]:80": true, "[fe80::1]:80": true,
		"[fd00:ec2::254]:80": true, "198.51.100.7:1": true, "8.8.4.4:22": true, "[2a00::7]:22": true,
		"0x7f.1:80": true, "[::ffff:127.0.0.1]:80": true,
		"8.8.8.8:53": false, "[2a00::]:443": false, "203.0.113.7:443": false, "10.9.3.0/24:443": false, "example.org": false, "*.local": false,
		"*": false, "0.0.0.0/0:443": false, "8.0.0.0/8:1": false, "[::]/0:443": false, "localhost:1": false, "8.8.4.0/24:22": false,
	} {
		r, err := netrule.ParseRule(netrule.Allow, text)
		if err != nil {
			t.Logf("%s is no rule: %v", text, err)
			continue
		}
		if got := r.Inner(o) != ""; got != inner {
			t.Errorf("%s: inner is %v (%s)", text, got, r.Inner(o))
		}
		ask, err := netrule.ParseRule(netrule.Ask, text)
		if err != nil || ask.Inner(o) != r.Inner(o) {
			t.Errorf("ask %s: inner is %q, %v", text, ask.Inner(o), err)
		}
		deny, err := netrule.ParseRule(netrule.Deny, text)
		if err != nil || deny.Inner(o) != "" {
			t.Errorf("deny %s is inner: %v", text, err)
		}
		// What the judge says of the same: with this one rule, its first address is reached that would not be without.
		if !r.Net.IsValid() {
			continue
		}
		a := r.Net.Addr()
		host, err := netrule.ParseHost(a.String())
		if err != nil {
			continue
		}
		to := netrule.Target{Host: host, Port: r.Ports.First}
		reached := func(rules ...netrule.Rule) bool {
			judge, err := netrule.New(rules, o)
			if err != nil {
				t.Fatal(err)
			}
			return judge.Address(to, a) == nil
		}
		if r.Ports.First == 0 {
			continue
		}
		if reached(ask) != reached(r) {
			t.Errorf("%s: what is asked about is reached: %v", text, reached(ask))
		}
		if opens := reached(r) && !reached(); opens != inner {
			t.Errorf("%s: the judge lets it reach more: %v, inner is %v", text, opens, inner)
		}
	}
}
