package intercept

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// ServeHTTP serves one request.
func (x *exchange) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !x.enter() {
		panic(http.ErrAbortHandler)
	}
	defer x.leave()
	takes := int64(room.Request) + 2*bytesOf(r.Header)
	if !x.way.Room.Take(takes) {
		x.refuse(full)
		say(w, r, http.StatusServiceUnavailable, Refusal{Why: full})
		return
	}
	defer x.way.Room.Give(takes)
	if x.trouble != nil {
		w.Header().Set("Connection", "close")
		say(w, r, http.StatusBadGateway, Refusal{Why: text(x.trouble)})
		return
	}
	if status, why := x.judge(r); status != 0 {
		x.refuse(why)
		say(w, r, status, Refusal{Why: why})
		return
	}
	if x.way.Plain && x.way.Judged {
		WithoutH2C(r)
	}
	if x.way.Admit != nil {
		done, no := x.way.Admit(Asked(r))
		if no != nil {
			say(w, r, http.StatusForbidden, *no)
			return
		}
		defer done()
	}
	q := &request{x: x, mask: x.mask}
	var why string
	if q.chosen, why = x.choose(r); why == "" {
		if q.query, why = q.chosen.query(r.URL.RawQuery); why != "" {
			why = "a request to " + x.t.String() + " is not allowed: " + why
		}
	}
	if why != "" {
		x.refuse(why)
		say(w, r, http.StatusForbidden, Refusal{Why: why})
		return
	}
	(&httputil.ReverseProxy{
		Rewrite: q.rewrite, ModifyResponse: q.response, ErrorHandler: q.failed,
		Transport: x.rt, FlushInterval: -1, BufferPool: buffers, ErrorLog: silent,
	}).ServeHTTP(&answer{w, q}, r)
}

// bytesOf is how long the fields of a header are.
func bytesOf(h http.Header) (n int64) {
	for name, values := range h {
		for _, v := range values {
			n += int64(len(name) + len(v))
		}
	}
	return n
}

// say answers a request in egress's own name, as JSON if it asks for that.
func say(w http.ResponseWriter, r *http.Request, status int, no Refusal) {
	kind, body := proxy.RefusalBody(strings.Join(r.Header["Accept"], ","), no.Why, no.Remedy)
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) //nolint:gosec // plain text or JSON, which a browser does not take for another
}

// Asked is what rules look at of a request.
func Asked(r *http.Request) *netrule.Request {
	q := &netrule.Request{Method: r.Method, NoMethod: noMethod(r)}
	q.Path, q.Destination, q.NoPath = paths(r)
	if q.Upgrade = strings.Join(r.Header["Upgrade"], ","); q.Upgrade == "" && r.ProtoMajor == 1 {
		for token := range strings.SplitSeq(strings.Join(r.Header["Connection"], ","), ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				q.Upgrade = "none"
			}
		}
	}
	return q
}

// WithoutH2C has a request of HTTP/1.1 without TLS that offers to go on in HTTP/2 (RFC 7540, 3.2) go on as it is, as a server
// without that does. Java's client offers it with every first request. What offers another protocol too is left.
func WithoutH2C(r *http.Request) {
	offers := r.Header["Upgrade"]
	if r.ProtoMajor != 1 || len(offers) == 0 {
		return
	}
	for token := range strings.SplitSeq(strings.Join(offers, ","), ",") {
		if !strings.EqualFold(strings.TrimSpace(token), "h2c") {
			return
		}
	}
	delete(r.Header, "Upgrade")
	delete(r.Header, "Http2-Settings")
	var kept []string
	for token := range strings.SplitSeq(strings.Join(r.Header["Connection"], ","), ",") {
		token = strings.TrimSpace(token)
		if token != "" && !strings.EqualFold(token, "upgrade") && !strings.EqualFold(token, "http2-settings") {
			kept = append(kept, token)
		}
	}
	delete(r.Header, "Connection")
	if len(kept) > 0 {
		r.Header["Connection"] = []string{strings.Join(kept, ", ")}
	}
}

// Refuse answers a request that is not admitted.
func Refuse(w http.ResponseWriter, r *http.Request, no *Refusal) {
	say(w, r, http.StatusForbidden, *no)
}

