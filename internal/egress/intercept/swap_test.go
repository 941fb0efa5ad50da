package intercept_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress"
)

var silent = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)

var protos = []string{"h2", "http/1.1"}

func TestSwap(t *testing.T) {
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			s, host := secret(t, "api.example.org"), &seen{}
			p := newPlace(t, []string{"api.example.org"}, s)
			p.host("api.example.org:443", host)
			c := p.client(proto)
			basic := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
			body := strings.NewReader(placeholder)
			uri := "/" + placeholder + "/a%2Fb?q=" + placeholder + "&x;y"
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org"+uri, body)
			r.Header = http.Header{
				"Authorization":    {"bEaRer " + placeholder},
				"X-Api-Key":        {placeholder, "two " + placeholder + placeholder + "!"},
				"X-" + placeholder: {"name"},
				"X-Forwarded-For":  {"192.0.2.1"},
				"Accept-Encoding":  {"zstd"},
				"User-Agent":       {"program/1"},
				"X-Empty":          {""},
			}
			r.Trailer = http.Header{"X-Trailer": {placeholder}}
			r.ContentLength = -1
			status, answer, err := do(c, r)
			if err != nil || status != 200 {
				t.Fatalf("%d, %v", status, err)
			}
			if want := map[string]string{"h2": "HTTP/2.0", "http/1.1": "HTTP/1.1"}[proto]; !strings.HasPrefix(answer, want) {
				t.Errorf("the host was spoken to with %s", answer)
			}
			got, gotBody := host.only(t)
			for name, want := range map[string][]string{
				"Authorization": {"bEaRer " + value}, "X-Api-Key": {value, "two " + value + value + "!"}, "X-Forwarded-For": {"192.0.2.1"},
				"Accept-Encoding": {"zstd"}, "User-Agent": {"program/1"}, "X-Empty": {""},
			} {
				if !slices.Equal(got.Header[name], want) {
					t.Errorf("%s is %q", name, got.Header[name])
				}
			}
			if got.RequestURI != uri || gotBody != placeholder ||
				got.Trailer.Get("X-Trailer") != placeholder || got.Host != "api.example.org" || got.Method != http.MethodPost {
				t.Errorf("the request is changed elsewhere: %s", dump(got, gotBody))
			}
			if n := strings.Count(dump(got, gotBody), value); n != 4 {
				t.Errorf("the value is there %d times", n)
			}

			for plain, want := range map[string]string{
				"Basic " + basic("me:"+placeholder):                        "Basic " + basic("me:"+value),
				"basic " + basic(placeholder+":"):                          "basic " + basic(value+":"),
				"Basic " + strings.TrimRight(basic(placeholder+":x"), "="): "Basic " + strings.TrimRight(basic(value+":x"), "="),
				"Basic " + basic("me:none"):                                "Basic " + basic("me:none"),
				"Basic !" + placeholder:                                    "Basic !" + value,
				"Basic":                                                    "Basic",
			} {
				if status, _ := get(t, c, "https://api.example.org/", http.Header{"Authorization": {plain}}); status != 200 {
					t.Errorf("%s: status %d", plain, status)
				}
				got, _ := host.only(t)
				if a := got.Header.Get("Authorization"); a != want {
					t.Errorf("Authorization is %q, not %q", a, want)
				}
			}
			c.CloseIdleConnections()
			record := p.next()
			if !slices.Equal(record.Secrets, []string{"key"}) || record.Requests != 7 || record.Refused != "" || record.Sent == 0 ||
				record.Received == 0 || record.Way != egress.WayConnect || p.dials() != 1 {
				t.Errorf("the record is %+v, after %d dials", record, p.dials())
			}
		})
	}
}

