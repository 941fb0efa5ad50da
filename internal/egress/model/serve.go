package model

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// ServeHTTP serves one request. Who calls it has checked that the request is for this API's name.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{h: h, w: w, r: r, body: &body{room: h.cfg.Room}, control: http.NewResponseController(w)}
	if !h.cfg.Room.Take(room.ModelCall) {
		w.Header().Set("Connection", "close")
		h.say(w, noRoom)
		return
	}
	defer h.cfg.Room.Give(room.ModelCall)
	defer func() { x.body.free() }()
	// net/http reads what is left of a body before it answers, as long as this lasts.
	_ = x.control.SetReadDeadline(time.Now().Add(h.cfg.Slow))
	if no := x.understand(); no != nil {
		w.Header().Set("Connection", "close")
		h.say(w, no)
		return
	}
	_ = x.control.SetReadDeadline(time.Time{}) // nothing more comes but the end of the connection
	lease, err := h.cfg.Reserve(r.Context(), Request{x.body.model, x.body.size})
	if err != nil {
		h.say(w, refusal(err))
		return
	}
	defer func() { // also if the rest panics
		if x.sent { // only now, so that nobody waits for it
			x.told.Sent, x.told.SentBytes = x.body.digest(), x.body.size
		}
		lease.Done(x.used, x.told)
	}()
	x.progress = lease.Progress
	x.serve()
}

// understand reads the request, nil if it is one to reserve for.
func (x *exchange) understand() *problem {
	h, r := x.h, x.r
	var status int
	switch x.call, status = h.find(r); {
	case status == http.StatusNotFound:
		return &problem{kind: unknown, text: "this path is not served"}
	case status == http.StatusMethodNotAllowed:
		return &problem{kind: badMethod, text: "this path is not served for this method"}
	case r.URL.RawQuery != "" && intercept.NamesMethod(r.URL.RawQuery):
		return &problem{kind: invalid, text: "the query has a parameter _method, which some servers take for the method; leave it out"}
	case !x.call.model && r.ContentLength != 0:
		return &problem{kind: invalid, text: "this request takes no body"}
	case !x.call.model:
		return nil
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return &problem{kind: invalid, text: "the body of the request is compressed; send it as it is"}
	}
	return x.readBody()
}

// exchange is a request and its response.
type exchange struct {
	h       *Handler
	w       http.ResponseWriter
	r       *http.Request
	call    call
	body    *body
	control *http.ResponseController
	used    Usage
	told    Call
	// progress is Lease.Progress.
	progress func(Usage)
	// sent: the host got the request, or a part of it.
	sent bool
}

// The causes for which an exchange is ended.
var (
	errIdle = errors.New("nothing came from the host of the model for too long")
	errLong = errors.New("the request has taken too long")
)

// serve sends the request and passes the response on.
func (x *exchange) serve() {
	h, began := x.h, time.Now()
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	longest := time.AfterFunc(h.cfg.Longest, func() { cancel(errLong) })
	defer longest.Stop()
	idle := time.AfterFunc(h.cfg.Idle, func() { cancel(errIdle) })
	defer idle.Stop()

	var wrote atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	size := x.body.size
	res, err := h.cfg.Transport.RoundTrip(x.request(ctx))
	x.sent = x.call.model && (err == nil || wrote.Load())
	if err == nil && ctx.Err() != nil { // the host may answer because its connection is being closed
		_ = res.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if x.call.counted && wrote.Load() { // it may be at work
			x.used = estimate(x.used.Usage, size, 0, time.Since(began))
		}
		h.say(x.w, x.failed(ctx, err))
		return
	}
	defer res.Body.Close()
	x.told.Status = res.StatusCode
	m := newMeter(h.cfg.API, x.body.unasked, res.Header)
	if no := unfit(res); no != nil {
		if x.call.counted {
			x.used = m.used(size, time.Since(began))
		}
		h.say(x.w, no)
		return
	}
	x.header(res, m)
	defer func() {
		switch {
		case !x.call.counted, res.StatusCode >= 400 && !m.told:
		default:
			x.used = m.used(size, time.Since(began))
		}
	}()
	told := began
	arrived := func() {
		idle.Reset(h.cfg.Idle)
		if now := time.Now(); x.progress != nil && x.call.counted && now.Sub(told) >= progressEvery {
			told = now
			x.progress(m.soFar(size, now.Sub(began)))
		}
	}
	if !x.copy(ctx, res.Body, m, arrived) || ctx.Err() != nil {
		panic(http.ErrAbortHandler) // the program sees that the response is not complete
	}
}

// progressEvery is how often Lease.Progress is told, at most.
const progressEvery = time.Second

