package netrule_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The strictest action wins, and what a person approved is the answer to Ask alone.
func TestAskOrder(t *testing.T) {
	for _, c := range []struct {
		rules   []string
		targets map[string]string
	}{
		{[]string{"ask example.org"}, map[string]string{
			"example.org:443": "ask example.org", "example.org:80": "ask example.org", "example.org:22": "deny", "x.example.org:443": "deny",
		}},
		{[]string{"allow example.org:*", "ask example.org"}, map[string]string{
			"example.org:443": "ask example.org", "example.org:22": "allow example.org:*",
		}},
		// Wherever each stands, and however exact it is.
		{[]string{"ask *:*", "allow a.example.org:443", "approved b.example.org:443", "deny *.org:25"}, map[string]string{
			"a.example.org:443": "ask *:*", "b.example.org:443": "allow b.example.org:443", "b.example.org:80": "ask *:*",
			"b.example.org:25": "deny *.org:25", "8.8.8.8:53": "ask *:*", "10.0.0.1:53": "deny",
		}},
		{[]string{"approved example.org:443", "deny *:443"}, map[string]string{"example.org:443": "deny *:443"}},
		{[]string{"allow *", "ask *.example.org", "ask a.example.org:443"}, map[string]string{
			"a.example.org:443": "ask a.example.org:443", "b.example.org:443": "ask *.example.org", "example.org:443": "allow *",
		}},
		// Addresses: a wide Ask is not lifted by a narrow Allow, and holds for IPv4 inside of IPv6.
		{[]string{"allow 8.8.8.8", "ask 8.8.0.0/16", "allow *", "approved 8.8.4.4:443"}, map[string]string{
			"8.8.8.8:443": "ask 8.8.0.0/16", "8.8.4.4:443": "allow 8.8.4.4:443", "[64:ff9b::8.8.8.8]:443": "ask 8.8.0.0/16",
			"[2002:808:808::]:443": "ask 8.8.0.0/16", "9.9.9.9:443": "allow *", "8.8.8.8:22": "deny",
		}},
		{[]string{"ask 10.1.0.0/16:5432", "ask 0.0.0.0/0:5432"}, map[string]string{
			"10.1.2.3:5432": "ask 10.1.0.0/16:5432", "10.2.2.3:5432": "deny", "127.0.0.1:5432": "deny", "[64:ff9b::10.1.2.3]:5432": "deny",
		}},
		{[]string{"approved [64:ff9b::808:808]:443", "ask 8.8.8.8"}, map[string]string{
			"[64:ff9b::8.8.8.8]:443": "allow [64:ff9b::808:808]:443", "8.8.8.8:443": "ask 8.8.8.8",
		}},
	} {
		r := rules(t, netrule.Options{}, c.rules...)
		for text, want := range c.targets {
			v := r.Judge(target(t, text))
			if got := strings.TrimSpace(string(v.Action) + " " + v.Rule); got != want {
				t.Errorf("%q: %s: %s, want %s", c.rules, text, got, want)
			}
		}
	}
}

// An address that is asked about is not reached through a name that is not.
func TestAskedAddressOfAName(t *testing.T) {
	inside, public := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("8.8.8.8")
	for _, c := range []struct {
		rules        string
		inner, outer bool
	}{
		{"allow example.org; ask 10.0.0.0/8:443; ask 8.8.8.0/24", false, false},
		{"allow *; ask 10.0.0.0/8:443; ask 8.8.8.0/24", false, false},
		{"ask example.org; ask 10.0.0.0/8:443; ask 8.8.8.0/24", true, true},
		{"approved example.org:443; ask 10.0.0.0/8:443", true, true},
		{"ask example.org", false, true},
		{"allow example.org; approved 10.1.2.3:443; ask 10.0.0.0/8:443", true, true},
		{"ask example.org; ask 10.0.0.0/8:443; deny 10.1.0.0/16; deny 8.8.8.8", false, false},
		{"allow example.org; ask 10.0.0.0/8:22; ask 8.8.8.8:22", false, true},
	} {
		r := rules(t, netrule.Options{}, strings.Split(c.rules, "; ")...)
		for a, want := range map[netip.Addr]bool{inside: c.inner, public: c.outer} {
			err := r.Address(target(t, "example.org:443"), a)
			if (err == nil) != want || err != nil && !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s: %s: %v", c.rules, a, err)
			}
		}
	}
	err := rules(t, netrule.Options{}, "allow example.org", "ask 8.8.8.8").Address(target(t, "example.org:443"), public)
	if err == nil || !strings.Contains(err.Error(), "have the name asked about instead") {
		t.Error(err)
	}
}

func TestAskedHosts(t *testing.T) {
	r := rules(t, netrule.Options{}, "ask b.example", "approved a.example:443", "deny c.example")
	if got := strings.Join(r.Hosts(), " "); got != "a.example b.example" {
		t.Error(got)
	}
}