// Every way into egress intercepts, with and without a server name.
func TestWays(t *testing.T) {
	p := newPlace(t, []string{"api.example.org", "93.184.216.9"}, secret(t, "api.example.org", "93.184.216.9"))
	host := &seen{}
	p.host("api.example.org:443", host)
	p.host("93.184.216.9:443", host)
	socks := func(name string) net.Conn {
		c, err := net.Dial("tcp", p.proxy.String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(append(append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(name))}, name...), 1, 187))
		if _, err := io.ReadFull(c, make([]byte, 12)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	direct := func() net.Conn {
		c, err := net.Dial("tcp", p.sock.String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, test := range []struct {
		way  string
		conn net.Conn
		name string
		sni  string
	}{
		{egress.WayConnect, p.connect("api.example.org:443"), "api.example.org", "api.example.org"},
		{egress.WayConnect, p.connect("api.example.org:443"), "api.example.org", "API.Example.org"},
		{egress.WayConnect, p.connect("api.example.org:443"), "api.example.org", ""},
		{egress.WayConnect, p.connect("93.184.216.9:443"), "93.184.216.9", ""},
		{egress.WaySOCKS, socks("api.example.org"), "api.example.org", "api.example.org"},
		{egress.WayTransparent, direct(), "api.example.org", "api.example.org"},
	} {
		t.Run(test.way+" "+test.name+" "+test.sni, func(t *testing.T) {
			defer test.conn.Close()
			c := tls.Client(test.conn, &tls.Config{ServerName: test.sni, InsecureSkipVerify: true})
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nX-Key: %s\r\nConnection: close\r\n\r\n", test.name, placeholder)
			if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
				t.Fatalf("%q, %v", b, err)
			}
			leaf := c.ConnectionState().PeerCertificates[0]
			if leaf.Issuer.CommonName != "carrel egress of amber" || leaf.VerifyHostname(test.name) != nil {
				t.Errorf("the certificate is of %s for %s", leaf.Issuer, leaf.Subject)
			}
			got, _ := host.only(t)
			if got.Header.Get("X-Key") != value || got.Host != test.name {
				t.Errorf("the host got %s", dump(got, ""))
			}
			if r := p.next(); r.Way != test.way || r.Requests != 1 || !slices.Equal(r.Secrets, []string{"key"}) {
				t.Errorf("the record is %+v", r)
			}
		})
	}
}

// TLS that names another host than the target is not intercepted, although its address is bound: behind an address
// that a rule allows there may be any host.
func TestAddressName(t *testing.T) {
	p := newPlace(t, []string{"93.184.216.9"}, secret(t, "93.184.216.9"))
	host := &seen{}
	s := p.host("other.example.org:443", host)
	p.put("93.184.216.9:443", s.Listener.Addr())
	c := tls.Client(p.connect("93.184.216.9:443"), &tls.Config{
		ServerName: "other.example.org", RootCAs: p.trust, MinVersion: tls.VersionTLS12,
	})
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: other.example.org\r\nX-Key: %s\r\nConnection: close\r\n\r\n", placeholder)
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Fatalf("%q, %v", b, err)
	}
	if by := c.ConnectionState().PeerCertificates[0].Issuer.CommonName; by != "carrel egress of public" {
		t.Errorf("the certificate is by %q", by)
	}
	if got, body := host.only(t); got.Header.Get("X-Key") != placeholder {
		t.Errorf("the host got %s", dump(got, body))
	}
	c.Close()
	if r := p.next(); r.Requests != 0 || r.Secrets != nil || r.Refused != "" {
		t.Errorf("the record is %+v", r)
	}
}

