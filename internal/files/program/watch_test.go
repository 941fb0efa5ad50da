package program_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/program"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// watched is a watch under way.
type watched struct {
	t      *testing.T
	in     *os.File
	frames *fileapi.Reader
	ended  chan int
	list   []fileapi.Event
}

func (x tree) watch(t *testing.T, path string) *watched {
	t.Helper()
	r, in, err := os.Pipe()
	must(t, err)
	out, w := io.Pipe()
	v := &watched{t: t, in: in, frames: &fileapi.Reader{R: out}, ended: make(chan int, 1)}
	_, err = in.Write(request(t, op(fileapi.Watch, path), nil, false).Bytes())
	must(t, err)
	go func() {
		v.ended <- program.Serve(t.Context(), x.root, r, w, nil)
		w.Close()
		r.Close()
	}()
	if k, b, err := v.frames.Next(); err != nil || k != fileapi.Changed || string(b) != "[]" {
		t.Fatalf("it begins with %c %s, %v", k, b, err)
	}
	return v
}

// next is the next event.
func (v *watched) next() fileapi.Event {
	v.t.Helper()
	for len(v.list) == 0 {
		k, b, err := v.frames.Next()
		must(v.t, err)
		if k != fileapi.Changed {
			v.t.Fatalf("%c %s", k, b)
		}
		must(v.t, json.Unmarshal(b, &v.list))
	}
	e := v.list[0]
	v.list = v.list[1:]
	return e
}

// end is the end of who asked, and so of the watch.
func (v *watched) end() {
	v.t.Helper()
	must(v.t, v.in.Close())
	_, err := io.Copy(io.Discard, v.frames.R)
	must(v.t, err)
	if code := <-v.ended; code != 0 {
		v.t.Errorf("it ended with %d", code)
	}
}

// until takes events up to the one that is meant, which has to come.
func (v *watched) until(what, path string) {
	v.t.Helper()
	for {
		if e := v.next(); e.What == what && string(e.Path) == path {
			return
		}
	}
}

func TestWatch(t *testing.T) {
	x := newTree(t)
	x.put(t, "d/e/f", "text")
	must(t, os.Symlink("/etc", x.home+"/out"))
	v := x.watch(t, "")
	x.put(t, "d/e/f", "other text")
	if e := v.next(); e.What != "write" || string(e.Path) != "d/e/f" {
		t.Errorf("%+v", e) // and once, though it was opened, cut and written
	}
	must(t, os.WriteFile(x.root+"/etc/new", nil, 0o600)) // a link is not followed
	must(t, os.MkdirAll(x.home+"/new/deep/er", 0o755))
	v.until("create", "new")
	v.until("create", "new/deep")
	v.until("create", "new/deep/er")
	x.put(t, "new/deep/er/file", "x")
	if e := v.next(); e.What != "create" || string(e.Path) != "new/deep/er/file" {
		t.Errorf("%+v", e)
	}
	// A directory that goes elsewhere has its new name, and what is in it too.
	must(t, os.Rename(x.home+"/new/deep", x.home+"/moved"))
	v.until("create", "moved")
	v.until("create", "moved/er/file")
	must(t, os.Remove(x.home+"/moved/er/file"))
	v.until("remove", "moved/er/file")
	// New content has no name until it is whole.
	f, err := os.OpenFile(x.home+"/moved", unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		t.Skip("the file system has no files without a name: ", err)
	}
	defer f.Close()
	_, err = f.WriteString("new")
	must(t, err)
	must(t, f.Chmod(0o644))
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, x.home+"/moved/named", unix.AT_SYMLINK_FOLLOW))
	if e := v.next(); e.What != "create" || string(e.Path) != "moved/named" {
		t.Errorf("%+v", e)
	}
	v.end()
}

// More than can be told is an overflow, and what comes after it is told again.
func TestWatchOverflows(t *testing.T) {
	x := newTree(t)
	v := x.watch(t, "")
	for n := range 6000 {
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", x.home, n), nil, 0o600))
	}
	must(t, os.Mkdir(x.home+"/last", 0o700))
	seen, overflow := 0, false
	for !overflow {
		e := v.next()
		if overflow = e.What == "overflow"; !overflow {
			seen++
		}
		if e.What == "create" && string(e.Path) == "last" {
			break // it kept up: each was told
		}
	}
	if !overflow && seen < 6001 {
		t.Errorf("%d events came, and no word of those that were lost", seen)
	}
	x.put(t, "after", "x")
	for e := v.next(); string(e.Path) != "after"; e = v.next() {
		if e.What == "overflow" { // which may have lost it
			x.put(t, "after", "x")
		}
	}
	v.end()
}

// A watch has so many directories and no more, and says so.
func TestWatchIsBounded(t *testing.T) {
	x := newTree(t)
	for n := range 8200 {
		must(t, os.Mkdir(fmt.Sprintf("%s/%d", x.home, n), 0o700))
	}
	if a := x.ask(t, op(fileapi.Watch, "")); a.Kind != "resource_exhausted" {
		t.Errorf("%+v", a.Result)
	}
	w := op(fileapi.Watch, "")
	w.Depth = 1
	if a := x.ask(t, w); a.Error != "" {
		t.Errorf("%+v", a.Result)
	}
}
