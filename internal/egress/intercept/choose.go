package intercept

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// chosen are the secrets that one request is sent with.
type chosen struct {
	swap []*secret // their placeholders are replaced
	put  []*secret // they are injected
}

// choose returns the secrets of a request. why says why a request is refused: it can be read in two ways, and in one of
// them it would be another one than the secrets are for. It has only canonical texts.
func (x *exchange) choose(r *http.Request) (c chosen, why string) {
	var byMethod, byPath bool
	for _, s := range x.secrets {
		byMethod = byMethod || s.sent.Limit.ByMethod()
		byPath = byPath || s.sent.Limit.ByPath()
	}
	of, why := clear(r, byMethod, byPath)
	if why != "" {
		return c, "a request to " + x.t.String() + " is not allowed: " + why
	}
	for _, s := range x.secrets {
		switch {
		case !s.sent.Limit.Selects(r.Method, of):
		case s.sent.Inject == nil:
			c.swap = append(c.swap, s)
		default:
			for _, o := range c.put {
				if o.sent.Inject.Place() == s.sent.Inject.Place() {
					return c, fmt.Sprintf("a request to %s is not allowed: the secrets %s and %s are both for %s; limit one of them to other paths",
						x.t, o.name, s.name, s.sent.Inject.Place())
				}
			}
			c.put = append(c.put, s)
		}
	}
	return c, ""
}

// clear returns the path of a request that is judged by it, and says why one cannot be judged by method or path.
func clear(r *http.Request, byMethod, byPath bool) (of httprule.Path, why string) {
	if byMethod {
		why = noMethod(r)
	}
	if byPath && why == "" {
		of, why = path(r)
	}
	return of, why
}

// noMethod says why some servers take another method than that of a request, "" if none does.
func noMethod(r *http.Request) string {
	for name := range r.Header {
		if method, _ := httprule.Overrides(name); method {
			return "a header of it names another method, which some servers take"
		}
	}
	if namesMethod(r.URL.RawQuery) {
		return "its query has a parameter _method, which some servers take for the method"
	}
	return ""
}

// path returns the path of a request, and says why some servers take another one, "" if none does.
func path(r *http.Request) (of httprule.Path, why string) {
	for name := range r.Header {
		if _, path := httprule.Overrides(name); path {
			return of, "a header of it names another path, which some servers take"
		}
	}
	of, err := httprule.ParsePath((&url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath}).EscapedPath())
	if err != nil {
		return of, err.Error()
	}
	return of, ""
}

// namesMethod reports whether a query has a parameter _method, in a reading of some server.
func namesMethod(query string) bool {
	for part := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, _, _ := strings.Cut(part, "=")
		for range 2 { // some decode twice
			if plain, err := url.QueryUnescape(name); err == nil {
				name = plain
			}
		}
		if parameter(name) == "_method" {
			return true
		}
	}
	return false
}

// vacate removes what the program sent in the places of secrets that are injected, in any spelling.
func (q *request) vacate(out *http.Request) {
	var fields []string
	for _, s := range q.chosen.put {
		if i := s.sent.Inject; i.Kind != httprule.Query {
			fields = append(fields, httprule.Field(i.Field()))
		}
	}
	if len(fields) > 0 {
		dropFields(out.Header, fields)
		if len(out.Trailer) > 0 && out.Body != nil {
			dropFields(out.Trailer, fields)
			out.Body = &trailed{out.Body, out.Trailer, fields}
		}
	}
}

// put injects the secrets that were chosen.
func (q *request) put(out *http.Request) {
	used := map[string]bool{}
	for _, s := range q.chosen.put {
		v := s.value.Reveal()
		switch i := s.sent.Inject; i.Kind {
		case httprule.Header:
			out.Header[i.Name] = []string{i.Before + v + i.After}
		case httprule.Query:
			if out.URL.RawQuery != "" {
				out.URL.RawQuery += "&"
			}
			out.URL.RawQuery += i.Name + "=" + url.QueryEscape(v)
		case httprule.Basic:
			out.Header["Authorization"] = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(s.login()))}
		}
		used[s.name] = true
	}
	q.sent(used)
}

// login is the USER:PASSWORD of a secret that is injected as basic authentication.
func (s *secret) login() string {
	if s.sent.Inject.Whole {
		return s.value.Reveal()
	}
	return s.sent.Inject.Name + ":" + s.value.Reveal()
}

// dropFields removes the fields of a header that are those named, as httprule.Field has them.
func dropFields(h http.Header, fields []string) {
	for name := range h {
		if slices.Contains(fields, httprule.Field(name)) {
			delete(h, name)
		}
	}
}

// trailed is the body of a request whose trailers must not have some fields: they arrive behind the body.
type trailed struct {
	io.ReadCloser
	trailer http.Header
	fields  []string
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		dropFields(t.trailer, t.fields)
	}
	return n, err
}

// query returns the query of a request without the parameters that stand where secrets are put. why says why it is
// refused: some servers would find such a parameter in it all the same.
func (c *chosen) query(raw string) (kept, why string) {
	var names []string
	for _, s := range c.put {
		if s.sent.Inject.Kind == httprule.Query {
			names = append(names, parameter(s.sent.Inject.Name))
		}
	}
	if len(names) == 0 {
		return raw, ""
	}
	if strings.Contains(raw, ";") {
		return "", "its query has a ;, at which some servers end a parameter"
	}
	var all []string
	for part := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(name)
		if err == nil {
			_, err = url.QueryUnescape(value)
		}
		if err != nil {
			return "", "its query has a percent sign that encodes nothing"
		}
		if twice, err := url.QueryUnescape(plain); err != nil || twice != plain && strings.Contains(plain, "%") {
			return "", "its query has a parameter whose name has a percent sign, which some servers decode twice"
		}
		if strings.ContainsFunc(plain, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return "", "its query has a parameter with a control character in its name"
		}
		if part != "" && !slices.Contains(names, parameter(plain)) {
			all = append(all, part)
		}
	}
	return strings.Join(all, "&"), ""
}

// parameter is the name of a query parameter in the one form that servers tell apart: some ignore letter case, and some
// take name[x] for name, and "." and spaces for "_".
func parameter(name string) string {
	name, _, _ = strings.Cut(strings.TrimSpace(name), "[")
	return strings.ToLower(strings.NewReplacer(".", "_", " ", "_").Replace(name))
}

// hidden returns the texts by which a host may repeat a secret that is injected, longest first.
func (s *secret) hidden() (texts []string) {
	v := s.value.Reveal()
	texts = append(texts, v, url.QueryEscape(v), url.PathEscape(v), escaped(v))
	if i := s.sent.Inject; i != nil && i.Kind == httprule.Basic {
		login := s.login()
		texts = append(texts, base64.StdEncoding.EncodeToString([]byte(login)), base64.RawStdEncoding.EncodeToString([]byte(login)))
		if _, password, _ := strings.Cut(login, ":"); len(password) >= MinLength {
			texts = append(texts, password)
		}
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(texts)
}
