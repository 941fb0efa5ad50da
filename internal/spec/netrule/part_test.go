package netrule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestParsePart(t *testing.T) {
	for text, want := range map[string]string{
		"GET example.org":                               "GET example.org",
		"GET,HEAD,GET Example.org.:443/v1/*":            "GET,HEAD example.org:443/v1/*",
		"GET,HEAD api.example.com:443/v1/**":            "GET,HEAD api.example.com:443/v1/*",
		"example.org/v1/models":                         "example.org/v1/models",
		"example.org/24":                                "example.org/24",
		"example.org/":                                  "example.org/",
		"*.example.org:8000-8100/repos/*/issues":        "*.example.org:8000-8100/repos/*/issues",
		"DELETE *":                                      "DELETE *",
		"*/admin/*":                                     "*/admin/*",
		"tls://example.org":                             "tls://example.org",
		"TLS://example.org:8443":                        "tls://example.org:8443",
		"http://example.org/v1/*":                       "http://example.org/v1/*",
		"POST tls://example.org/v1/*":                   "POST tls://example.org/v1/*",
		"tcp://example.org":                             "example.org",
		"tcp://10.0.0.0/8:22":                           "10.0.0.0/8:22",
		"192.0.2.0/24":                                  "192.0.2.0/24",
		"[2001:db8::/32]:443":                           "[2001:db8::/32]:443",
		"M-SEARCH example.org/a,b/~c:d@e!$&'()+=[]|{}x": "M-SEARCH example.org/a,b/~c:d@e!$&'()+=[]|{}x",
		"example.org/für/*":                             "example.org/für/*",
	} {
		for _, a := range []netrule.Action{netrule.Allow, netrule.Deny} {
			r, err := netrule.ParseRule(a, text)
			if err != nil || r.Text != want {
				t.Errorf("%s %q: %q, %v", a, text, r.Text, err)
			}
		}
	}
	for text, why := range map[string]string{
		"GET  example.org": "host", "GET\texample.org": "host", " example.org": "method", "GET, example.org": "method",
		"get example.org": "capital letters", "a b": "capital letters", "G=T example.org": "method",
		"CONNECT example.org": "CONNECT", "TRACE,GET example.org": "TRACE", "GET @github": "set", "GET /v1": "empty",
		"https://example.org/v1": "it is a URL", "GET https://example.org/v1/*": "it is a URL", "ftp://example.org": "it is a URL",
		"tcp://example.org/v1": "leave tcp:// out", "GET tcp://example.org": "leave tcp:// out",
		"example.org/v1*": "whole segment", "example.org/../x": "dots", "example.org//x": "empty segment", "example.org/a?b": "character",
		"example.org/a%20b": "character", `example.org/a\b`: "character", "example.org/a;b": "character", "example.org/a b": "",
		"192.0.2.7/v1": "not a network", "192.0.2.7:443/v1": "hosts with a name", "GET 192.0.2.7": "hosts with a name",
		"tls://[2001:db8::1]": "hosts with a name",
		"10.0.0.0/8/v1/*":     "not a network", "http://10.0.0.0/8": "hosts with a name", "10.1.0.0/33": "network", "10.1.0.0/x": "not a network",
		"example.org/" + strings.Repeat("a", httprule.MaxPath): "bytes", "GET example.org:0/x": "ports", "example.org:443:1/x": "",
	} {
		if r, err := netrule.ParseRule(netrule.Allow, text); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v, %v; want it to say %q", text, r, err, why)
		}
	}
	// A person is asked about hosts.
	for _, a := range []netrule.Action{netrule.Ask, netrule.Approved} {
		for _, text := range []string{"GET example.org", "example.org/v1/*", "tls://example.org"} {
			if _, err := netrule.ParseRule(a, text); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "ask about the host") {
				t.Errorf("%s %q: %v", a, text, err)
			}
		}
	}
}

