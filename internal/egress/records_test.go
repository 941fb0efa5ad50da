package egress_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress"
)

// The records SRV and TXT of names that may be reached come from the host's resolver, and no others do. What is refused names
// the host that a rule would be for.
func TestRecords(t *testing.T) {
	asked := make(chan string, 100)
	w := start(t, rules(t, "*.db.example:27017", "example.org", "!bad.db.example:*"), func(c *egress.Config) {
		c.Services = func(_ context.Context, name string) ([]*net.SRV, error) {
			asked <- name
			return []*net.SRV{{Target: "a.db.example", Port: 27017, Weight: 1}, {Target: "b.db.example", Port: 27018, Priority: 1}}, nil
		}
		c.Text = func(_ context.Context, name string) ([]string, error) {
			asked <- name
			switch name {
			case "long.db.example":
				return []string{strings.Repeat("x", 400), strings.Repeat("y", 400)}, nil
			case "none.db.example":
				return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
			case "broken.db.example":
				return nil, errors.New("broken")
			}
			return []string{"authSource=admin", ""}, nil
		}
	})
	for _, network := range []string{"udp", "tcp"} {
		r := w.resolver(network)
		_, all, err := r.LookupSRV(t.Context(), "mongodb", "tcp", "c0.db.example.")
		if err != nil || len(all) != 2 || all[0].Target != "a.db.example." || all[0].Port != 27017 || all[1].Priority != 1 {
			t.Errorf("%s: %+v, %v", network, all, err)
		}
		if name := <-asked; name != "_mongodb._tcp.c0.db.example" {
			t.Errorf("%s: asked for %s", network, name)
		}
		text, err := r.LookupTXT(t.Context(), "C0.db.example.")
		if err != nil || !slices.Equal(text, []string{"authSource=admin", ""}) || <-asked != "c0.db.example" {
			t.Errorf("%s: %q, %v", network, text, err)
		}
		text, err = r.LookupTXT(t.Context(), "_dmarc.example.org.")
		if err != nil || len(text) != 2 || <-asked != "_dmarc.example.org" {
			t.Errorf("%s: %q, %v", network, text, err)
		}
	}
	// What is longer than a reply over UDP comes over TCP.
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		to := w.dns.LocalAddr()
		if network == "tcp" {
			to = w.dnsTCP.Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, to.String())
	}}
	if text, err := r.LookupTXT(t.Context(), "long.db.example."); err != nil || len(text) != 2 || len(text[0]) != 400 {
		t.Errorf("%q, %v", text, err)
	}
	for len(asked) > 0 {
		<-asked
	}
	for name, notFound := range map[string]bool{"none.db.example.": true, "broken.db.example.": false} {
		_, err := w.resolver("tcp").LookupTXT(t.Context(), name)
		if e := (*net.DNSError)(nil); !errors.As(err, &e) || e.IsNotFound != notFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for len(asked) > 0 { // a client asks again where that may help
		<-asked
	}
	for _, name := range []string{
		"evil.example.", "bad.db.example.", "_a._b._c.x.db.example.evil.example.", "_dmarc.evil.example.", "7.2.0.192.in-addr.arpa.",
		"gpt.carrel.internal.", "x.invalid.", "_tcp.",
	} {
		if text, err := w.resolver("udp").LookupTXT(t.Context(), name); err == nil {
			t.Errorf("%s: %q", name, text)
		}
	}
	if _, all, err := w.resolver("udp").LookupSRV(t.Context(), "imaps", "tcp", "mail.evil.example."); err == nil {
		t.Errorf("%+v", all)
	}
	if len(asked) > 0 {
		t.Errorf("the host's resolver was asked for %s", <-asked)
	}
	if got := w.refused(egress.WayDNS, "mail.evil.example is not allowed"); got.Target.Host.Name() != "mail.evil.example" {
		t.Errorf("recorded %+v", got)
	}
	if _, err := w.resolver("udp").LookupAddr(t.Context(), netip.MustParseAddr("192.0.2.7").String()); err == nil {
		t.Error("an address has a name")
	}
	if got := w.refused(egress.WayDNS, "the names of addresses"); got.Target.Host.String() != "" {
		t.Errorf("recorded %+v", got)
	}
}
