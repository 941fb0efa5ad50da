package compose_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/files/program"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// filesDouble is the program for files at work: answers has its streams until it returns.
func filesDouble(answers func(in, out *os.File)) (runtime.Process, error) {
	stdin, in, err := pair()
	if err != nil {
		return nil, err
	}
	stdout, out, err := pair()
	if err != nil {
		return nil, err
	}
	d := &packedDouble{files: []*os.File{stdin, stdout}, ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		defer in.Close()
		defer out.Close()
		answers(in, out)
	}()
	return d, nil
}

// onDisk has the program work on a directory of the test's.
func onDisk(t *testing.T) (home string, answers func(in, out *os.File)) {
	root := t.TempDir()
	home = root + workspace.Home
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return home, func(in, out *os.File) { program.Serve(context.WithoutCancel(t.Context()), root, in, out, nil) }
}

// scripted answers a request with bytes, whatever it is.
func scripted(b []byte) func(in, out *os.File) {
	return func(in, out *os.File) {
		go func() { _, _ = io.Copy(io.Discard, in) }()
		_, _ = out.Write(b) // the daemon may have had enough
	}
}

func onPath(op fileapi.Op, path string) fileapi.Request {
	return fileapi.Request{Op: op, Path: []byte(path)}
}

// text is a stream that comes in pieces and ends with err.
type text struct {
	r   io.Reader
	err error
}

func (s *text) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && s.err != nil {
		return n, s.err
	}
	return n, err
}
func (s *text) Close() error { return nil }

