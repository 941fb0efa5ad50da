package intercept_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// injected is a secret that is injected into requests to these hosts.
func injected(t testing.TB, s httprule.Sending, hosts ...string) intercept.Secret {
	t.Helper()
	return intercept.Secret{Name: "key", Value: redact.NewValue(value), Hosts: rules(t, hosts...), Sending: s}
}

// The host gets the secret in its place, and nothing of what the program put there, in whichever spelling.
func TestInjectReplaces(t *testing.T) {
	login := base64.StdEncoding.EncodeToString([]byte("me:" + value))
	theirs := "the-key-of-an-attacker"
	for _, test := range []struct {
		inject, field, want, query string
		given                      http.Header
		uri                        string
	}{
		{"header:X-Api-Key", "X-Api-Key", value, "", http.Header{"X-Api-Key": {theirs, theirs}, "x-api-key": {theirs}}, "/"},
		{"header:X-Api-Key", "X-Api-Key", value, "", http.Header{"X_Api_Key": {theirs}, "X-Api_Key": {theirs}, "X_API_KEY": {theirs}}, "/"},
		{"header:X-Api-Key", "X-Api-Key", value, "", http.Header{"Connection": {"x-api-key"}, "X-Api-Key": {theirs}}, "/"},
		{"header:Authorization: Bearer {}", "Authorization", "Bearer " + value, "", http.Header{"Authorization": {"Basic " + theirs}}, "/"},
		{"header:Authorization: Bearer {}", "Authorization", "Bearer " + value, "", nil, "/"},
		{"header:Cookie: session={}", "Cookie", "session=" + value, "", http.Header{"Cookie": {"session=" + theirs, "a=" + theirs}}, "/"},
		{"basic:me", "Authorization", "Basic " + login, "", http.Header{"Authorization": {"Bearer " + theirs}}, "/"},
		{"query:key", "", "", "a=1&b&key=" + value, nil, "/?a=1&key=" + theirs + "&b&key=" + theirs},
		{"query:key", "", "", "key=" + value, nil, "/?KEY=" + theirs + "&%6b%65%79=" + theirs + "&+key=" + theirs},
		{"query:key", "", "", "key=" + value, nil, "/?key[]=" + theirs + "&key%5b0%5d=" + theirs},
		{"query:key", "", "", "x=key%3D1&key=" + value, nil, "/?x=key%3D1"},
		{"query:api_key", "", "", "api_key=" + value, nil, "/?api.key=" + theirs + "&api+key=" + theirs + "&api%20key=" + theirs},
		{"query:key", "", "", "key=" + value, nil, "/"},
		{"query:key", "", "", "key=" + value, nil, "/?"},
	} {
		for _, proto := range protos {
			p, host := newPlace(t, []string{"api.example.org"}, injected(t, httprule.Sending{Inject: test.inject}, "api.example.org")), &seen{}
			p.host("api.example.org:443", host)
			given := test.given.Clone()
			if proto == "h2" {
				delete(given, "Connection")
			}
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org"+test.uri, strings.NewReader("body"))
			if given != nil {
				r.Header = given
			}
			r.ContentLength = -1
			r.Trailer = http.Header{"Authorization": {theirs}, "X-Api-Key": {theirs}, "X_api_key": {theirs}, "X-Other": {"kept"}}
			if proto == "h2" { // net/http refuses such a trailer itself
				delete(r.Trailer, "Authorization")
			}
			client := p.client(proto)
			if status, body, err := do(client, r); status != 200 || err != nil {
				t.Errorf("%s %q: %d %q %v", test.inject, test.uri, status, body, err)
				continue
			}
			got, body := host.only(t)
			for _, fields := range []http.Header{got.Header, got.Trailer} {
				for name, values := range fields {
					if test.field != "" && httprule.Field(name) == httprule.Field(test.field) && strings.Contains(strings.Join(values, ""), theirs) {
						t.Errorf("%s with %s: the host got what the program put there: %s", test.inject, proto, dump(got, body))
					}
				}
			}
			if test.field != "" && !slices.Equal(got.Header[test.field], []string{test.want}) {
				t.Errorf("%s with %s: %s is %q", test.inject, proto, test.field, got.Header[test.field])
			}
			if test.field != "" && got.Trailer.Get(test.field) != "" {
				t.Errorf("%s with %s: the trailer is %q", test.inject, proto, got.Trailer)
			}
			if got.Trailer.Get("X-Other") != "kept" || got.URL.RawQuery != test.query {
				t.Errorf("%s with %s: trailer %q, query %q", test.inject, proto, got.Trailer, got.URL.RawQuery)
			}
			client.CloseIdleConnections()
			if c := p.next(); !slices.Equal(c.Secrets, []string{"key"}) || c.Refused != "" {
				t.Errorf("the record is %+v", c)
			}
		}
	}
}

