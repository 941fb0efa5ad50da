package llm

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// The defaults of Config.
const (
	DefaultHead    = 30 * time.Second
	DefaultIdle    = 60 * time.Second
	DefaultLongest = 30 * time.Minute
	DefaultRetries = 3
)

const (
	// longestWait bounds the pause between two attempts that a provider may ask for.
	longestWait = time.Minute
	// firstWait is the pause before the second attempt; it doubles up to mostWait. Half of it is random.
	firstWait, mostWait = time.Second, 16 * time.Second
	// maxErrorBody bounds what is read of an answer with an error status.
	maxErrorBody = 64 << 10
	maxHeader    = 64 << 10
)

// Config holds the dependencies of New. Provider is required.
type Config struct {
	// Provider is a row of Provider, or one of the caller's own.
	Provider Row
	// BaseURL is used in place of Provider.BaseURL if it is not empty. It is http or https, without user, query or fragment.
	BaseURL string
	// Key is asked for the key at each attempt. nil in a workspace, where the way out puts the key in.
	Key func() string
	// Transport sends the requests. nil is one of the client's own, with the proxy that the environment names. Redirects are
	// not followed, whatever it is.
	Transport http.RoundTripper
	// Head bounds the time from a request to the head of its answer, Idle that between two pieces of an answer, and Longest
	// that of a whole Stream with its attempts. 0 is the default.
	Head, Idle, Longest time.Duration
	// Retries is how often a request is sent again; 0 is DefaultRetries, and a negative number none.
	Retries int
	// NoStreamOptions leaves out stream_options on the wire Chat, for servers that refuse it. Usage is then estimated.
	NoStreamOptions bool
	// Reasoning asks for encrypted thoughts on the wire Responses, to be sent back with tool results. Models that do not
	// reason may refuse it.
	Reasoning bool
}

// Client asks one provider. Its methods may be called from any goroutine.
type Client struct {
	cfg       Config
	wire      wire
	url, host string
	transport http.RoundTripper
	own       *http.Transport // nil if the caller's is used
}

// New returns a Client. Errors are of kind invalid argument.
func New(c Config) (*Client, error) {
	base := c.BaseURL
	if base == "" {
		base = c.Provider.BaseURL
	}
	u, err := url.Parse(base)
	switch {
	case base == "":
		return nil, fmt.Errorf("cannot use the provider %s: it has no base URL of its own; set one: %w",
			quoted(c.Provider.Name), errdefs.ErrInvalidArgument)
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery+u.Fragment != "", u.ForceQuery:
		return nil, fmt.Errorf("cannot use the provider %s: its base URL is not http[s]://HOST[:PORT][/PATH]; correct it: %w",
			quoted(c.Provider.Name), errdefs.ErrInvalidArgument)
	}
	w := wireOf(c.Provider.Wire)
	if w == nil {
		return nil, fmt.Errorf("cannot use the provider %s: %.20q is no wire; use %s, %s or %s: %w", quoted(c.Provider.Name),
			string(c.Provider.Wire), Chat, Responses, Messages, errdefs.ErrInvalidArgument)
	}
	for _, d := range []struct {
		at *time.Duration
		is time.Duration
	}{{&c.Head, DefaultHead}, {&c.Idle, DefaultIdle}, {&c.Longest, DefaultLongest}} {
		if *d.at <= 0 {
			*d.at = d.is
		}
	}
	switch {
	case c.Retries == 0:
		c.Retries = DefaultRetries
	case c.Retries < 0:
		c.Retries = 0
	}
	client := &Client{cfg: c, wire: w, url: strings.TrimRight(u.String(), "/") + w.path(), host: u.Host, transport: c.Transport}
	if c.Transport == nil {
		client.own = &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableCompression: true, MaxResponseHeaderBytes: maxHeader, IdleConnTimeout: 90 * time.Second,
			TLSHandshakeTimeout: c.Head,
		}
		client.transport = client.own
	}
	return client, nil
}

// Close closes idle connections. It does not end a Stream.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// The causes for which a request is ended.
var (
	errHead = errors.New("the head of an answer did not come in time")
	errIdle = errors.New("no piece of the answer came in time")
	errLate = errors.New("the whole took too long")
)

