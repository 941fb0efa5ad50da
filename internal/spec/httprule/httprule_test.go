package httprule_test

import (
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// A path that servers read in different ways has no canonical form.
func TestAmbiguousPaths(t *testing.T) {
	for _, sent := range []string{
		"*", "v1", "http://other.example.org/", "/a/../b", "/a/./b", "/..", "/.", "/a/..", "/a/%2e%2e/b", "/a/%2E./b", "/a/%2e/b", "/a/.../b",
		"/a//b", "//a", "//", "/a//", "/a/%2f/b", "/a%2fb", "/a%2Fb", "/a;b=c/d", "/a/..;/b", "/a/;/b", "/a%3b/d", `/a\b`, `/a/..\b`, "/a%5cb",
		"/a%5Cb", "/a%3fb", "/a%3Fb", "/a%23b", "/a#b", "/a?b", "/a%252fb", "/a%252e%252e/b", "/a%00b", "/a%0d%0ab", "/a%7fb", "/a%", "/a%2",
		"/a%zz", "/a%u002f", "/a%c0%afb", "/a%c0%ae/b", "/a%ff", "/ü", "/a b", "/a\tb", "/a\x00", "/a/. /b", "/a/%20../b", "/a/%20/b",
		"/" + strings.Repeat("a", 20<<10),
	} {
		p, err := httprule.ParsePath(sent)
		if err == nil {
			t.Errorf("%q is %v", sent, p)
		} else if !errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), sent) {
			t.Errorf("%q: %v", sent, err)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, path string
		matches       bool
	}{
		{"/*", "", true},
		{"/*", "/", true},
		{"/*", "/a/b", true},
		{"/", "/", true},
		{"/", "", true},
		{"/", "/a", false},
		{"/v1/*", "/v1/models", true},
		{"/v1/*", "/v1/a/b/", true},
		{"/v1/*", "/v1/", true},
		{"/v1/*", "/v1", false},
		{"/v1/*", "/v10", false},
		{"/v1/*", "/V1/models", false},
		{"/v1/*", "/v1x/models", false},
		{"/v1/*", "/a/v1/models", false},
		{"/v1/models", "/v1/models", true},
		{"/v1/models", "/v1/%6dodels", true},
		{"/v1/models", "/%76%31/models", true},
		{"/v1/models", "/v1/models/", false},
		{"/v1/models", "/v1/Models", false},
		{"/v1/models", "/v1/models.", false},
		{"/v1/models", "/v1/models%20", false},
		{"/v1/models", "/v1/models/x", false},
		{"/v1/models/", "/v1/models", false},
		{"/repos/*/issues", "/repos/a/issues", true},
		{"/repos/*/issues", "/repos/a/b/issues", false},
		{"/repos/*/issues", "/repos/issues", false},
		{"/repos/*", "/repos/%C3%BC", true},
		{"/ü", "/%c3%bc", true},
		{"/a%2fb", "/a", false}, // no pattern
	} {
		p, err := httprule.ParsePattern(test.pattern)
		if err != nil {
			if test.pattern != "/a%2fb" || !errdefs.IsInvalidArgument(err) {
				t.Error(err)
			}
			continue
		}
		if p.Text() != test.pattern {
			t.Errorf("%q is written %q", test.pattern, p.Text())
		}
		of, err := httprule.ParsePath(test.path)
		if err != nil {
			t.Error(err)
		}
		if p.Matches(of) != test.matches {
			t.Errorf("%s and %s: matches %t", test.pattern, test.path, p.Matches(of))
		}
	}
	for _, bad := range []string{
		"", "v1", "*", "/v1/a*", "/**", "/a//b", "/a/../b", "/a/.", "/a;b", "/a?b", "/a#b", `/a\b`, "/a b", "/a\n",
		"/a%20",
	} {
		if p, err := httprule.ParsePattern(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q is the pattern %v, %v", bad, p, err)
		}
	}
}

