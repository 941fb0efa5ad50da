package intercept_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
)

// A request on a connection that is kept, through the tunnel as it is and intercepted. Host and program are here too.
func BenchmarkRequest(b *testing.B) {
	for _, proto := range protos {
		for _, how := range []string{"tunnel", "intercepted"} {
			var secrets []intercept.Secret
			if how == "intercepted" {
				secrets = append(secrets, secret(b, "api.example.org"))
			}
			for _, size := range []int{100, 1 << 20} {
				b.Run(fmt.Sprintf("%s/%s/%d", proto, how, size), func(b *testing.B) {
					p := newPlace(b, []string{"api.example.org"}, secrets...)
					body := make([]byte, size)
					p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Type", "application/json")
						_, _ = w.Write(body)
					}))
					c := p.client(proto)
					r, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://api.example.org/", nil)
					r.Header.Set("Authorization", "Bearer "+placeholder)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for b.Loop() {
						res, err := c.Do(r)
						if err != nil {
							b.Fatal(err)
						}
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				})
			}
		}
	}
}

// A new connection with one request.
func BenchmarkConnection(b *testing.B) {
	for _, how := range []string{"tunnel", "intercepted"} {
		b.Run(how, func(b *testing.B) {
			var secrets []intercept.Secret
			if how == "intercepted" {
				secrets = append(secrets, secret(b, "api.example.org"))
			}
			p := newPlace(b, []string{"api.example.org"}, secrets...)
			p.host("api.example.org:443", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			go func() {
				for range p.recorded { // until the program ends
				}
			}()
			for b.Loop() {
				c := p.client("http/1.1")
				get(b, c, "https://api.example.org/", nil)
				c.CloseIdleConnections()
			}
			b.Cleanup(func() { p.stop(); close(p.recorded) })
		})
	}
}
