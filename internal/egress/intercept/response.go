package intercept

import (
	"io"
	"mime"
	"net/http"
	"strings"
)

// answer masks the headers of every response, interim ones included.
type answer struct {
	http.ResponseWriter
	q *request
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.q.mask.header(a.Header())
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// response masks what is not written by way of answer: the body, trailers, and the head of an upgrade.
func (q *request) response(res *http.Response) error {
	q.mask.header(res.Header)
	res.Status = q.mask.text(res.Status, ignore)
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	b := &body{ReadCloser: res.Body, res: res, mask: q.mask, plain: masked(res.Header)}
	if b.plain && res.ContentLength >= 0 && res.Body != http.NoBody && !q.mask.same() {
		res.ContentLength = -1
		res.Header.Del("Content-Length")
	}
	res.Body = b
	return nil
}

// masked reports whether a body is searched for secrets.
func masked(h http.Header) bool {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return false
	}
	if h.Get("Content-Type") == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (strings.HasPrefix(kind, "text/") || kind == "application/json" || kind == "application/x-ndjson" ||
		strings.HasSuffix(kind, "+json"))
}

// body is the body of a response. It gives on at once what it gets, but for an end that may be the beginning of a
// secret.
type body struct {
	io.ReadCloser
	res   *http.Response
	mask  *replacer
	plain bool // it is masked

	got   []byte // not yet searched: the beginning of a secret
	ready []byte
	err   error // after ready
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		n, err := b.ReadCloser.Read(p)
		if err != nil {
			b.err = err
			b.mask.header(b.res.Trailer)
		}
		if !b.plain {
			return n, err
		}
		if n == 0 && err == nil {
			return 0, nil
		}
		all := p[:n]
		if len(b.got) > 0 {
			all = append(b.got, all...)
		}
		out, rest := b.mask.bytes(all, err != nil, ignore)
		b.got = append([]byte(nil), rest...)
		if len(out) > 0 && &out[0] == &p[0] {
			return len(out), nil // what is left of err comes with the next call
		}
		b.ready = out
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}
