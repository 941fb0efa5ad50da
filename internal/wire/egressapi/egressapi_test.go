package egressapi_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// A rule with a protocol or requests is sent in a version that a carrel-egress refuses which would take it for one about a
// whole host.
func TestVersion(t *testing.T) {
	for text, want := range map[string]int{
		"example.org": 1, "*:25": 1, "GET example.org": 2, "example.org/v1/*": 2, "tls://example.org": 2, "http://example.org": 2,
	} {
		r, err := netrule.ParseRule(netrule.Allow, text)
		if err != nil {
			t.Fatal(err)
		}
		s := egressapi.Setup{Version: 7, Rules: []netrule.Rule{{}, r}}
		if s.SetVersion(); s.Version != want || s.Check() != nil {
			t.Errorf("%s is sent as version %d: %v", text, s.Version, s.Check())
		}
	}
	for inTLS, want := range map[bool]int{false: 1, true: 3} {
		s := egressapi.Setup{Proxy: &egressapi.Proxy{Address: "p.example:1", TLS: inTLS}}
		if s.SetVersion(); s.Version != want || s.Check() != nil {
			t.Errorf("a proxy, inside TLS %t: version %d", inTLS, s.Version)
		}
	}
	for _, version := range []int{0, egressapi.Version + 1} {
		if err := (&egressapi.Setup{Version: version}).Check(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}