// What denies is compared as the server that looks least closely would.
func TestCovers(t *testing.T) {
	for _, c := range []struct{ pattern, yes, no string }{
		{"/admin", "/admin /Admin /ADMIN/ /%41dmin /admin. /admin%20 /admin./", "/admins /admin/x / /x/admin"},
		{"/admin/*", "/admin /admin/ /admin/x /ADMIN/x/y /admin./x", "/ /administrator /x/admin"},
		{"/a/*/c", "/a/b/c /A/B/C /a/b/c/", "/a/c /a/b/b/c /a/b"},
		{"/*", "/ /a /a/b", ""},
		{"/", "/", "/a"},
		{"/a/", "/a /a/ /A", "/a/b /"},
		{"/k", "/%E2%84%AA", ""}, // the sign for kelvin, which some take for k
	} {
		p, err := httprule.ParsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for want, all := range map[bool]string{true: c.yes, false: c.no} {
			for text := range strings.FieldsSeq(all) {
				of, err := httprule.ParsePath(text)
				if err != nil || p.Covers(of) != want {
					t.Errorf("%s covers %s: %t, %v", c.pattern, text, p.Covers(of), err)
				}
			}
		}
	}
}

func TestInject(t *testing.T) {
	for text, want := range map[string]string{
		"header:x-api-key":                         "header:X-Api-Key",
		"header:X-Api-Key: {}":                     "header:X-Api-Key",
		"header:authorization:Bearer {}":           "header:Authorization: Bearer {}",
		"header:Authorization: Token token=\"{}\"": "header:Authorization: Token token=\"{}\"",
		"header:Cookie: session={}; a=b":           "header:Cookie: session={}; a=b",
		"query:api_key":                            "query:api_key",
		"basic":                                    "basic",
		"basic:":                                   "basic:",
		"basic:me@example.org":                     "basic:me@example.org",
	} {
		i, err := httprule.ParseInject(text)
		if err != nil || i.Text() != want {
			t.Errorf("%q is %q, %v", text, i.Text(), err)
		}
	}
	for _, text := range []string{
		"", "header", "header:", "header:X Y", "header::authority: {}", "header:X-Key: ", "header:X-Key: none", "header:X-Key: {}{}",
		"header:X-Key: a\r\nHost: b {}", "header:X-Key: {}\x00", "header:X-Key: {} ", "header:Host", "header:host: {}", "header:Content-Length",
		"header:Transfer-Encoding: {}", "header:Transfer_Encoding: {}", "header:Connection: {}", "header:TE", "header:Trailer", "header:Upgrade",
		"header:Proxy-Authorization", "header:Expect", "header:Keep-Alive", "query", "query:", "query:a&b", "query:a=b", "query:a;b", "query:a b",
		"query:a%20b", "basic:a:b", "basic:a\nb", "body:x", "Header:X-Key", "secret-itself", "header:" + strings.Repeat("a", 65),
	} {
		if i, err := httprule.ParseInject(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q is %+v, %v", text, i, err)
		}
	}
}