// Trailers that were not announced do not bring a field back.
func TestInjectTrailerUnannounced(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, injected(t, httprule.Sending{Inject: "header:X-Api-Key"}, "api.example.org"))
	got := make(chan string, 1)
	p.rawHost("api.example.org:443", func(c net.Conn) {
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		got <- dump(r, "")
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	c := p.secure("api.example.org:443", "http/1.1")
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: api.example.org\r\nTransfer-Encoding: chunked\r\nTrailer: X-Other\r\nConnection: close\r\n\r\n"+
		"1\r\na\r\n0\r\nX-Other: kept\r\nX-Api-Key: theirs\r\nX_Api_Key: theirs\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("%q, %v", b, err)
	}
	if all := wait(t, got, "request"); strings.Contains(all, "theirs") || strings.Count(all, value) != 1 || !strings.Contains(all, "kept") {
		t.Errorf("the host got %s", all)
	}
}

// What has no one reading is refused, and the host gets nothing of it.
func TestInjectAmbiguous(t *testing.T) {
	byPath := httprule.Sending{Inject: "header:X-Key", Paths: []string{"/v1/*"}}
	byMethod := httprule.Sending{Inject: "header:X-Key", Methods: []string{"POST"}}
	for _, test := range []struct {
		s    httprule.Sending
		head string
		why  string
	}{
		{httprule.Sending{Inject: "query:key"}, "GET /?a=1;key=x HTTP/1.1\r\n", "some servers end a parameter"},
		{httprule.Sending{Inject: "query:key"}, "GET /?%zz=1 HTTP/1.1\r\n", "percent sign"},
		{httprule.Sending{Inject: "query:key"}, "GET /?%256bey=1 HTTP/1.1\r\n", "percent sign"},
		{httprule.Sending{Inject: "query:key"}, "GET /?key%00=1 HTTP/1.1\r\n", "control character"},
		{byPath, "GET /v1/../admin HTTP/1.1\r\n", "a segment of dots"},
		{byPath, "GET /v1/%2e%2e/admin HTTP/1.1\r\n", "a segment of dots"},
		{byPath, "GET /v1/..%2fadmin HTTP/1.1\r\n", "separator"},
		{byPath, "GET /v1/..;/admin HTTP/1.1\r\n", "parameter"},
		{byPath, "GET /v1\\..\\admin HTTP/1.1\r\n", "separator"},
		{byPath, "GET //v1/admin HTTP/1.1\r\n", "an empty segment"},
		{byPath, "GET /v1/%252e%252e/admin HTTP/1.1\r\n", "encoded twice"},
		{byPath, "GET /v1/x%3f/../ HTTP/1.1\r\n", "encoded ?"},
		{byPath, "GET https://api.example.org/v1/../admin HTTP/1.1\r\n", "a segment of dots"},
		{byPath, "OPTIONS * HTTP/1.1\r\n", "does not begin with a slash"},
		{byPath, "GET /v1/a HTTP/1.1\r\nX-Original-URL: /admin\r\n", "another path"},
		{byPath, "GET /v1/a HTTP/1.1\r\nX_Rewrite_Url: /admin\r\n", "another path"},
		{byMethod, "POST / HTTP/1.1\r\nX-HTTP-Method-Override: DELETE\r\n", "another method"},
		{byMethod, "POST / HTTP/1.1\r\nx_http_method: DELETE\r\n", "another method"},
		{byMethod, "POST /?_method=DELETE HTTP/1.1\r\n", "_method"},
		{byMethod, "POST /?%5fmethod=DELETE HTTP/1.1\r\n", "_method"},
		{byMethod, "POST /?a=1;%255fMethod[]=DELETE HTTP/1.1\r\n", "_method"},
		{httprule.Sending{Inject: "header:X-Key"}, "CONNECT api.example.org:443 HTTP/1.1\r\n", "CONNECT inside"},
	} {
		p, host := newPlace(t, []string{"api.example.org"}, injected(t, test.s, "api.example.org")), &seen{}
		p.host("api.example.org:443", host)
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "%sHost: api.example.org\r\nConnection: close\r\n\r\n", test.head)
		b, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 4") || !strings.Contains(string(b), test.why) || len(host.all) > 0 {
			t.Errorf("%q: %q, %v; the host got %d", test.head, b, err, len(host.all))
		}
		c.Close()
		if r := p.next(); !strings.Contains(r.Refused, test.why) || len(r.Secrets) > 0 || strings.Contains(r.Refused, "admin") {
			t.Errorf("%q: the record is %+v", test.head, r)
		}
	}
}

