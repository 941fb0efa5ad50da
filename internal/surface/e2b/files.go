package e2b

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const (
	// stall is how long a client may take for the next piece of a file.
	stall = time.Minute
	// maxParts bounds the files of one upload, and maxPartHead the head of each, in bytes.
	maxParts, maxPartHead = 1000, 16 << 10
	// An upload in gzip may be so many times as long as what is sent for it, once it is longer than freely, in bytes.
	maxRatio, freely = 200, 16 << 20
)

// health says that a sandbox runs, or can be started: another one is not served.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusNoContent)
}

// pathOf is the path in a query, absolute.
func pathOf(r *http.Request, name string) (string, error) {
	if u := r.URL.Query().Get("username"); !isUser(u) {
		return "", wrong("there is no user %q in a workspace; leave it out, or say \"user\"", u)
	}
	if name = cmp.Or(r.URL.Query().Get("path"), name); name == "" {
		return "", wrong("the path is missing")
	}
	return inside(name), nil
}

// sink sends a file, with its headers before the first byte.
type sink struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
	head  func()
	to    io.Writer
}

func (k *sink) Write(p []byte) (int, error) {
	if !k.begun {
		k.begun = true
		k.head()
	}
	if err := k.rc.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return 0, err
	}
	return k.to.Write(p)
}

// download sends a file.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	p, err := pathOf(r, "")
	if err != nil {
		fail(w, err)
		return
	}
	k := &sink{w: w, rc: http.NewResponseController(w), to: w}
	k.head = func() {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
		w.Header().Set("X-Content-Type-Options", "nosniff") // a browser must not run what a workspace wrote
		w.Header().Set("Content-Security-Policy", "sandbox")
	}
	if r.Header.Get("Accept-Encoding") == "gzip" && r.Header.Get("Range") == "" { // who asks for it, not who would take it
		plain, z := k.head, quick(w)
		k.to, k.head = z, func() { w.Header().Set("Content-Encoding", "gzip"); plain() }
		defer func() {
			if k.begun {
				_ = z.Close() // what is missing is seen by its length
			}
		}()
	}
	_, err = s.on(r.Context(), fileapi.Request{Op: fileapi.Read, Path: []byte(p)}, fileapi.Streams{Out: k})
	switch {
	case err != nil && k.begun:
		panic(http.ErrAbortHandler) // the client sees that it is not whole
	case err != nil:
		fail(w, err)
	case !k.begun:
		k.begun = true
		k.head()
	}
}

// quick compresses at little cost: the network to a client is seldom slower.
func quick(w io.Writer) *gzip.Writer {
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // its error is that of another level
	return z
}

// incoming is a body that a client sends at its pace.
type incoming struct {
	from io.Reader
	ctx  context.Context
	rc   *http.ResponseController

	mu      sync.Mutex
	reading bool
	closed  bool
}

// Read implements io.Reader.
func (in *incoming) Read(p []byte) (int, error) {
	in.mu.Lock()
	err := context.Cause(in.ctx)
	if in.closed {
		err = os.ErrClosed
	}
	if err == nil {
		err = in.rc.SetReadDeadline(time.Now().Add(stall))
	}
	in.reading = err == nil
	in.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := in.from.Read(p)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.reading = false; !in.closed {
		// Without a body that is read, a deadline would end the connection.
		err = cmp.Or(err, in.rc.SetReadDeadline(time.Time{}))
	}
	return n, err
}

// Close ends a Read that waits, and with it the connection.
func (in *incoming) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed = true; in.reading {
		return in.rc.SetReadDeadline(time.Unix(1, 0))
	}
	return nil
}

// written is a file that was written, as SDKs read it.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

// upload writes the body, or each of its parts, to a file. What was there stays whole until the new content is.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	done, err := s.receive(w, r)
	switch {
	case err == nil:
		answer(w, http.StatusOK, done)
	case errors.Is(err, io.ErrUnexpectedEOF):
		fail(w, wrong("its body ended before it was whole"))
	case errdefs.IsResourceExhausted(err):
		w.Header().Set("Connection", "close")
		failAs(w, http.StatusInsufficientStorage, err.Error())
	default:
		w.Header().Set("Connection", "close") // the rest of the body was not read
		fail(w, err)
	}
}

