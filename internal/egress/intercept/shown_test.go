package intercept_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A secret that the host returns is masked.
func TestEcho(t *testing.T) {
	short := secret(t, "api.example.org")
	short.Name, short.Placeholder, short.Value = "short", "a-longer-placeholder", replaced
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"), short)
			p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text := fmt.Sprintf(`{"a": %q, "b": %q, "c": %q}`, r.Header.Get("Authorization"), r.Header.Get("X-Key"), r.Header.Get("X-Short"))
				if kind := r.URL.Query().Get("type"); kind != "" {
					w.Header().Set("Content-Type", kind)
				} else {
					w.Header()["Content-Type"] = nil
				}
				if r.URL.Query().Has("length") {
					w.Header().Set("Content-Length", fmt.Sprint(len(text)))
				}
				w.Header().Set("X-Echo", text)
				w.Header().Set("Location", "/?"+r.Header.Get("X-Key"))
				if r.URL.Query().Has("gzip") {
					w.Header().Set("Content-Encoding", "gzip")
					z := gzip.NewWriter(w)
					defer z.Close()
					_, _ = io.WriteString(z, text)
					return
				}
				for i := 0; i < len(text) && r.Method != http.MethodHead; i++ { // cut at every byte
					_, _ = io.WriteString(w, text[i:i+1])
					_ = http.NewResponseController(w).Flush()
				}
			}))
			c := p.client(proto)
			for _, query := range []string{
				"type=text/plain", "type=text/html%3bcharset%3dutf-8", "type=application/json", "type=application/problem%2Bjson", "type=text/x&length",
				"", "length", "HEAD&length&type=text/plain",
			} {
				method := http.MethodGet
				if strings.HasPrefix(query, "HEAD") {
					method = http.MethodHead
				}
				r, _ := http.NewRequestWithContext(t.Context(), method, "https://api.example.org/?"+query, nil)
				r.Header.Set("X-Key", placeholder)
				r.Header.Set("X-Short", "<a-longer-placeholder>")
				r.SetBasicAuth("me", placeholder)
				res, err := c.Transport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				want := fmt.Sprintf(`{"a": %q, "b": %q, "c": %q}`, r.Header.Get("Authorization"), placeholder, "<a-longer-placeholder>")
				if err != nil || string(b) != want && method == http.MethodGet || res.Header.Get("X-Echo") != want ||
					res.Header.Get("Location") != "/?"+placeholder {
					t.Errorf("%s: %q, %v, %q", query, b, err, res.Header)
				}
			}
			// What is weaker, so that it is not taken for more.
			for _, query := range []string{"type=image/png", "gzip&type=text/plain"} {
				_, body := get(t, c, "https://api.example.org/?"+query, http.Header{"X-Key": {placeholder}})
				if strings.HasPrefix(query, "gzip") {
					z, err := gzip.NewReader(strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					b, _ := io.ReadAll(z)
					body = string(b)
				}
				if !strings.Contains(body, value) {
					t.Errorf("%s is masked", query)
				}
			}
		})
	}
}

// Nothing that is recorded, shown or an error has the value in it.
func TestNothingPrints(t *testing.T) {
	s := secret(t, "api.example.org")
	p := newPlace(t, []string{"api.example.org"}, s)
	p.rawHost("api.example.org:443", func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		// Answers that net/http refuses, with the secret in them.
		k := r.Header.Get("X-Key")
		switch r.URL.Path {
		case "/status":
			fmt.Fprintf(c, "HTTP/1.1 %s\r\n\r\n", k)
		case "/header":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", k)
		case "/length":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n", k)
		case "/encoding":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n", k)
		case "/chunk":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n", k)
		case "/upgrade":
			fmt.Fprintf(c, "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", k, k)
		case "/reason":
			fmt.Fprintf(c, "HTTP/1.1 200 %s\r\nContent-Length: 0\r\n\r\n", k)
		case "/garbage":
			fmt.Fprint(c, k+k+k)
		}
	})
	var all strings.Builder
	for _, path := range []string{"/status", "/header", "/length", "/encoding", "/chunk", "/upgrade", "/reason", "/garbage"} {
		for _, head := range []string{"X-Key: " + placeholder, "Upgrade: " + placeholder + "\r\nConnection: upgrade\r\nX-Key: " + placeholder} {
			c := p.secure("api.example.org:443", "http/1.1")
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: api.example.org\r\n%s\r\n\r\n", path, head)
			go func() { _ = c.CloseWrite() }()
			b, err := io.ReadAll(c)
			fmt.Fprintf(&all, "%s %v\n", b, err)
			c.Close()
			r := p.next()
			j, err := json.Marshal(r)
			fmt.Fprintf(&all, "%+v %#v %s %v\n", r, r, j, err)
		}
	}
	p.stop() // nothing changes while it is printed
	i := p.interceptor(s)
	type holds struct {
		i *interceptor
		s secretType
		p any
	}
	for _, v := range []any{i, *i, s, &s, []any{s, i}, holds{i, s, i}, &holds{i, s, s}, p.server, p.authority} {
		j, err := json.Marshal(v)
		fmt.Fprintf(&all, "%v %+v %#v %s %q %x %s %v\n", v, v, v, v, v, v, j, err)
	}
	key, _ := p.authority.Marshal()
	for _, planted := range []string{value, fmt.Sprintf("%x", value), strings.Split(string(key), "\n")[1]} {
		if at := strings.Index(all.String(), planted); at >= 0 {
			t.Errorf("a secret is printed: %.400s", all.String()[max(0, at-200):])
		}
	}
	if !strings.Contains(all.String(), placeholder) {
		t.Error("the host's answers did not arrive")
	}
}