func path(t testing.TB, text string) httprule.Path {
	t.Helper()
	p, err := httprule.ParsePath(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// spoken judges one connection, and one request on it if that is read: "METHOD /path", with "!" before for an upgrade.
func spoken(t testing.TB, r *netrule.Rules, to string, p netrule.Protocol, request string) string {
	t.Helper()
	tt := target(t, to)
	v := r.Judge(tt)
	if v.Action == netrule.Deny {
		return "unreached"
	}
	l := r.Limits(tt)
	if v.Narrow == l.None() {
		t.Errorf("%s: %+v, and the limits are %+v", to, v, l)
	}
	c, requests := l.Connection(p, v.Action == netrule.Ask)
	if c.Action != netrule.Allow {
		return strings.TrimSpace("refused " + c.Rule)
	}
	if !requests {
		return "copied"
	}
	request, upgrade := strings.CutPrefix(request, "!")
	method, text, _ := strings.Cut(request, " ")
	q := &netrule.Request{Method: method, Path: path(t, text)}
	if upgrade {
		q.Upgrade = "websocket"
	}
	got, why := l.Request(p, q, v.Action == netrule.Ask)
	if (got.Action == netrule.Allow) != (why == "") || strings.Contains(why, text) && len(text) > 1 && !strings.Contains(got.Rule, text) {
		t.Errorf("%+v, %q", got, why)
	}
	return strings.TrimSpace(string(got.Action) + " " + got.Rule)
}

func TestLimits(t *testing.T) {
	const any, tls, http = netrule.Anything, netrule.TLS, netrule.HTTP
	type asked struct {
		to      string
		p       netrule.Protocol
		request string
		want    string
	}
	for _, c := range []struct {
		rules []string
		asked []asked
	}{
		{[]string{"allow GET,HEAD example.org/v1/*"}, []asked{
			{"example.org:443", tls, "GET /v1/x", "allow GET,HEAD example.org/v1/*"},
			{"example.org:80", http, "HEAD /v1/x/y", "allow GET,HEAD example.org/v1/*"},
			{"example.org:443", tls, "POST /v1/x", "deny"},
			{"example.org:443", tls, "GET /v1", "deny"},
			{
				"example.org:443", tls,
				"GET /V1/x", "deny",
			},
			{"example.org:443", tls, "get /v1/x", "deny"},
			{"example.org:443", tls, "!GET /v1/x", "deny"},
			{"example.org:443", any, "", "refused GET,HEAD example.org/v1/*"},
			{"example.org:22", any, "", "unreached"},
			{"x.example.org:443", tls, "GET /v1/x", "unreached"},
		}},
		// A whole host is everything, but what is denied; what is spoken there has to be HTTP then.
		{[]string{"allow example.org:*", "deny DELETE,PUT example.org", "deny example.org/admin/*"}, []asked{
			{"example.org:443", tls, "GET /x", "allow example.org:*"},
			{"example.org:443", tls, "!GET /x", "allow example.org:*"},
			{"example.org:443", tls, "DELETE /x", "deny DELETE,PUT example.org"},
			{"example.org:443", tls, "delete /x", "deny"},
			{"example.org:443", tls, "GET /Admin/x", "deny example.org/admin/*"},
			{
				"example.org:443", tls, "GET /ADMIN/",
				"deny example.org/admin/*",
			},
			{"example.org:443", tls, "GET /admin", "deny example.org/admin/*"},
			{
				"example.org:443", tls, "GET /admin./x",
				"deny example.org/admin/*",
			},
			{"example.org:443", tls, "GET /administrator", "allow example.org:*"},
			{"example.org:22", any, "", "refused DELETE,PUT example.org"},
		}},
		{[]string{"allow example.org", "deny DELETE *"}, []asked{
			{"example.org:80", http, "DELETE /x", "deny DELETE *"}, {"example.org:443", tls, "GET /x", "allow example.org"},
		}},
		{[]string{"allow *:*", "deny DELETE *.example.org"}, []asked{
			{"a.b.example.org:443", tls, "DELETE /x", "deny DELETE *.example.org"},
			{"example.org:443", tls, "DELETE /x", "copied"},
			{"8.8.8.8:443", tls, "DELETE /x", "copied"},
		}},
		{[]string{"allow GET *"}, []asked{
			{"8.8.8.8:443", tls, "GET /x", "allow GET *"},
			{"8.8.8.8:443", tls, "PUT /x", "deny"},
			{"10.0.0.1:443", tls, "GET /x", "unreached"},
			{"[64:ff9b::10.0.0.1]:443", tls, "GET /x", "unreached"},
		}},
		// A host that is denied is denied.
		{[]string{"allow GET example.org", "deny *.org"}, []asked{{"example.org:443", tls, "GET /", "unreached"}}},
		// Asked about: the answer is about the host.
		{[]string{"ask example.org", "allow GET example.org", "deny POST example.org"}, []asked{
			{"example.org:443", tls, "PUT /", "allow example.org"}, {"example.org:443", tls, "POST /", "deny POST example.org"},
		}},
		// Protocols.
		{[]string{"allow tls://example.org"}, []asked{
			{"example.org:443", tls, "", "copied"},
			{"example.org:443", http, "", "refused"},
			{"example.org:443", any, "", "refused"},
			{"example.org:80", http, "", "unreached"},
		}},
		{[]string{"allow http://example.org"}, []asked{
			{"example.org:80", http, "GET /", "allow http://example.org"},
			{"example.org:80", http, "!GET /", "deny"},
			{"example.org:80", tls, "", "refused"},
			{"example.org:80", any, "", "refused http://example.org"},
			{
				"example.org:443", tls, "",
				"unreached",
			},
		}},
		{[]string{"allow example.org:*", "deny tls://example.org"}, []asked{
			{"example.org:443", tls, "", "refused tls://example.org"},
			{"example.org:80", http, "", "copied"},
			{"example.org:22", any, "", "refused tls://example.org"},
		}},
		{[]string{"allow example.org:*", "deny http://example.org"}, []asked{
			{"example.org:443", tls, "", "copied"},
			{"example.org:80", http, "GET /", "deny http://example.org"},
			{"example.org:22", any, "", "refused http://example.org"},
		}},
		{[]string{"allow example.org:*", "allow tls://example.org"}, []asked{
			{"example.org:443", any, "", "copied"}, {"example.org:443", http, "", "copied"}, {"example.org:443", tls, "", "copied"},
		}},
		{[]string{"allow tls://example.org", "deny DELETE example.org"}, []asked{
			{"example.org:443", tls, "GET /", "allow tls://example.org"},
			{"example.org:443", tls, "!GET /", "allow tls://example.org"},
			{"example.org:443", tls, "DELETE /", "deny DELETE example.org"},
			{"example.org:443", http, "GET /", "deny"},
		}},
		{[]string{"allow GET tls://example.org/v1/*", "allow POST http://example.org:443/v1/*"}, []asked{
			{"example.org:443", tls, "GET /v1/x", "allow GET tls://example.org/v1/*"},
			{"example.org:443", tls, "POST /v1/x", "deny"},
			{"example.org:443", http, "POST /v1/x", "allow POST http://example.org:443/v1/*"},
			{"example.org:443", http, "GET /v1/x", "deny"},
		}},
		// A narrow Allow adds nothing to a whole one, but that it is read.
		{[]string{"allow example.org:443", "allow GET example.org/v1/*"}, []asked{
			{"example.org:443", tls, "POST /", "allow example.org:443"}, {"example.org:80", http, "POST /", "deny"},
		}},
	} {
		for range 3 {
			rand.Shuffle(len(c.rules), func(i, j int) { c.rules[i], c.rules[j] = c.rules[j], c.rules[i] })
			r := rules(t, netrule.Options{}, c.rules...)
			for _, a := range c.asked {
				if got := spoken(t, r, a.to, a.p, a.request); got != a.want {
					t.Errorf("%q: %s %s %s: %q, not %q", c.rules, a.to, a.p, a.request, got, a.want)
				}
			}
		}
	}
}

// What can be read in two ways is refused where rules look at it, and only there.
func TestLimitsUnclear(t *testing.T) {
	byMethod := rules(t, netrule.Options{}, "allow example.org", "deny DELETE example.org")
	byPath := rules(t, netrule.Options{}, "allow example.org", "deny example.org/admin/*")
	tt := target(t, "example.org:443")
	for _, c := range []struct {
		q            netrule.Request
		method, path bool // refused
	}{
		{netrule.Request{Method: "GET", NoMethod: "a header of it names another method"}, true, false},
		{netrule.Request{Method: "GET", NoPath: "its path has a segment of dots"}, false, true},
		{netrule.Request{Method: "gET"}, true, false},
		{netrule.Request{Method: "GET", Upgrade: "h2c"}, true, true},
		{netrule.Request{Method: "GET", Upgrade: "websocket, h2c"}, true, true},
		{netrule.Request{Method: "GET", Upgrade: "WebSocket"}, false, false},
		{netrule.Request{Method: "PROPFIND"}, false, false},
	} {
		for r, want := range map[*netrule.Rules]bool{byMethod: c.method, byPath: c.path} {
			l := r.Limits(tt)
			if v, why := l.Request(netrule.TLS, &c.q, false); (v.Action == netrule.Deny) != want {
				t.Errorf("%+v: %+v, %s", c.q, v, why)
			}
		}
	}
	none := rules(t, netrule.Options{}, "allow example.org")
	l := none.Limits(tt)
	if v, why := l.Request(netrule.TLS, &netrule.Request{Method: "x", NoMethod: "x", NoPath: "x", Upgrade: "h2c"}, false); why != "" {
		t.Errorf("without such a rule: %+v, %s", v, why)
	}
}

// As the documentation has it, by looking at each rule.
func TestLimitsAgainstEveryRule(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	protocols := []netrule.Protocol{netrule.Anything, netrule.TLS, netrule.HTTP}
	for range 3000 {
		var set []netrule.Rule
		for range 1 + random.IntN(5) {
			action := []netrule.Action{netrule.Allow, netrule.Allow, netrule.Deny}[random.IntN(3)]
			text := one("", "GET ", "GET,POST ", "DELETE ") + one("", "", "tls://", "http://") + one("a.b", "*.b", "*", "b") + ":1-3" +
				one("", "", "/x", "/x/*", "/*", "/*/y")
			r, err := netrule.ParseRule(action, text)
			if err != nil {
				t.Fatal(err)
			}
			set = append(set, r)
		}
		r, err := netrule.New(set, netrule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			host, p, method, text := one("a.b", "b", "c.a.b"), protocols[1+random.IntN(2)], one("GET", "POST", "DELETE"), one("/x", "/x/y",
				"/X", "/z")
			got := spoken(t, r, host+":2", p, method+" "+text)
			ok := got == "copied" || strings.HasPrefix(got, "allow")
			if want := may(t, set, host, p, method, text); ok != want {
				t.Fatalf("%v: %s %s %s %s: %s, want %v", texts(set), host, p, method, text, got, want)
			}
		}
	}
}

func may(t *testing.T, set []netrule.Rule, host string, p netrule.Protocol, method, text string) bool {
	allowed := false
	for _, r := range set {
		onHost := r.Any || r.Below && strings.HasSuffix(host, "."+r.Name) || !r.Below && r.Name == host
		if !onHost || r.Protocol != netrule.Anything && r.Protocol != p {
			continue
		}
		if r.Methods != "" && !slices.Contains(strings.Split(r.Methods, ","), method) {
			continue
		}
		sent := text
		if r.Action == netrule.Deny {
			sent = strings.ToLower(text)
		}
		if r.Path != "" {
			l, err := httprule.NewLimit(nil, []string{r.Path})
			if err != nil {
				t.Fatal(err)
			}
			// A pattern that denies what is below denies the place itself.
			if !l.Selects(method, path(t, sent)) && !(r.Action == netrule.Deny && l.Selects(method, path(t, sent+"/"))) {
				continue
			}
		}
		if r.Action == netrule.Deny {
			return false
		}
		allowed = true
	}
	return allowed
}

func TestNarrowReaches(t *testing.T) {
	r := rules(t, netrule.Options{}, "allow GET a.example:8080/x", "allow tls://*.b.example", "deny POST c.example",
		"allow POST d.example:22", "deny d.example")
	for name, want := range map[string]bool{
		"a.example": true, "b.example": false, "x.b.example": true, "c.example": false,
		"d.example": false,
	} {
		if got := r.Reaches(host(t, name)); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if got := r.Hosts(); !slices.Equal(got, []string{"a.example", "d.example"}) {
		t.Errorf("hosts %q", got)
	}
}

// FuzzRequestRule: a rule is read back as itself, what it allows it denies, and what it denies it denies in any case.
func FuzzRequestRule(f *testing.F) {
	f.Add("GET,HEAD api.example.org:443/v1/*", "api.example.org", "GET", "/v1/x")
	f.Add("tls://*.example.org/a/*/b", "x.example.org", "POST", "/a/%20/b")
	f.Add("DELETE *", "8.8.8.8", "DELETE", "/")
	f.Add("http://example.org", "example.org", "M-SEARCH", "/a/../b")
	f.Fuzz(func(t *testing.T, text, name, method, sent string) {
		allow, err := netrule.ParseRule(netrule.Allow, text)
		if err != nil {
			return
		}
		deny, err := netrule.ParseRule(netrule.Deny, allow.Text)
		if err != nil {
			t.Fatalf("%q is %q, and to deny %v", text, allow.Text, err)
		}
		if again, err := netrule.ParseRule(netrule.Allow, allow.Text); err != nil || again != allow {
			t.Fatalf("%q: %q is read as %+v, %v", text, allow.Text, again, err)
		}
		h, err := netrule.ParseHost(name)
		if err != nil || !allow.Narrow() {
			return
		}
		q := &netrule.Request{Method: method}
		if q.Path, err = httprule.ParsePath(sent); err != nil {
			q.NoPath = err.Error()
		}
		tt := netrule.Target{Host: h, Port: 443}
		if allow.Ports != (netrule.Ports{}) {
			tt.Port = allow.Ports.First
		}
		yes, no := set(t, allow).Limits(tt), set(t, allow, deny).Limits(tt)
		for _, p := range []netrule.Protocol{netrule.TLS, netrule.HTTP} {
			v, why := yes.Request(p, q, false)
			w, _ := no.Request(p, q, false)
			if v.Action == netrule.Allow && (w.Action != netrule.Deny || why != "" || q.NoPath != "" && allow.Path != "") {
				t.Fatalf("%q: %s %s %q: %+v, %+v", allow.Text, p, method, sent, v, w)
			}
			if v.Action == netrule.Allow && set(t, allow).Judge(tt).Action != netrule.Allow {
				if a, literal := h.Addr(); !literal {
					t.Fatalf("%q: %s is allowed and not reached (%v)", allow.Text, tt, a)
				}
			}
			if v.Action == netrule.Allow && q.NoPath == "" {
				loud := &netrule.Request{Method: method}
				if loud.Path, err = httprule.ParsePath(strings.ToUpper(sent)); err == nil {
					l := set(t, deny).Limits(tt)
					if v, _ := l.Request(p, loud, false); v.Action != netrule.Deny {
						t.Fatalf("%q: %q is not denied in capitals: %s", deny.Text, sent, fmt.Sprint(v))
					}
				}
			}
		}
	})
}
