// Package cassette records what a client and a server of HTTP said to each other, and answers from that record later. It is
// for tests: with a cassette they need no network, no key and no luck.
//
// A cassette is a file of JSON lines, one an exchange, in the order in which the answers ended. Bodies are kept as they are,
// as text. Of headers only Content-Type, Retry-After and X-Should-Retry of answers are kept, so no key and no cookie gets in.
// A request is answered by the first exchange with its method, path and body that has not been played yet.
//
// The package must not be linked into a program, and it never asks a network when it replays.
package cassette

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// Bounds. Sizes are in bytes.
const (
	MaxFile      = 64 << 20
	MaxBody      = 32 << 20
	MaxExchanges = 1000
)

// kept are the headers of answers that are recorded.
var kept = []string{"Content-Type", "Retry-After", "X-Should-Retry"}

// exchange is a line of a cassette.
type exchange struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Request string            `json:"request"`
	Status  int               `json:"status"`
	Header  map[string]string `json:"header,omitempty"`
	Answer  string            `json:"answer"`

	played bool
}

// Player answers from a cassette. It may be used by many goroutines.
type Player struct {
	mu  sync.Mutex
	all []*exchange
}

var _ http.RoundTripper = (*Player)(nil)

// Open reads a cassette.
func Open(file string) (*Player, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("cannot open the cassette: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the cassette %s: %w", file, err)
	}
	p, err := Read(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read the cassette %s: %w", file, err)
	}
	return p, nil
}

// Read returns a Player of the text of a cassette. Errors are of kind invalid argument.
func Read(text []byte) (*Player, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("it has more than %d bytes: %w", MaxFile, errdefs.ErrInvalidArgument)
	}
	p := &Player{}
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		e := &exchange{}
		if err := strictjson.Unmarshal(line, e); err != nil {
			return nil, fmt.Errorf("exchange %d: %w: %w", len(p.all)+1, err, errdefs.ErrInvalidArgument)
		}
		if e.Status < 100 || e.Status > 999 || e.Method == "" || !strings.HasPrefix(e.Path, "/") {
			return nil, fmt.Errorf("exchange %d has no method, path or status: %w", len(p.all)+1, errdefs.ErrInvalidArgument)
		}
		if p.all = append(p.all, e); len(p.all) > MaxExchanges {
			return nil, fmt.Errorf("it has more than %d exchanges: %w", MaxExchanges, errdefs.ErrInvalidArgument)
		}
	}
	return p, nil
}

// RoundTrip answers a request. An error of kind not found says that the cassette has none like it that is left.
func (p *Player) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := requestBody(r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	near := ""
	for _, e := range p.all {
		if e.Method != r.Method || e.Path != r.URL.Path || r.URL.RawQuery != "" {
			continue
		}
		switch {
		case e.Request != string(body):
			near = "; it has some with another body, the first of which differs from byte " + differs(e.Request, string(body))
		case e.played:
			near = "; it has been played already"
		default:
			e.played = true
			header := http.Header{}
			for name, value := range e.Header {
				header.Set(name, value)
			}
			return &http.Response{
				StatusCode: e.Status, Status: fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status)),
				Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, ContentLength: int64(len(e.Answer)),
				Request: r, Body: io.NopCloser(strings.NewReader(e.Answer)),
			}, nil
		}
	}
	return nil, fmt.Errorf("the cassette has no exchange for %s %s%s; record it anew: %w", r.Method, r.URL.Path, near, errdefs.ErrNotFound)
}

// differs says where two texts differ, and shows a little of both.
func differs(was, is string) string {
	i := 0
	for i < len(was) && i < len(is) && was[i] == is[i] {
		i++
	}
	return fmt.Sprintf("%d: %.40q in the cassette, %.40q here", i, was[i:], is[i:])
}

// Left returns an error unless every exchange was played.
func (p *Player) Left() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range p.all {
		if !e.played {
			return fmt.Errorf("exchange %d of the cassette, %s %s, was not played: %w", i+1, e.Method, e.Path, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// Recorder sends requests on and writes a cassette. It may be used by many goroutines.
type Recorder struct {
	next    http.RoundTripper
	secrets []string

	mu  sync.Mutex
	out *os.File
	err error // the first that befell the cassette
	n   int
}

var _ http.RoundTripper = (*Recorder)(nil)

// Record makes a new cassette of what next says. The file must not exist yet. secrets are texts that must not get into it,
// such as the key: an exchange with one in it is not written, and Close says so.
func Record(file string, next http.RoundTripper, secrets ...string) (*Recorder, error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cannot record the cassette %s: it is there already; remove it to record it anew: %w",
			file, errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot record a cassette: %w", err)
	}
	return &Recorder{next: next, secrets: secrets, out: out}, nil
}

// RoundTrip sends a request on. The exchange is written when the body of the answer is closed.
func (c *Recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.RawQuery != "" {
		return nil, fmt.Errorf("cannot record %s %s: it has a query, in which a key may be: %w", r.Method, r.URL.Path, errdefs.ErrInvalidArgument)
	}
	body, err := requestBody(r)
	if err != nil {
		return nil, err
	}
	sent := r.Clone(r.Context())
	sent.Body = io.NopCloser(bytes.NewReader(body))
	res, err := c.next.RoundTrip(sent)
	if err != nil {
		return nil, err
	}
	e := &exchange{Method: r.Method, Path: r.URL.Path, Request: string(body), Status: res.StatusCode, Header: map[string]string{}}
	for _, name := range kept {
		if v := res.Header.Get(name); v != "" {
			e.Header[name] = v
		}
	}
	res.Body = &recording{ReadCloser: res.Body, to: c, of: e}
	return res, nil
}

// recording is the body of an answer that is written down.
type recording struct {
	io.ReadCloser
	to   *Recorder
	of   *exchange
	seen bytes.Buffer
	once sync.Once
}

func (b *recording) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.seen.Write(p[:min(n, MaxBody+1-b.seen.Len())])
	return n, err
}

func (b *recording) Close() error {
	b.once.Do(func() {
		b.of.Answer = b.seen.String()
		b.to.write(b.of)
	})
	return b.ReadCloser.Close()
}

func (c *Recorder) write(e *exchange) {
	line, err := json.Marshal(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.n++; {
	case err != nil:
	case len(e.Answer) > MaxBody || c.n > MaxExchanges:
		err = fmt.Errorf("exchange %d is too large, or one too many: %w", c.n, errdefs.ErrInvalidArgument)
	case !utf8.ValidString(e.Request + e.Answer):
		err = fmt.Errorf("exchange %d is not text: %w", c.n, errdefs.ErrInvalidArgument)
	case c.secret(line):
		err = fmt.Errorf("exchange %d has a secret in it, and is not written: %w", c.n, errdefs.ErrFailedPrecondition)
	default:
		_, err = c.out.Write(append(line, '\n'))
	}
	if c.err == nil {
		c.err = err
	}
}

func (c *Recorder) secret(line []byte) bool {
	for _, s := range c.secrets {
		quoted, err := json.Marshal(s)
		if s != "" && (err != nil || bytes.Contains(line, bytes.Trim(quoted, `"`))) {
			return true
		}
	}
	return false
}

// Close ends the cassette. The error is the first that befell it.
func (c *Recorder) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.err, c.out.Close()); err != nil {
		return fmt.Errorf("cannot record the cassette: %w", err)
	}
	return nil
}

func requestBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	if err == nil && len(body) > MaxBody {
		err = fmt.Errorf("it has more than %d bytes: %w", MaxBody, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the body of %s %s: %w", r.Method, r.URL.Path, err)
	}
	return body, nil
}
