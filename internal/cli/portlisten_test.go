package cli_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
)

// All addresses of IPv4 are not all of IPv6 too.
func TestPortListensOnItsFamily(t *testing.T) {
	for address, others := range map[string]string{"0.0.0.0": "::1", "127.0.0.1": "::1", "::": ""} {
		at := netip.MustParseAddr(address)
		l, err := new(net.ListenConfig).Listen(t.Context(), cli.Family(at), net.JoinHostPort(address, "0"))
		if err != nil {
			if at.Is6() {
				t.Logf("this host has no IPv6: %v", err)
				continue
			}
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if others == "" {
			continue
		}
		if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(others, port)); err == nil {
			c.Close()
			t.Errorf("%s is reached by %s", address, others)
		}
	}
}