// request makes the request that the host gets.
func (x *exchange) request(ctx context.Context) *http.Request {
	h := x.h
	to := *h.base
	to.Path, to.RawQuery = h.upstream(x.r.URL.Path), x.r.URL.RawQuery
	out := (&http.Request{
		Method: x.call.method, URL: &url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path, RawQuery: to.RawQuery}, Host: to.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: x.r.Header.Clone(),
	}).WithContext(ctx)
	named := out.Header["Connection"]
	clean(out.Header, named, notSent)
	if x.call.model {
		out.Header.Set("Content-Type", "application/json")
		out.ContentLength, out.Body = x.body.size, x.body.reader()
		out.GetBody = func() (io.ReadCloser, error) { return x.body.reader(), nil }
	}
	out.Header.Set("Accept-Encoding", "identity") // what is compressed tells no usage
	switch h.cfg.API {
	case Anthropic:
		out.Header.Set("X-Api-Key", h.cfg.Key.Reveal())
	default:
		out.Header.Set("Authorization", "Bearer "+h.cfg.Key.Reveal())
	}
	return out
}

// hop are the fields of one connection (RFC 9110, 7.6.1).
var hop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade",
}

// notSent are fields of a request that the host does not get: other keys, who pays, and what is this handler's to say. Neither
// does it get those that name another method or path.
var notSent = []string{
	"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", "Openai-Organization", "Openai-Project", "X-Goog-User-Project",
	"Content-Length", "Content-Type", "Content-Encoding", "Accept-Encoding", "Expect", "Host", "Range",
	"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip",
}

// notTaken are fields of a response that the program does not get.
var notTaken = []string{"Set-Cookie", "Alt-Svc", "Location", "Strict-Transport-Security", "Content-Encoding"}

// clean removes the fields of a connection, those that it names, others and those that name another method or path, in any
// spelling that some server takes for them.
func clean(header http.Header, named, others []string) {
	for _, list := range named {
		for name := range strings.SplitSeq(list, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	for name := range header {
		if among(name, hop) || among(name, others) || httprule.MeaningOf(name) != httprule.NoMeaning {
			delete(header, name)
		}
	}
}

func among(name string, all []string) bool {
	return slices.ContainsFunc(all, func(other string) bool { return httprule.Same(name, other) })
}

// failed is the problem of a request that got no response.
func (x *exchange) failed(ctx context.Context, err error) *problem {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errIdle), errors.Is(cause, errLong):
		return &problem{kind: broken, text: cause.Error()}
	case errdefs.IsPermissionDenied(err):
		return &problem{kind: forbidden, text: text(plain(err))}
	case errdefs.IsUnavailable(err), errdefs.IsNotFound(err):
		return &problem{kind: broken, text: text(plain(err))}
	}
	return &problem{kind: broken, text: fmt.Sprintf("%s closed the connection or sent what is no HTTP response", x.h.base.Host)}
}

// plain strips what net/http adds to an error of a connection.
func plain(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// unfit is the problem of a response that the program does not get, nil if it does.
func unfit(res *http.Response) *problem {
	if res.StatusCode >= 300 && res.StatusCode < 400 || res.StatusCode == http.StatusSwitchingProtocols {
		return &problem{kind: broken, text: "the host of the model answers with another address, which is not followed; check its URL"}
	}
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return &problem{kind: broken, text: "the host of the model compresses its response although it was asked not to"}
	}
	return nil
}

// header sends the head of the response to the program.
func (x *exchange) header(res *http.Response, m *meter) {
	header := x.w.Header()
	for name, values := range res.Header {
		header[name] = append([]string(nil), values...)
	}
	clean(header, res.Header["Connection"], notTaken)
	if m.kind == stream {
		header.Del("Content-Length") // an event may be left out
	}
	x.h.mask.Header(header)
	x.soon()
	x.w.WriteHeader(res.StatusCode)
	_ = x.control.Flush()
}

// soon bounds the next write to the program.
func (x *exchange) soon() { _ = x.control.SetWriteDeadline(time.Now().Add(x.h.cfg.Slow)) }

// copy passes the body on as it comes, and reports whether that was all of it.
func (x *exchange) copy(ctx context.Context, from io.Reader, m *meter, arrived func()) (whole bool) {
	defer x.control.SetWriteDeadline(time.Time{}) //nolint:errcheck // a connection without deadlines is one of a test
	buf := make([]byte, 32<<10)
	var begun []byte // the end of what came, if it may be the beginning of the key
	came := sha256.New()
	defer func() { x.told.Came = hexOf(came) }()
	for {
		n, err := from.Read(buf)
		arrived()
		_, _ = came.Write(buf[:n]) // never fails; what the program gets of it may differ, see meter and Mask
		x.told.CameBytes += int64(n)
		out := m.take(buf[:n])
		if err != nil {
			// A host that hears of the end may write the last bytes just before the connection is closed.
			whole = errors.Is(err, io.EOF) && ctx.Err() == nil
			x.told.Whole = whole
			out = append(slices.Clip(out), m.end(whole)...)
		}
		if len(begun) > 0 {
			out = append(begun, out...)
		}
		out, rest := x.h.mask.Bytes(out, err != nil)
		if len(out) > 0 {
			x.soon()
			_, werr := x.w.Write(out)
			if werr == nil {
				werr = x.control.Flush()
			}
			if werr != nil && err == nil {
				m.end(false)
			}
			if werr != nil && !errors.Is(werr, http.ErrNotSupported) {
				return false
			}
		}
		if err != nil {
			return whole
		}
		begun = append([]byte(nil), rest...)
	}
}
