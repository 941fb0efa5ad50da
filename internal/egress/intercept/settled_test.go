package intercept_test

import (
	"net/http"
	"testing"
	"time"
)

// An intercepted connection that waits has what its start needed given back, and again once it has ended; one that is copied
// has not.
func TestSettled(t *testing.T) {
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
			p.host("api.example.org:443", &seen{})
			c := p.client(proto)
			ask := func() {
				t.Helper()
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.org/", nil)
				if status, _, err := do(c, r); err != nil || status != 200 {
					t.Fatalf("%d, %v", status, err)
				}
			}
			comes := func(what string) {
				t.Helper()
				select {
				case <-p.settled:
				case <-time.After(within):
					t.Fatalf("nothing is given back %s", what)
				}
			}
			ask()
			comes("while it is open")
			ask() // it has lost nothing
			for len(p.settled) > 0 {
				<-p.settled
			}
			c.CloseIdleConnections()
			comes("after its end")
		})
	}
	t.Run("copied", func(t *testing.T) {
		p := newPlace(t, []string{"api.example.org"}, secret(t, "other.example.org"))
		p.host("api.example.org:443", &seen{})
		c := p.client("http/1.1")
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.org/", nil)
		if status, _, err := do(c, r); err != nil || status != 200 {
			t.Fatalf("%d, %v", status, err)
		}
		c.CloseIdleConnections()
		p.stop()
		if len(p.settled) > 0 {
			t.Error("a collection was run for a connection that is copied")
		}
	})
}