// Stream sends a request and calls emit with each step of the answer, in the caller's goroutine. emit may be nil; an error
// of it ends the request and is returned. The time that emit takes does not count as idle.
//
// The Answer is whole if the error is nil. Otherwise it has what came before the error, an empty Stop, and the usage to be
// counted; usage that the provider did not report is estimated. The caller must not act on events that came before an error.
//
// Errors are of kind invalid argument (the request), unauthenticated (the key), permission denied, not found (the model or
// the URL), resource exhausted (limits and quotas of the provider), unavailable (it fails, or is silent), failed
// precondition (the URL is no API of this wire), or data loss (an answer that is cut, too large or not understood). If ctx
// ends, the error wraps its cause.
func (c *Client) Stream(ctx context.Context, r Request, emit func(Event) error) (Answer, error) {
	if emit == nil {
		emit = func(Event) error { return nil }
	}
	if err := r.check(); err != nil {
		return Answer{}, c.explain(r.Model, err)
	}
	body, err := c.wire.encode(&c.cfg, &r)
	if err != nil {
		return Answer{}, c.explain(r.Model, err)
	}
	if len(body) > MaxRequest {
		return Answer{}, c.explain(r.Model, bad("the request has more than %d bytes; shorten the conversation", MaxRequest))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Longest, errLate)
	defer cancel()
	for wait, n := firstWait, 0; ; wait, n = min(2*wait, mostWait), n+1 {
		answer, again, err := c.attempt(ctx, &r, body, emit)
		if err == nil {
			return answer, nil
		}
		if again < 0 || n >= c.cfg.Retries {
			return answer, c.explain(r.Model, err)
		}
		pause := max(again, wait/2+rand.N(wait/2)) //nolint:gosec // spreads attempts, and keeps nothing secret
		if err := sleep(ctx, pause); err != nil {
			return answer, c.explain(r.Model, c.timed(err))
		}
	}
}

// sleep returns early with the cause if ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return &stopped{context.Cause(ctx)}
	case <-t.C:
		return nil
	}
}

// never says that nothing is to be sent again.
const never = -1

// attempt sends a request once. With an error, again is how long to wait at least before the next attempt, or never.
func (c *Client) attempt(ctx context.Context, r *Request, body []byte, emit func(Event) error) (a Answer, again time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res, err := c.send(ctx, cancel, body)
	if err != nil {
		if _, ended := errors.AsType[*stopped](err); ended { // the provider may be at work on it
			a.Usage = a.Usage.estimate(false, false, len(body), 0)
		}
		return a, resend(err), c.timed(err)
	}
	defer func() { _ = res.Body.Close() }()
	in := &timed{ctx: ctx, in: res.Body, idle: c.cfg.Idle, timer: time.AfterFunc(c.cfg.Idle, func() { cancel(errIdle) })}
	defer in.timer.Stop()
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	coding := res.Header.Get("Content-Encoding")
	if res.StatusCode != http.StatusOK || kind != "text/event-stream" || coding != "" && coding != "identity" {
		late := time.AfterFunc(c.cfg.Head, func() { cancel(errHead) })
		defer late.Stop()
		text, _ := io.ReadAll(io.LimitReader(in, maxErrorBody)) // a body that fails gives no text
		said := parseError(text)
		err := c.refusal(r.Model, res.StatusCode, said)
		again, why := c.pause(res, said)
		if why != "" {
			err = &refused{err.Error() + why, err}
		}
		return a, again, err
	}
	b := &builder{emit: emit}
	err = c.receive(b, in)
	if err == nil && r.Schema != nil && b.answer.Stop == StopEnd {
		err = b.structure()
	}
	a = b.answer
	a.Text, a.Refusal = b.text.String(), b.refuse.String()
	a.Usage = a.Usage.estimate(b.input, b.output, len(body), b.size)
	if err == nil {
		err = emit(Event{Kind: Ended, Stop: a.Stop, Usage: a.Usage})
	}
	if err != nil {
		a.Stop, a.JSON = "", nil
	}
	return a, never, err
}

// send returns the head of an answer.
func (c *Client) send(ctx context.Context, cancel context.CancelCauseFunc, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, bad("the base URL cannot be used; correct it")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("User-Agent", "carrel")
	key := ""
	if c.cfg.Key != nil {
		key = c.cfg.Key()
	}
	if c.cfg.Provider.Wire == Messages {
		req.Header.Set("Anthropic-Version", "2023-06-01")
	}
	switch {
	case key == "":
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return nil, bad("the key has spaces or other characters that no key has; correct it")
	case c.cfg.Provider.Wire == Messages:
		req.Header.Set("X-Api-Key", key)
	default:
		req.Header.Set("Authorization", "Bearer "+key)
	}
	late := time.AfterFunc(c.cfg.Head, func() { cancel(errHead) })
	defer late.Stop()
	res, err := c.transport.RoundTrip(req) // not a Client's Do, which follows redirects
	if ctx.Err() != nil {
		if err == nil {
			_ = res.Body.Close()
		}
		return nil, &stopped{context.Cause(ctx)}
	}
	return res, err
}

