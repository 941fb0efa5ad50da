package egress_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/carrel-dev/carrel/internal/egress"
)

// Names that may be reached have an address, over both transports and after a restart the same one; the others do
// not exist, and the client learns it from the first reply.
func TestDNS(t *testing.T) {
	allow := []string{"example.com", "git.example.com:22", "*.example.net:8080", "!bad.example.net", "!shut.example.net:1-9000"}
	first, second := start(t, rules(t, allow...), nil), start(t, rules(t, allow...), nil)
	for _, name := range []string{"example.com", "git.example.com", "a.example.net", "b.c.example.net", "EXAMPLE.com"} {
		a := first.lookup(name)
		if !netip.MustParsePrefix("198.18.0.0/15").Contains(a) || netip.MustParsePrefix("198.18.0.0/24").Contains(a) {
			t.Errorf("%s has %s", name, a)
		}
		if b := second.lookup(name); a != b {
			t.Errorf("%s has %s, and %s in another process", name, a, b)
		}
		all, err := first.resolver("tcp").LookupNetIP(t.Context(), "ip", name+".")
		if err != nil || len(all) != 1 || all[0].Unmap() != a {
			t.Errorf("%s over TCP: %v, %v", name, all, err)
		}
	}
	for _, name := range []string{
		"evil.example", "example.net", "bad.example.net", "shut.example.net", "org", "10.0.0.1", "a-.example.net", "_x.example.com",
	} {
		began := time.Now()
		_, err := first.resolver("udp").LookupNetIP(t.Context(), "ip", name+".")
		if e := (*net.DNSError)(nil); name != "10.0.0.1" && (!errors.As(err, &e) || !e.IsNotFound || time.Since(began) > time.Second) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got := first.refused(egress.WayDNS, "evil.example is not allowed: no rule allows any port of it")
	if got.Target.Host.Name() != "evil.example" || got.Target.Port != 0 || got.Count != 1 {
		t.Errorf("recorded %+v", got)
	}
	if resolved, _ := first.seen(); resolved != 0 {
		t.Error("the host's resolver was asked")
	}
}

// A program that asks for many names, as one that smuggles bytes out in them, gets so many addresses, is recorded
// so often, and nothing of it leaves.
func TestManyNames(t *testing.T) {
	w := start(t, rules(t, "*.example.net", "example.com"), func(c *egress.Config) {
		c.Limits.Names, c.Limits.DNSBurst = 10, 1_000_000
	})
	r := w.resolver("tcp")
	answered := 0
	for i := range 50 {
		if _, err := r.LookupNetIP(t.Context(), "ip4", fmt.Sprintf("c2VjcmV0-%d.example.net.", i)); err == nil {
			answered++
		}
	}
	if answered != 9 {
		t.Errorf("%d names have an address", answered)
	}
	_ = w.lookup("example.com") // is in a rule, so it has its place
	if got := w.refused(egress.WayDNS, "10 names have been asked for already"); got.Count != 1 {
		t.Errorf("recorded %+v", got)
	}
	for i := range 2 * egress.MostRefusals {
		_, _ = r.LookupNetIP(t.Context(), "ip4", fmt.Sprintf("c2VjcmV0-%d.evil.example.", i))
	}
	w.refused(egress.WayDNS, "too many different refusals")
	if n := len(w.records); n > 0 {
		t.Errorf("there are %d records more", n)
	}
	if resolved, _ := w.seen(); resolved != 0 {
		t.Error("the host's resolver was asked")
	}
}

// Queries beyond the rate are dropped.
func TestDNSRate(t *testing.T) {
	w := start(t, rules(t, "example.com"), func(c *egress.Config) {
		c.Limits.DNSBurst, c.Limits.DNSEvery = 5, time.Hour
	})
	c, err := net.Dial("udp", w.dns.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := dnsmessage.Message{Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	query, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	_ = c.SetDeadline(time.Now().Add(patience))
	for range 5 {
		if _, err := c.Write(query); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(query); err != nil {
		t.Fatal(err)
	}
	w.refused(egress.WayDNS, "there are too many queries")
	_ = c.SetReadDeadline(time.Now())
	if n, err := c.Read(buf); err == nil {
		t.Errorf("answered with %d bytes", n)
	}
}
