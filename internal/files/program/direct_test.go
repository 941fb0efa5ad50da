package program_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/program"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// directly serves a request whose data go over a socket, with work at the other end of it. It returns the answer, and whether
// any of the data was in it.
func (x tree) directly(t *testing.T, r fileapi.Request, work func(s *os.File)) (res fileapi.Result, leaked bool) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	worked := make(chan struct{})
	go func() { defer close(worked); work(ours) }()
	r.Home, r.Direct = home, true
	var in, out bytes.Buffer
	must(t, (&fileapi.Writer{W: &in}).JSON(fileapi.Asked, r))
	if code := program.Serve(t.Context(), x.root, &in, &out, theirs); code != 0 {
		t.Fatalf("it ended with %d", code)
	}
	theirs.Close()
	<-worked
	frames := &fileapi.Reader{R: &out}
	for {
		k, b, err := frames.Next()
		must(t, err)
		switch k {
		case fileapi.Finished:
			must(t, json.Unmarshal(b, &res))
			return res, leaked
		case fileapi.Data, fileapi.End:
			leaked = true
		default:
		}
	}
}

// Data go over the socket alone, whole in both directions; what has no end is given up, and who has gone ends it.
func TestDataOverASocket(t *testing.T) {
	x := newTree(t)
	big := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
	sent := func(text string, whole bool) func(*os.File) {
		return func(s *os.File) {
			w := &fileapi.Writer{W: s}
			_, err := io.WriteString(w, text)
			if err == nil && whole {
				err = w.Send(fileapi.End, nil)
			}
			if !whole {
				s.Close()
			}
			if err != nil && !errors.Is(err, unix.EPIPE) { // it may be refused before its end
				t.Error(err)
			}
		}
	}
	res, leaked := x.directly(t, op(fileapi.Write, "big"), sent(big, true))
	if res.Error != "" || res.Bytes != 1<<20 || leaked || x.text(t, "big") != big {
		t.Errorf("written: %+v, %v", res, leaked)
	}
	var got bytes.Buffer
	read := func(s *os.File) {
		if _, err := io.Copy(&got, &fileapi.Body{Frames: &fileapi.Reader{R: s}}); err != nil { // without an end there is an error
			t.Error(err)
		}
	}
	res, leaked = x.directly(t, op(fileapi.Read, "big"), read)
	if res.Error != "" || res.Bytes != 1<<20 || leaked || got.String() != big {
		t.Errorf("read: %+v, %v, %d bytes", res, leaked, got.Len())
	}
	var pack bytes.Buffer
	res, leaked = x.directly(t, op(fileapi.Pack, "big"), func(s *os.File) {
		if _, err := io.Copy(&pack, &fileapi.Body{Frames: &fileapi.Reader{R: s}}); err != nil {
			t.Error(err)
		}
	})
	if res.Error != "" || leaked || pack.Len() < 1<<20 {
		t.Errorf("packed: %+v, %v, %d bytes", res, leaked, pack.Len())
	}
	res, leaked = x.directly(t, op(fileapi.Unpack, ""), sent(strings.Replace(pack.String(), "big\x00\x00", "two\x00\x00", 1), true))
	if res.Error == "" { // the sum of the head does not fit any more
		t.Errorf("a stream that was changed: %+v, %v", res, leaked)
	}
	must(t, os.Remove(x.root+home+"/big"))
	if res, _ = x.directly(t, op(fileapi.Unpack, ""), sent(pack.String(), true)); res.Error != "" || x.text(t, "big") != big {
		t.Errorf("unpacked: %+v", res)
	}
	res, _ = x.directly(t, op(fileapi.Write, "big"), sent("new", false))
	if res.Kind != "aborted" || x.text(t, "big") != big {
		t.Errorf("broken off: %+v", res)
	}
	res, _ = x.directly(t, op(fileapi.Read, "none"), func(s *os.File) {
		if _, err := io.Copy(io.Discard, &fileapi.Body{Frames: &fileapi.Reader{R: s}}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("what is not there ends with %v", err)
		}
	})
	if res.Kind != "not_found" {
		t.Errorf("what is not there: %+v", res)
	}
	if res, _ = x.directly(t, op(fileapi.Read, "big"), func(s *os.File) { s.Close() }); res.Error == "" {
		t.Errorf("nobody takes it: %+v", res)
	}
	for _, o := range []fileapi.Op{fileapi.List, fileapi.Remove, fileapi.Patch, fileapi.Watch} {
		if res, _ = x.directly(t, op(o, "big"), func(*os.File) {}); res.Kind != "invalid_argument" {
			t.Errorf("%s: %+v", o, res)
		}
	}
}
