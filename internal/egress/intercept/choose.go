package intercept

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
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
	of, to, why := clear(r, byMethod, byPath)
	if why != "" {
		return c, "a request to " + x.t.String() + " is not allowed: " + why
	}
	for _, s := range x.secrets {
		switch {
		case !s.sent.Limit.Selects(r.Method, of), to != nil && !s.sent.Limit.Selects(r.Method, *to):
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

// clear returns the path and the destination of a request that is judged by them, and says why one cannot be judged by method or
// path.
func clear(r *http.Request, byMethod, byPath bool) (of httprule.Path, to *httprule.Path, why string) {
	if byMethod {
		why = noMethod(r)
	}
	if byPath && why == "" {
		of, to, why = paths(r)
	}
	return of, to, why
}

// has reports whether a request has a field of a meaning, or announces one behind its body.
func has(r *http.Request, m httprule.Meaning) bool {
	for _, h := range []http.Header{r.Header, r.Trailer} {
		for name := range h {
			if httprule.MeaningOf(name) == m {
				return true
			}
		}
	}
	return false
}

// noMethod says why some servers take another method than that of a request, "" if none does.
func noMethod(r *http.Request) string {
	if has(r, httprule.NamesMethod) {
		return "a header of it names another method, which some servers take"
	}
	if NamesMethod(r.URL.RawQuery) {
		return "its query has a parameter _method, which some servers take for the method"
	}
	return ""
}

// paths returns the path of a request and its destination, nil without one. It says why some servers take other ones, "" if none
// does.
func paths(r *http.Request) (of httprule.Path, to *httprule.Path, why string) {
	if has(r, httprule.NamesPath) {
		return of, nil, "a header of it names another path, which some servers take"
	}
	of, err := httprule.ParsePath((&url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath}).EscapedPath())
	if err == nil {
		to, err = destination(r)
	}
	if err != nil {
		return of, nil, err.Error()
	}
	return of, to, ""
}

// destination returns the path that a request names as its destination, nil if it names none.
func destination(r *http.Request) (*httprule.Path, error) {
	if !has(r, httprule.NamesDestination) {
		return nil, nil //nolint:nilnil // most requests have none
	}
	values := r.Header["Destination"]
	for name := range r.Header {
		if name != "Destination" && httprule.MeaningOf(name) == httprule.NamesDestination {
			values = nil // in another spelling
		}
	}
	if len(values) != 1 || len(r.Trailer) > 0 && has(&http.Request{Header: r.Trailer}, httprule.NamesDestination) {
		return nil, errDestination
	}
	path := values[0]
	if scheme, rest, whole := strings.Cut(path, "://"); whole {
		at := strings.IndexByte(rest, '/')
		if at < 0 || !sameHost(scheme, rest[:at], r.Host) {
			return nil, errDestination
		}
		path = rest[at:]
	} else if !strings.HasPrefix(path, "/") {
		return nil, errDestination
	}
	p, err := httprule.ParsePath(path)
	if err != nil {
		return nil, fmt.Errorf("its destination: %w", err)
	}
	return &p, nil
}

var errDestination = errors.New("its field Destination is not one path of the same host")

// sameHost reports whether the authority of a URL is that of a request.
func sameHost(scheme, authority, host string) bool {
	usual := map[string]string{"http": ":80", "https": ":443"}[strings.ToLower(scheme)]
	if usual == "" {
		return false
	}
	a, err := netrule.ParseTarget(strings.TrimSuffix(authority, usual) + usual)
	if err != nil {
		a, err = netrule.ParseTarget(authority)
	}
	b, berr := netrule.ParseTarget(strings.TrimSuffix(host, usual) + usual)
	if berr != nil {
		b, berr = netrule.ParseTarget(host)
	}
	return err == nil && berr == nil && a == b
}

// NamesMethod reports whether a query has a parameter _method, in a reading of some server.
func NamesMethod(query string) bool {
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
	}
	late(out, fields)
}

// Late has what comes behind the body of a request not name another method or path: it was judged without it.
func Late(out *http.Request) { late(out, nil) }

// late drops fields behind the body too.
func late(out *http.Request, fields []string) {
	if len(out.Trailer) > 0 && out.Body != nil {
		dropFields(out.Trailer, fields)
		out.Body = &trailed{out.Body, out.Trailer, fields}
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
		for name := range t.trailer {
			if httprule.MeaningOf(name) != httprule.NoMeaning {
				delete(t.trailer, name)
			}
		}
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