// Outside of the methods and paths that a secret is for, nothing is injected or swapped.
func TestSendingLimits(t *testing.T) {
	limits := httprule.Sending{Methods: []string{"POST", "GET"}, Paths: []string{"/v1/*", "/repos/*/issues"}}
	inject := limits
	inject.Inject = "header:X-Api-Key"
	swap := secret(t, "api.example.org")
	swap.Sending = limits
	for what, s := range map[string]intercept.Secret{"inject": injected(t, inject, "api.example.org"), "swap": swap} {
		for _, proto := range protos {
			p, host := newPlace(t, []string{"api.example.org"}, s), &seen{}
			p.host("api.example.org:443", host)
			client := p.client(proto)
			for _, test := range []struct {
				method, uri string
				sent        bool
			}{
				{"POST", "/v1/models", true},
				{"GET", "/v1/a/b?x=../..", true},
				{"GET", "/v1/%6dodels", true},
				{"POST", "/v1/pay?payment_method=card&x=_method", true},
				{"GET", "/%76%31/models", true},
				{"GET", "/repos/a/issues", true},
				{"DELETE", "/v1/models", false},
				{"post", "/v1/models", false},
				{"POST", "/v1", false},
				{"POST", "/V1/models", false},
				{"POST", "/v10/models", false},
				{"POST", "/admin?/v1/models", false},
				{"POST", "/repos/a/b/issues", false},
				{"POST", "/", false},
			} {
				r, _ := http.NewRequestWithContext(t.Context(), test.method, "https://api.example.org"+test.uri, nil)
				r.Header.Set("X-Api-Key", placeholder)
				if status, body, err := do(client, r); status != 200 || err != nil {
					t.Errorf("%s: %s %s: %d %q %v", what, test.method, test.uri, status, body, err)
					continue
				}
				want := placeholder
				if test.sent {
					want = value
				}
				if got, _ := host.only(t); !slices.Equal(got.Header["X-Api-Key"], []string{want}) || got.RequestURI != test.uri {
					t.Errorf("%s with %s: %s %s: the host got %s", what, proto, test.method, test.uri, dump(got, ""))
				}
			}
		}
	}
}

// Nothing is injected without TLS, into a request for another host, or after a redirect to one.
func TestInjectElsewhere(t *testing.T) {
	bearer := httprule.Sending{Inject: "header:Authorization: Bearer {}"}
	p := newPlace(t, []string{"*.example.org:*"}, injected(t, bearer, "api.example.org:*"),
		func() intercept.Secret {
			s := injected(t, httprule.Sending{Inject: "query:key"}, "api.example.org:*")
			s.Name, s.Value = "second", redact.NewValue("another+value/of=ours")
			return s
		}())
	other, plain := &seen{}, &seen{}
	p.host("other.example.org:443", other)
	p.plainHost("api.example.org:80", plain)
	p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+value || r.URL.Query().Get("key") != "another+value/of=ours" {
			t.Errorf("the host got %s", dump(r, ""))
		}
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("Location", "https://other.example.org/?"+r.URL.RawQuery+"&auth="+token)
		w.WriteHeader(http.StatusFound)
	}))
	c := p.client("http/1.1")
	status, _ := get(t, c, "https://api.example.org/", nil)

	got, _ := other.only(t)
	all := dump(got, "")
	if status != 200 || strings.Contains(all, value) || strings.Contains(all, "another") || !strings.Contains(all, "***") {
		t.Errorf("%d; the other host got %s", status, all)
	}
	if status, _ := get(t, c, "http://api.example.org/", nil); status != 200 {
		t.Errorf("status %d", status)
	}
	if got, _ := plain.only(t); strings.Contains(dump(got, ""), value) || got.Header.Get("Authorization") != "" {
		t.Errorf("without TLS the host got %s", dump(got, ""))
	}
	x := p.secure("api.example.org:443", "http/1.1")
	fmt.Fprint(x, "GET / HTTP/1.1\r\nHost: other.example.org\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(x); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 421") {
		t.Errorf("%q, %v", b, err)
	}
}