// Where no secret is bound, nothing is intercepted, and a placeholder passes as it is.
func TestOtherHost(t *testing.T) {
	bound := secret(t, "api.example.org", "*.bound.example.org:8443")
	p := newPlace(t, []string{"*:*"}, bound)
	for _, target := range []string{
		"other.example.org:443", "api.example.org:8443", "x.api.example.org:443", "bound.example.org:8443", "a.bound.example.org:443",
		"apixexample.org:443", "example.org:443",
	} {
		host := &seen{}
		p.host(target, host)
		c := p.client("h2")
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+target, nil)
		r.Header.Set("Authorization", "Bearer "+placeholder)
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if by := res.TLS.PeerCertificates[0].Issuer.CommonName; by != "carrel egress of public" {
			t.Errorf("%s: the certificate is by %q", target, by)
		}
		got, body := host.only(t)
		if got.Header.Get("Authorization") != "Bearer "+placeholder || strings.Contains(dump(got, body), value) {
			t.Errorf("%s got %s", target, dump(got, body))
		}
		c.CloseIdleConnections()
		if r := p.next(); r.Secrets != nil || r.Requests != 0 {
			t.Errorf("the record is %+v", r)
		}
	}
	host := &seen{}
	p.host("a.bound.example.org:8443", host)
	get(t, p.client("h2"), "https://a.bound.example.org:8443/", http.Header{"K": {placeholder}})
	if got, _ := host.only(t); got.Header.Get("K") != value || got.Host != "a.bound.example.org:8443" {
		t.Errorf("a name below got %s", dump(got, ""))
	}
}

// A secret does not travel without TLS.
func TestInTheClear(t *testing.T) {
	p := newPlace(t, []string{"api.example.org:*"}, secret(t, "api.example.org:*"))
	host := &seen{}
	p.plainHost("api.example.org:80", host)
	p.plainHost("api.example.org:443", host)
	check := func(how string) {
		t.Helper()
		got, body := host.only(t)
		if got.Header.Get("X-Key") != placeholder || strings.Contains(dump(got, body), value) {
			t.Errorf("%s: the host got %s", how, dump(got, body))
		}
		if r := p.next(); r.Secrets != nil || r.Requests != 0 {
			t.Errorf("%s: the record is %+v", how, r)
		}
	}
	c := p.client("http/1.1")
	get(t, c, "http://api.example.org/", http.Header{"X-Key": {placeholder}})
	c.CloseIdleConnections()
	check("a proxied request")
	for _, target := range []string{"api.example.org:80", "api.example.org:443"} {
		conn := p.connect(target)
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: api.example.org\r\nX-Key: %s\r\nConnection: close\r\n\r\n", placeholder)
		if b, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Fatalf("%q, %v", b, err)
		}
		conn.Close()
		check("a tunnel to " + target)
	}
}

// A client that follows a redirect takes the placeholder along, and not the value.
func TestRedirect(t *testing.T) {
	for _, to := range []string{"https://other.example.org/", "http://other.example.org/", "http://api.example.org/"} {
		p := newPlace(t, []string{"*.example.org"}, secret(t, "api.example.org"))
		other := &seen{}
		p.host("other.example.org:443", other)
		p.plainHost("other.example.org:80", other)
		p.plainHost("api.example.org:80", other)
		var first http.Header
		p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first = r.Header
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		}))
		get(t, p.client("http/1.1"), "https://api.example.org/", http.Header{"X-Key": {placeholder}})
		got, body := other.only(t)
		if first.Get("X-Key") != value || got.Header.Get("X-Key") != placeholder || strings.Contains(dump(got, body), value) {
			t.Errorf("%s: the first host got %q, the second %s", to, first, dump(got, body))
		}
	}
}