// judge returns the status with which a request is refused and why, or 0. The reason has only canonical texts.
func (x *exchange) judge(r *http.Request) (status int, why string) {
	switch r.Method {
	case http.MethodConnect:
		return http.StatusMethodNotAllowed, "a CONNECT inside the connection to " + x.t.String() + " is not allowed"
	case http.MethodTrace:
		return http.StatusMethodNotAllowed, "a TRACE to " + x.t.String() + " is not allowed: the host would return the secret"
	}
	named := append([]string{r.Host}, r.Header["Host"]...) // of HTTP/2, beside :authority
	if r.URL.Host != "" {
		named = append(named, r.URL.Host)
	}
	for _, n := range named {
		if !x.isTarget(n) {
			return http.StatusMisdirectedRequest, "a request for another host than " + x.t.String() + " is not allowed on its connection"
		}
	}
	if r.URL.User != nil || r.URL.Scheme != "" && r.URL.Scheme != x.scheme {
		return http.StatusBadRequest, "a request to " + x.t.String() + " has a URL that is not one of " + x.scheme
	}
	return 0, ""
}

// isTarget reports whether the authority of a request is the target. The port may be left out.
func (x *exchange) isTarget(authority string) bool {
	if t, err := netrule.ParseTarget(authority); err == nil {
		return t == x.t
	}
	h, err := netrule.ParseHost(authority)
	return err == nil && h == x.t.Host
}

// request is one request and its response.
type request struct {
	x      *exchange
	mask   *replacer
	chosen chosen
	query  string // without what stands where secrets are put
}

// forwarding are the fields that ReverseProxy removes and that are the program's own.
var forwarding = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite makes the request that the host gets.
func (q *request) rewrite(p *httputil.ProxyRequest) {
	in := p.In.URL
	p.Out.URL = &url.URL{
		Scheme: q.x.scheme, Host: q.x.t.String(), Path: in.Path, RawPath: in.RawPath, RawQuery: q.query, ForceQuery: in.ForceQuery,
	}
	p.Out.Host = q.x.host
	// The values arrive behind the body, in this map.
	p.Out.Trailer = p.In.Trailer
	for _, f := range forwarding {
		if values, ok := p.In.Header[f]; ok {
			p.Out.Header[f] = slices.Clone(values)
		}
	}
	q.vacate(p.Out)
	q.swap(p.Out.Header)
	q.swapBody(p.Out)
	q.put(p.Out)
}

// swap replaces placeholders in the values of a request's headers.
func (q *request) swap(h http.Header) {
	used := map[string]bool{}
	for name, values := range h {
		r := &replacer{}
		for _, s := range q.chosen.swap {
			if s.in(name) {
				r.add(s.name, s.placeholder, s.value.Reveal())
			}
		}
		for i, v := range values {
			values[i] = r.text(v, func(name string) { used[name] = true })
			if name == "Authorization" && values[i] == v {
				values[i] = q.basic(v, r, used)
			}
		}
	}
	q.sent(used)
}

// sent notes the secrets that the host gets.
func (q *request) sent(used map[string]bool) {
	if len(used) == 0 {
		return
	}
	q.x.mu.Lock()
	defer q.x.mu.Unlock()
	for name := range used {
		q.x.used[name] = true
	}
}

// basic replaces placeholders inside the credentials of Basic (RFC 7617). A host that echoes these is masked too.
func (q *request) basic(v string, r *replacer, used map[string]bool) string {
	const scheme = "Basic "
	if len(v) < len(scheme) || !strings.EqualFold(v[:len(scheme)], scheme) {
		return v
	}
	given := strings.TrimLeft(v[len(scheme):], " ")
	encoding := base64.StdEncoding
	plain, err := encoding.DecodeString(given)
	if err != nil {
		encoding = base64.RawStdEncoding
		if plain, err = encoding.DecodeString(given); err != nil {
			return v
		}
	}
	swapped := r.text(string(plain), func(name string) { used[name] = true })
	if swapped == string(plain) {
		return v
	}
	secret := encoding.EncodeToString([]byte(swapped))
	q.mask = &replacer{append(slices.Clone(q.x.mask.pairs), pair{"", secret, given})}
	return v[:len(scheme)] + secret
}

// failed answers a request that the host did not.
func (q *request) failed(w http.ResponseWriter, r *http.Request, err error) {
	if errdefs.IsPermissionDenied(err) {
		why := q.x.t.String() + " may no longer be reached"
		q.x.refuse(why)
		say(w, r, http.StatusForbidden, Refusal{Why: why})
		return
	}
	say(w, r, http.StatusBadGateway, Refusal{Why: "the request to " + q.x.t.String() + " failed: the host cannot be connected, closed the " +
		"connection or sent what is no HTTP response, or the request's body is not complete"})
}
