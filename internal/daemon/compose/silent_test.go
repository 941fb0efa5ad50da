package compose_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/files/program"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// killable is a double of a program that works with a client's socket. It ends when it is closed, as a process does.
type killable struct {
	runtime.Process
	socket *os.File
}

func (k *killable) Close() error {
	k.socket.Close()
	return k.Process.Close()
}

func directDouble(answers func(in, out, socket *os.File), socket *os.File) (runtime.Process, error) {
	fd, err := unix.FcntlInt(socket.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that Close ends what waits for it
	}
	if err != nil {
		return nil, err
	}
	own := os.NewFile(uintptr(fd), "direct")
	p, err := filesDouble(func(in, out *os.File) {
		defer own.Close()
		answers(in, out, own)
	})
	return &killable{p, own}, err
}

// Clients that bring a socket and then neither read nor write are ended by their deadline, all that one workspace may have at
// once. Others are served meanwhile, their places are free again, and what they would have written over is as it was.
func TestSilentPeers(t *testing.T) {
	const many, still, long = 8, 3 * time.Second, 20 * time.Second
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), still: still}
	h.start()
	t.Cleanup(h.crash)
	h.create(alice, "demo")
	h.create(bob, "other")
	root := t.TempDir()
	file := root + workspace.Home + "/file"
	if err := os.MkdirAll(root+workspace.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("old"), 1<<20) // more than a socket holds
	if err := os.WriteFile(file, large, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{}, many)
	h.rt.direct = func(in, out, socket *os.File) {
		begun <- struct{}{}
		program.Serve(context.WithoutCancel(t.Context()), root, in, out, socket)
	}
	h.rt.answers = func(in, out *os.File) { program.Serve(context.WithoutCancel(t.Context()), root, in, out, nil) }

	began := time.Now()
	ended := make(chan error, many)
	var peers []*os.File
	for i := range many {
		ours, theirs, err := pair()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours.Close() })
		peers = append(peers, ours)
		op := fileapi.Read
		if i%2 == 1 {
			op = fileapi.Write
		}
		go func() {
			_, err := h.OnFiles(t.Context(), alice, "demo", onPath(op, "file"), fileapi.Streams{Socket: theirs})
			ended <- err
		}()
	}
	for range many { // all of them are at work
		select {
		case <-begun:
		case <-time.After(long):
			t.Fatal("they do not begin")
		}
	}
	// Of another workspace at once; of this one when they are ended.
	read := func(who, ref string) {
		t.Helper()
		p := alice
		if who == "bob" {
			p = bob
		}
		var out bytes.Buffer
		if _, err := h.OnFiles(t.Context(), p, ref, onPath(fileapi.Read, "file"), fileapi.Streams{Out: &out}); err != nil ||
			!bytes.Equal(out.Bytes(), large) {
			t.Errorf("%s: %v, %d bytes", ref, err, out.Len())
		}
	}
	read("bob", "other")
	if n := len(ended); n > 0 {
		t.Fatalf("%d ended while another was served, after %v: %v", n, time.Since(began), <-ended)
	}
	read("alice", "demo")
	if d := time.Since(began); d < still {
		t.Errorf("a ninth one had a place after %v", d)
	}
	for range many {
		select {
		case err := <-ended:
			if !errdefs.IsUnavailable(err) || !strings.Contains(fmt.Sprint(err), "did nothing for too long") {
				t.Errorf("one that does nothing: %v", err)
			}
		case <-time.After(long):
			t.Fatal("it is not ended")
		}
	}
	for i, s := range peers { // nobody has the other end any more
		_ = s.SetReadDeadline(time.Now().Add(long))
		if _, err := io.Copy(io.Discard, s); err != nil {
			t.Errorf("socket %d: %v", i, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.Equal(b, large) {
		t.Errorf("the file: %v, %d bytes", err, len(b))
	}
	if left, _ := os.ReadDir(root + workspace.Home); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