func TestSending(t *testing.T) {
	got, err := httprule.Sending{
		Inject: "header:x-key", Methods: []string{"post", "GET", "GET"}, Paths: []string{"/b", "/a/*", "/b"},
	}.Canonical()
	if err != nil || got.Inject != "header:X-Key" || !slices.Equal(got.Methods, []string{"GET", "POST"}) ||
		!slices.Equal(got.Paths, []string{"/a/*", "/b"}) {
		t.Errorf("%+v, %v", got, err)
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = "/" + strings.Repeat("a", i+1)
	}
	for _, s := range []httprule.Sending{
		{Methods: []string{"GET,POST"}},
		{Methods: []string{""}},
		{Methods: []string{"CONNECT"}},
		{Methods: []string{"TRACE"}},
		{Inject: "query:a", Pointers: []string{"/a"}},
		{Pointers: []string{"a"}},
		{Pointers: []string{""}},
		{Pointers: []string{"/~2"}},
		{Pointers: []string{"/a~"}},
		{Paths: many},
		{Pointers: many},
		{Pointers: []string{strings.Repeat("/a", 17)}},
	} {
		if c, err := s.Canonical(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v is %+v, %v", s, c, err)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "/a/b", "/a/%2e%2e/b", "/%C3%BC", "/a%252fb", "/a;b"} {
		f.Add(s, "/a/*")
	}
	f.Fuzz(func(t *testing.T, sent, pattern string) {
		of, err := httprule.ParsePath(sent)
		if err != nil || sent == "" {
			return
		}
		plain, err := url.PathUnescape(sent)
		if err != nil {
			t.Fatalf("%q has a path, and net/url says %v", sent, err)
		}
		if clean := path.Clean(plain); clean != plain && clean+"/" != plain {
			t.Errorf("%q is cleaned to %q", plain, clean)
		}
		if strings.ContainsAny(plain, "\\;?#\x00\r\n") {
			t.Errorf("%q has a separator", plain)
		}
		if strings.Count(plain, "/") != strings.Count(sent, "/") {
			t.Errorf("%q has other segments than %q", sent, plain)
		}
		if again, err := url.PathUnescape(plain); err == nil && again != plain {
			t.Errorf("%q is encoded twice", sent)
		}
		if p, err := httprule.ParsePattern(pattern); err == nil && !strings.Contains(pattern, "*") && p.Matches(of) != (plain == pattern) {
			t.Errorf("%q matches %q: %t", pattern, sent, p.Matches(of))
		}
		if all, _ := httprule.ParsePattern("/*"); !all.Matches(of) || !all.Covers(of) {
			t.Errorf("/* does not match %q", sent)
		}
		if p, err := httprule.ParsePattern(pattern); err == nil && p.Matches(of) && !p.Covers(of) {
			t.Errorf("%q matches %q and does not cover it", pattern, sent)
		}
	})
}

func FuzzWritten(f *testing.F) {
	for _, s := range []string{"/v1/*", "header:Authorization: Bearer {}", "query:key", "basic", "basic:me", "/a~1b/0", "/*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := httprule.ParsePattern(text); err == nil {
			if again, err := httprule.ParsePattern(p.Text()); err != nil || again.Text() != p.Text() || p.Text() != text {
				t.Errorf("pattern %q: %q, %v", text, again.Text(), err)
			}
		}
		if p, err := httprule.ParsePointer(text); err == nil && p.Text() != text {
			t.Errorf("pointer %q: %q", text, p.Text())
		}
		i, err := httprule.ParseInject(text)
		if err != nil {
			return
		}
		if again, err := httprule.ParseInject(i.Text()); err != nil || again != i {
			t.Errorf("inject %q: %+v is not %+v: %v", text, again, i, err)
		}
		if i.Kind == httprule.Header && textproto.CanonicalMIMEHeaderKey(i.Name) != i.Name {
			t.Errorf("inject %q: %q is not canonical", text, i.Name)
		}
		if strings.ContainsAny(i.Before+i.After+i.Name, "\r\n\x00") {
			t.Errorf("inject %q has a line end", text)
		}
	})
}

// A field is known in every spelling that a server takes for it, and others are not.
func TestMeaningOf(t *testing.T) {
	for m, all := range map[httprule.Meaning][]string{
		httprule.NamesMethod: {
			"X-HTTP-Method-Override", "x_http_method_override", "X.Http~Method!Override", "X-Method-Override", "X-HTTP-Method",
			"Method-Override", "X-Rewrite-Method", "X-HTTP-Verb",
		},
		httprule.NamesPath: {
			"X-Original-URL", "X_Rewrite_URL", "x-forwarded-uri", "X-Envoy-Original-Path", "X-Amz-Copy-Source", "x-ms-copy-source", "X-Copy-From",
		},
		httprule.NamesDestination: {"Destination", "DESTINATION"},
		httprule.NoMeaning: {
			"", "X", "X-", "Accept", "Access-Control-Request-Method", "X-Requested-With", "X-Destination", "Location", "X-HTTP-Method-Overrides",
			strings.Repeat("X-HTTP-METHOD", 10),
		},
	} {
		for _, name := range all {
			if got := httprule.MeaningOf(name); got != m {
				t.Errorf("%q has the meaning %d, not %d", name, got, m)
			}
		}
	}
	for _, name := range []string{"X-Api-Key", "x_api_key", "X.API!KEY"} {
		if httprule.Field(name) != "X-API-KEY" || !httprule.Same(name, "X-API-KEY") {
			t.Errorf("%q is %q", name, httprule.Field(name))
		}
	}
	if n := testing.AllocsPerRun(100, func() { httprule.MeaningOf("X-Http-Method-Override") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