// A host that repeats what it got is masked, in each encoding in which the secret went out.
func TestInjectMasked(t *testing.T) {
	for _, test := range []struct{ inject, value, length string }{
		{"header:X-Key", value, ""},
		{"query:key", `a"b+c/d=e\f%g`, ""},
		{"basic", "someone:with-a-password", ""},
		{"basic:me", "only-a-password", ""},
	} {
		s := injected(t, httprule.Sending{Inject: test.inject}, "api.example.org")
		s.Value = redact.NewValue(test.value)
		p := newPlace(t, []string{"api.example.org"}, s)
		p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, password, _ := r.BasicAuth()
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, "%q %s %s %s %s", test.value, test.value, r.Header, r.URL.RawQuery, password)
		}))
		_, body := get(t, p.client("h2"), "https://api.example.org/", nil)
		_, password, _ := strings.Cut(test.value, ":")
		for _, shown := range []string{
			test.value, strings.Trim(fmt.Sprintf("%q", test.value), `"`), base64.StdEncoding.EncodeToString([]byte(test.value)),
			base64.StdEncoding.EncodeToString([]byte("me:" + test.value)), "a%22b", password,
		} {
			if shown != "" && strings.Contains(body, shown) {
				t.Errorf("%s: the program got %q in %q", test.inject, shown, body)
			}
		}
		if strings.Count(body, "****") < 3 {
			t.Errorf("%s: %q", test.inject, body)
		}
	}
}

// Two secrets for one place are not chosen between.
func TestInjectTwice(t *testing.T) {
	a, b := injected(t, httprule.Sending{Inject: "basic:me"}, "api.example.org"),
		injected(t, httprule.Sending{Inject: "header:authorization: Bearer {}", Paths: []string{"/v1/*"}}, "*.example.org")
	b.Name, b.Value = "other", redact.NewValue("another-value")
	p, host := newPlace(t, []string{"api.example.org"}, a, b), &seen{}
	p.host("api.example.org:443", host)
	c := p.client("h2")
	status, body := get(t, c, "https://api.example.org/v1/x", nil)
	if status != 403 || !strings.Contains(body, "the secrets key and other are both for the header Authorization") || len(host.all) > 0 {
		t.Errorf("%d %q", status, body)
	}
	if status, _ := get(t, c, "https://api.example.org/v2", nil); status != 200 {
		t.Errorf("status %d", status)
	}
	host.only(t)
}

// An upgrade carries the secret in its head, and nothing is put into what follows.
func TestInjectUpgrade(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, injected(t, httprule.Sending{Inject: "header:X-Key"}, "api.example.org"))
	got := make(chan string, 1)
	p.rawHost("api.example.org:443", func(c net.Conn) {
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		rest, _ := io.ReadAll(in)
		got <- dump(r, string(rest))
	})
	c := p.secure("api.example.org:443", "http/1.1")
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: api.example.org\r\nConnection: Upgrade, X-Key\r\nUpgrade: websocket\r\nX-Key: theirs\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 101 || res.Body.Close() != nil {
		t.Fatalf("%v, %v", res, err)
	}
	fmt.Fprint(c, "GET /second HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
	c.Close()
	all := wait(t, got, "request")
	if strings.Count(all, value) != 1 || strings.Contains(all, "theirs") || !strings.Contains(all, "/second") ||
		!strings.Contains(all, "Connection: Upgrade\r\n") {
		t.Errorf("the host got %s", all)
	}
}

func TestInjectNew(t *testing.T) {
	with := func(f func(*intercept.Secret)) []intercept.Secret {
		s := injected(t, httprule.Sending{Inject: "basic"}, "api.example.org")
		s.Value = redact.NewValue("someone:password")
		f(&s)
		return []intercept.Secret{s}
	}
	for what, bad := range map[string][]intercept.Secret{
		"a placeholder": with(func(s *intercept.Secret) { s.Placeholder = placeholder }),
		"headers":       with(func(s *intercept.Secret) { s.Headers = []string{"X-Key"} }),
		"no colon":      with(func(s *intercept.Secret) { s.Value = redact.NewValue(value) }),
		"framing":       with(func(s *intercept.Secret) { s.Sending.Inject = "header:Content-Length" }),
		"no place":      with(func(s *intercept.Secret) { s.Sending.Inject = "body" }),
		"no host":       with(func(s *intercept.Secret) { s.Hosts = nil }),
		"JSON":          with(func(s *intercept.Secret) { s.Sending.Pointers = []string{"/a"} }),
	} {
		if err := intercept.Check(bad); err == nil || strings.Contains(err.Error(), value) || strings.Contains(err.Error(), "someone") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := intercept.Check(append(with(func(*intercept.Secret) {}), func() intercept.Secret {
		s := secret(t, "api.example.org")
		s.Name = "swapped"
		return s
	}())); err != nil {
		t.Error(err)
	}
}
