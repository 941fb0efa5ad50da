package egress_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Each name has its own address in the range, the same each time, until there is no place.
func TestNames(t *testing.T) {
	host := func(s string) netrule.Host {
		h, err := netrule.ParseHost(s)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	const most = 8192
	n := egress.NewNames(most)
	seen := map[netip.Addr]bool{}
	whole, kept := netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.18.0.0/24")
	for i := range most {
		a, ok := n.Assign(host(fmt.Sprintf("h%d.example.com", i)))
		if last := a.As4()[3]; !ok || seen[a] || !whole.Contains(a) || kept.Contains(a) || last == 0 || last == 255 {
			t.Fatalf("name %d has %s, %v", i, a, ok)
		}
		seen[a] = true
	}
	if a, ok := n.Assign(host("one.more.example.com")); ok {
		t.Errorf("one more has %s", a)
	}
	again, ok := n.Assign(host("h7.example.com"))
	if first, _ := egress.NewNames(1).Assign(host("h7.example.com")); !ok || !seen[again] || first.String() != "198.18.184.249" {
		t.Errorf("h7 has %s, and %s alone", again, first)
	}
}