func TestHeaders(t *testing.T) {
	one, two := secret(t, "api.example.org"), secret(t, "api.example.org")
	one.Headers = []string{"x-api-key", "authorization"}
	two.Name, two.Placeholder, two.Value = "two", "another-placeholder", redact.NewValue("another-value")
	elsewhere := secret(t, "other.example.org")
	elsewhere.Name, elsewhere.Placeholder, elsewhere.Value = "three", "third-placeholder", redact.NewValue("third-value")
	p := newPlace(t, []string{"*.example.org"}, one, two, elsewhere)
	host := &seen{}
	p.host("api.example.org:443", host)
	c := p.client("http/1.1")
	get(t, c, "https://api.example.org/", http.Header{
		"X-Api-Key": {placeholder}, "X-Other": {placeholder + " another-placeholder third-placeholder"},
		"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(placeholder+":another-placeholder"))},
		"Cookie":        {"a=" + placeholder + "; b=another-placeholder"},
	})
	got, _ := host.only(t)
	user, password, _ := got.BasicAuth()
	if got.Header.Get("X-Api-Key") != value || got.Header.Get("X-Other") != placeholder+" another-value third-placeholder" ||
		user != value || password != "another-value" || got.Header.Get("Cookie") != "a="+placeholder+"; b=another-value" {
		t.Errorf("the host got %s", dump(got, ""))
	}
	c.CloseIdleConnections()
	if r := p.next(); !slices.Equal(r.Secrets, []string{"key", "two"}) {
		t.Errorf("the record is %+v", r)
	}
	// What Connection names ends here, and so does what it carries.
	conn := p.secure("api.example.org:443")
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: api.example.org\r\nX-Api-Key: %s\r\nConnection: x-api-key, close\r\n\r\n", placeholder)
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	if got, body := host.only(t); strings.Contains(dump(got, body), value) || strings.Contains(dump(got, body), placeholder) {
		t.Errorf("the host got %s", dump(got, body))
	}
}

// A connection in use goes on when the host closes its own, by a new one that is judged again.
func TestAgain(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	p.rawHost("api.example.org:443", func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nContent-Type: x/y\r\n\r\n%s", r.Header.Get("X-Key")[:2])
	})
	conn := p.secure("api.example.org:443")
	in := bufio.NewReader(conn)
	ask := func() (int, string) {
		t.Helper()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: api.example.org\r\nX-Key: %s\r\n\r\n", placeholder)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	for range 3 {
		if status, _ := ask(); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if n := p.dials(); n != 3 {
		t.Errorf("there were %d dials for 3 connections", n)
	}
	p.mu.Lock()
	p.names["api.example.org"] = netip.MustParseAddr("10.0.0.7")
	p.mu.Unlock()
	if status, body := ask(); status != 403 || !strings.Contains(body, "may no longer be reached") || p.dials() != 3 {
		t.Errorf("with an address that is not public: %d %q, %d dials", status, body, p.dials())
	}
	conn.Close()
	if r := p.next(); r.Requests != 4 || r.Refused != "api.example.org:443 may no longer be reached" {
		t.Errorf("the record is %+v", r)
	}
}

// Clients that are in use.
func TestPrograms(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	host := &seen{}
	p.host("api.example.org:443", host)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, p.authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `import os, urllib.request
r = urllib.request.Request("https://api.example.org/", headers={"X-Key": "` + placeholder + `"})
print(urllib.request.urlopen(r).read().decode())`
	for _, test := range []struct {
		argv []string
		want string
	}{
		{[]string{"curl", "-sS", "--cacert", bundle, "-H", "X-Key: " + placeholder, "https://api.example.org/"}, "HTTP/2.0 0"},
		{[]string{
			"curl", "-sS", "--http1.1", "--cacert", bundle, "-H", "X-Key: " + placeholder, "-d", "abc", "https://api.example.org/",
		}, "HTTP/1.1 3"},
		{[]string{"python3", "-c", script}, "HTTP/1.1 0"},
	} {
		path, err := exec.LookPath(test.argv[0])
		if err != nil {
			t.Logf("SKIP %s: it is not installed", test.argv[0])
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		cmd := exec.CommandContext(ctx, path, test.argv[1:]...)
		proxy := (&url.URL{Scheme: "http", Host: p.proxy.String()}).String()
		cmd.Env = append(os.Environ(), "https_proxy="+proxy, "SSL_CERT_FILE="+bundle, "no_proxy=", "NO_PROXY=")
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil || strings.TrimSpace(string(out)) != test.want {
			t.Errorf("%v: %v: %s", test.argv, err, out)
			continue
		}
		if got, _ := host.only(t); got.Header.Get("X-Key") != value {
			t.Errorf("%v: the host got %s", test.argv, dump(got, ""))
		}
	}
}