// resend returns 0 if a request without any answer may be sent again, which is if the connection failed, and never otherwise.
func resend(err error) time.Duration {
	var certificate *tls.CertificateVerificationError
	var ended *stopped
	if errors.As(err, &ended) || errors.As(err, &certificate) || lasts(err) {
		return never
	}
	return 0
}

// lasts reports whether an error is of a kind that another attempt does not change. Transports without a network have such
// errors.
func lasts(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) || errdefs.IsPermissionDenied(err) || errdefs.IsFailedPrecondition(err)
}

// pause returns how long to wait before the next attempt after an error status, or never. why tells a person when the provider
// asks for a pause that is too long.
func (c *Client) pause(res *http.Response, e *wireError) (d time.Duration, why string) {
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529: // Anthropic's: overloaded
	default:
		return never, ""
	}
	if e.spent() || res.Header.Get("X-Should-Retry") == "false" {
		return never, ""
	}
	d = retryAfter(res.Header)
	if d > longestWait {
		return never, fmt.Sprintf("; it wants to be asked again in %s", d.Round(time.Second))
	}
	return d, ""
}

// mostAfter is the longest time that is read, so that no arithmetic overflows.
const mostAfter = 24 * time.Hour

// retryAfter is what a provider says of when to ask again (RFC 9110, 10.2.3; retry-after-ms is OpenAI's), 0 if nothing.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms >= 0 {
		return time.Duration(min(ms, float64(mostAfter/time.Millisecond)) * float64(time.Millisecond))
	}
	text := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(text, 64); err == nil && s >= 0 {
		return time.Duration(min(s, mostAfter.Seconds()) * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), mostAfter)
	}
	return 0
}

// receive reads an answer until its end event.
func (c *Client) receive(b *builder, in io.Reader) error {
	events, r := &sseReader{in: in}, c.wire.reader(b)
	emit := b.emit
	var own error
	b.emit = func(e Event) error {
		own = emit(e)
		return own
	}
	for {
		e, err := events.next()
		var ended *stopped
		switch {
		case errors.Is(err, io.EOF):
			return broken(errors.New("it is cut: the stream ended without its end event"))
		case errors.As(err, &ended):
			return c.timed(err)
		case errors.Is(err, errLong), errors.Is(err, errLongEvent):
			return broken(err)
		case err != nil:
			return broken(fmt.Errorf("it is cut: the connection failed: %s", clean(err.Error())))
		}
		done, err := r.read(e)
		var told *refused
		switch {
		case own != nil:
			return own
		case errors.As(err, &told):
			return told
		case err != nil:
			return broken(err)
		case done:
			return nil
		}
	}
}

// structure takes over the text as the JSON that was asked for.
func (b *builder) structure() error {
	text := json.RawMessage(strings.TrimSpace(b.text.String()))
	if strictjson.Depth(text) > MaxDepth || !json.Valid(text) {
		return broken(errors.New("it is not the JSON that was asked for"))
	}
	b.answer.JSON = text
	return nil
}

// timed explains why a request has no answer: a time-out, the caller's context, or the connection.
func (c *Client) timed(err error) error {
	silent := func(d time.Duration, what string) error {
		return fmt.Errorf("%s for %s; try again, or see whether it is overloaded: %w", what, d, errdefs.ErrUnavailable)
	}
	var ended *stopped
	switch {
	case errors.Is(err, errHead):
		return silent(c.cfg.Head, "it did not answer")
	case errors.Is(err, errIdle):
		return silent(c.cfg.Idle, "its answer is cut: nothing of it came")
	case errors.Is(err, errLate):
		return silent(c.cfg.Longest, "its answer is cut: it was not whole after all attempts")
	case errors.As(err, &ended): // the caller's context
		return ended.cause
	case lasts(err):
		return err
	}
	return fmt.Errorf("it cannot be reached: %s; see that the base URL is right and that this place may reach it: %w",
		clip(clean(err.Error()), maxSaid), errdefs.ErrUnavailable)
}

// stopped is the error of an operation that ended because its context did.
type stopped struct{ cause error }

func (s *stopped) Error() string { return s.cause.Error() }
func (s *stopped) Unwrap() error { return s.cause }

// timed reads a body of which each piece must come in time.
type timed struct {
	ctx   context.Context // of the request whose body this is
	in    io.Reader
	idle  time.Duration
	timer *time.Timer
}

func (t *timed) Read(p []byte) (int, error) {
	t.timer.Reset(t.idle)
	n, err := t.in.Read(p)
	t.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) && t.ctx.Err() != nil {
		return n, &stopped{context.Cause(t.ctx)}
	}
	return n, err
}