// mayWrite asks the gate before anything is read for who may not write at all. Each file is judged when its name is known.
func (s *Server) mayWrite(r *http.Request) error {
	if authn.FromContext(r.Context()).Can(operation.Of(operation.WriteFile).Needs) {
		return nil
	}
	_, err := s.on(r.Context(), fileapi.Request{Op: fileapi.Write, Path: []byte(inside(r.URL.Query().Get("path")))},
		fileapi.Streams{In: io.NopCloser(http.NoBody)})
	return cmp.Or(err, forbidden("the token may not write files"))
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request) ([]written, error) {
	if err := s.mayWrite(r); err != nil {
		return nil, err
	}
	rc := http.NewResponseController(w)
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		sent := &counted{Reader: &incoming{from: r.Body, ctx: r.Context(), rc: rc}}
		z, err := gzip.NewReader(sent)
		if err != nil {
			return nil, wrong("its body is not gzip: %w", err)
		}
		body = &unpacked{Reader: z, sent: sent}
	}
	kind, args, err := mime.ParseMediaType(cmp.Or(r.Header.Get("Content-Type"), "application/octet-stream"))
	if err != nil {
		return nil, wrong("Content-Type: %w", err)
	}
	if kind != "multipart/form-data" {
		one, err := s.write(r, rc, "", body)
		return []written{one}, err
	}
	if args["boundary"] == "" {
		return nil, wrong("Content-Type has no boundary")
	}
	var done []written
	// multipart reads little at a time, and each read of incoming sets deadlines.
	// It takes a head of 10 MB, so no more can be read for one.
	heads := &limited{Reader: &incoming{from: body, ctx: r.Context(), rc: rc}}
	large := bufio.NewReaderSize(heads, fileapi.Piece)
	for parts := multipart.NewReader(large, args["boundary"]); ; {
		heads.limit(maxPartHead)
		part, err := parts.NextPart()
		heads.limit(-1)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, wrong("the next part of its body cannot be read: %w", err)
		}
		if headSize(part) > maxPartHead {
			return nil, wrong("the head of a part of its body is longer than %d bytes", maxPartHead)
		}
		name := fileName(part)
		if name == "" { // a field, not a file
			if _, err := io.Copy(io.Discard, part); err != nil {
				return nil, wrong("a part of its body cannot be read: %w", err)
			}
			continue
		}
		if len(done) == maxParts {
			return nil, wrong("it has more than %d files", maxParts)
		}
		one, err := s.write(r, rc, name, part)
		if err != nil {
			return nil, err
		}
		done = append(done, one)
	}
	if len(done) == 0 {
		return nil, wrong("it has no file")
	}
	return done, nil
}

// headSize is how long the head of a part is.
func headSize(p *multipart.Part) (n int) {
	for name, values := range p.Header {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}

// limited reads so much and no more while a limit is set.
type limited struct {
	io.Reader

	left  int
	bound bool
}

// limit sets one; a negative one is none.
func (l *limited) limit(n int) { l.left, l.bound = n, n >= 0 }

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if !l.bound {
		return l.Reader.Read(p)
	}
	if l.left == 0 {
		return 0, errLongHead
	}
	n, err := l.Reader.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

var errLongHead = fmt.Errorf("its head is longer than %d bytes", maxPartHead)

// counted counts what is read.
type counted struct {
	io.Reader

	n int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// unpacked is what came in gzip, unless it is far more than what was sent for it.
type unpacked struct {
	io.Reader

	sent *counted
	n    int64
}

// Read implements io.Reader.
func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if u.n += int64(n); u.n > freely && u.n/maxRatio > u.sent.n {
		return 0, wrong("its body in gzip is more than %d times as long as what was sent; send it as it is", maxRatio)
	}
	return n, err
}

// write writes one file of an upload.
func (s *Server) write(r *http.Request, rc *http.ResponseController, name string, body io.Reader) (written, error) {
	p, err := pathOf(r, name)
	if err != nil {
		return written{}, err
	}
	_, err = s.on(r.Context(), fileapi.Request{Op: fileapi.Write, Path: []byte(p), Parents: true},
		fileapi.Streams{In: &incoming{from: body, ctx: r.Context(), rc: rc}})
	return written{p, path.Base(p), "file"}, err
}

// fileName is the path in the head of a part, "" if it is no file. Part.FileName would take its directories away.
func fileName(p *multipart.Part) string {
	_, args, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return args["filename"]
}