func TestFilesPassTheGate(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	home, answers := onDisk(t)
	h.rt.answers = answers
	res, err := h.OnFiles(ctx, alice, "demo", onPath(fileapi.Write, "file"), fileapi.Streams{In: &text{r: strings.NewReader("hello")}})
	if b, rerr := os.ReadFile(home + "/file"); err != nil || rerr != nil || string(b) != "hello" || res.Bytes != 5 {
		t.Fatalf("%+v, %v, %q", res, err, b)
	}
	if last := h.last(); !strings.Contains(last, `"kind":"file.write"`) || !strings.Contains(last, `"path":"file"`) {
		t.Errorf("the intent is %s", last)
	}
	var out bytes.Buffer
	_, err = h.OnFiles(ctx, alice, "demo", onPath(fileapi.Read, "file"), fileapi.Streams{Out: &out})
	if err != nil || out.String() != "hello" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if _, err := h.OnFiles(ctx, alice, "demo", onPath(fileapi.Read, "none"), fileapi.Streams{Out: &out}); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	kinds := map[string]bool{}
	for _, r := range h.records() {
		if r.Type == "denial" {
			t.Errorf("%+v", r)
		}
		var op struct{ Kind, Path string }
		_ = json.Unmarshal(r.Action, &op)
		kinds[op.Kind] = true
	}
	if !kinds["file.read"] {
		t.Error("the read was not recorded")
	}
	// Nobody else, and before the workspace is so much as started.
	calls := h.rt.calls["spawn"]
	for _, op := range []fileapi.Op{
		fileapi.Read, fileapi.Write, fileapi.List, fileapi.Stat, fileapi.Mkdir, fileapi.Move, fileapi.Remove, fileapi.Pack, fileapi.Unpack,
		fileapi.Search, fileapi.Watch,
	} {
		if _, err := h.OnFiles(ctx, bob, "demo", onPath(op, "file"), fileapi.Streams{}); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if h.rt.calls["spawn"] != calls {
		t.Error("something was run for bob")
	}
}

// A stream that a client breaks off is not taken for the whole, and the client's reason is the answer.
func TestABrokenUploadIsGivenUp(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	home, answers := onDisk(t)
	h.rt.answers = answers
	if err := os.WriteFile(home+"/file", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("cannot go on: the client has gone")
	_, err := h.OnFiles(t.Context(), alice, "demo", onPath(fileapi.Write, "file"), fileapi.Streams{
		In: &text{strings.NewReader(strings.Repeat("new", 1<<20)), gone},
	})
	if b, _ := os.ReadFile(home + "/file"); !errors.Is(err, gone) || string(b) != "old" {
		t.Errorf("%v, %q", err, b)
	}
	if left, _ := os.ReadDir(home); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Whatever comes back from a workspace is an error of that request, and bounded.
func TestHostileAnswersAboutFiles(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	frame := func(k fileapi.Kind, b []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{byte(k)}, uint32(len(b))), b...)
	}
	long, err := json.Marshal([]fileapi.Entry{{Path: bytes.Repeat([]byte("a"), 300<<10)}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"nothing":         {},
		"half a head":     {'s', 0},
		"too long":        {'d', 0xff, 0xff, 0xff, 0xff},
		"half a frame":    {'d', 0, 0, 0, 9, 'x'},
		"unknown":         frame('?', nil),
		"request":         frame(fileapi.Asked, []byte("{}")),
		"no JSON":         frame(fileapi.Finished, []byte("{")),
		"entries nowhere": frame(fileapi.Changed, []byte("[]")),
		"data nowhere":    frame(fileapi.Data, []byte("x")),
		"endless":         bytes.Repeat(frame(fileapi.Entries, long), 40),
		"broken off":      frame(fileapi.Entries, []byte("[]")),
	} {
		h.rt.answers = scripted(b)
		got := 0
		_, err := h.OnFiles(t.Context(), alice, "demo", onPath(fileapi.List, ""), fileapi.Streams{Entries: func(l []fileapi.Entry) error {
			for i := range l {
				got += l[i].Weigh()
			}
			return nil
		}})
		if !errdefs.IsDataLoss(err) && !errdefs.IsUnavailable(err) || got > 3*fileapi.MaxListed {
			t.Errorf("%s: %v, %d bytes of entries", name, err, got)
		}
	}
	h.rt.answers = scripted(frame(fileapi.Finished, []byte(`{"error":"no\n\u001b[31m such \u202e thing","kind":"internal_secret"}`)))
	if _, err := h.OnFiles(t.Context(), alice, "demo", onPath(fileapi.Stat, ""), fileapi.Streams{}); !errdefs.IsInternal(err) ||
		strings.ContainsAny(err.Error(), "\n\x1b\u202e") {
		t.Errorf("%q", err)
	}
}

// A workspace that never answers holds those who ask about it, up to so many, and nobody else; they end with their
// callers.
func TestFilesOfOneWorkspaceAreBounded(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	h.create(alice, "other")
	var mu sync.Mutex
	running := 0
	release := make(chan struct{})
	h.rt.answers = func(in, _ *os.File) {
		mu.Lock()
		running++
		mu.Unlock()
		<-release
	}
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			_, err := h.OnFiles(ctx, alice, "demo", onPath(fileapi.Stat, ""), fileapi.Streams{})
			if err == nil {
				t.Error("it was answered")
			}
		})
	}
	for range 6 {
		all.Go(func() {
			_, err := h.OnFiles(ctx, alice, "demo", onPath(fileapi.Watch, ""), fileapi.Streams{})
			if err == nil {
				t.Error("it was answered")
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return running
	}
	for end := time.Now().Add(10 * time.Second); count() < 12; time.Sleep(time.Millisecond) { //nolint:forbidigo // of goroutines no word comes
		if time.Now().After(end) {
			t.Fatalf("%d run", count())
		}
	}
	if n := count(); n != 12 {
		t.Errorf("%d run at once instead of 8 and 4 watches", n)
	}
	_, answers := onDisk(t)
	h.rt.mu.Lock()
	h.rt.answers = answers
	h.rt.mu.Unlock()
	if _, err := h.OnFiles(t.Context(), alice, "other", onPath(fileapi.Stat, ""), fileapi.Streams{}); err != nil {
		t.Errorf("another workspace is held up: %v", err)
	}
	cancel()
	all.Wait()
	if _, err := h.OnFiles(t.Context(), alice, "demo", onPath(fileapi.Stat, ""), fileapi.Streams{}); err != nil {
		t.Errorf("places were not given back: %v", err)
	}
}

// silentBody is a body that never comes, on a connection that ends when it is closed.
type silentBody struct {
	closed chan struct{}
	hangUp func()
}

func (b *silentBody) Read([]byte) (int, error) { <-b.closed; return 0, os.ErrClosed }

func (b *silentBody) Close() error {
	b.hangUp()
	close(b.closed)
	return nil
}

// What the program has answered is the answer, also where the rest of the body, which nobody needs, ends with its connection.
func TestAnswerBeforeTheBody(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	home, answers := onDisk(t)
	h.rt.answers = answers
	if err := os.Mkdir(home+"/dir", 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := h.OnFiles(ctx, alice, "demo", onPath(fileapi.Write, "dir"), fileapi.Streams{In: &silentBody{make(chan struct{}), cancel}})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("%v", err)
	}
}
