package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// recording writes the output of a session to a file in the home, in the form of asciinema v2
// (https://docs.asciinema.org/manual/asciicast/v2/): a line of JSON for the terminal, then one for each event. The file is the
// workspace's own: what runs there can change it, so that it shows what happened, and proves nothing. Its methods may be called
// on nil, which records nothing. But for resized they are for the goroutine that reads the terminal, and close for after that:
// they wait for the disk, and nobody else should.
type recording struct {
	f     *os.File
	began time.Time
	left  int // bytes that the file may still take
	// cut is the beginning of a character whose rest has not come.
	cut []byte
	// size is one that was not written yet, 0 for none.
	size atomic.Uint32
}

// openRecording makes the file. It runs with the command's file system ids, and so has the command's rights, whatever stands in
// the way.
func openRecording(in *execapi.ExecParams, rows, cols int, began time.Time) (*recording, error) {
	fail := func(what string, err error) error {
		return fmt.Errorf("cannot record the session: cannot make ~/%s: %w; leave the recording out, or make room for it: %w", what, err,
			errdefs.ErrFailedPrecondition)
	}
	dir := workspace.Home
	for name := range strings.SplitSeq(execapi.RecordingDir, "/") {
		dir = filepath.Join(dir, name)
		if err := unix.Mkdir(dir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fail(execapi.RecordingDir, err)
		}
	}
	path := filepath.Join(workspace.Home, execapi.Recording(in.ID))
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fail(execapi.Recording(in.ID), err)
	}
	r := &recording{f: os.NewFile(uintptr(fd), "recording"), began: began, left: execapi.MaxRecording}
	r.line(map[string]any{
		"version": 2, "width": cols, "height": rows, "timestamp": began.Unix(), "env": map[string]string{"TERM": sessionTerm},
	})
	return r, nil
}

// line writes a line, unless the file has no room for it: then it is the end of the recording.
func (r *recording) line(v any) {
	b, err := json.Marshal(v)
	if err != nil || r.f == nil {
		return
	}
	if b = append(b, '\n'); len(b) > r.left {
		r.left = 0
		r.close()
		return
	}
	r.left -= len(b)
	if _, err := r.f.Write(b); err != nil { // the disk is full: what is there stays a recording
		r.close()
	}
}

func (r *recording) event(kind, text string) {
	r.line([]any{float64(time.Since(r.began).Microseconds()) / 1e6, kind, text})
}

// output records what the command wrote. Text is UTF-8 in such a file: a character that comes in two pieces is written
// whole, and what is none as U+FFFD.
func (r *recording) output(b []byte) {
	if r == nil || r.f == nil || len(b) == 0 {
		return
	}
	if s := r.size.Swap(0); s != 0 {
		r.event("r", fmt.Sprintf("%dx%d", s&0xffff, s>>16))
	}
	b = append(r.cut, b...)
	end := len(b)
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				end = len(b) - i
			}
			break
		}
	}
	r.cut = append([]byte(nil), b[end:]...)
	if end > 0 {
		r.event("o", strings.ToValidUTF8(string(b[:end]), "\ufffd"))
	}
}

// resized has the size recorded before the output that comes next.
func (r *recording) resized(rows, cols int) {
	if r != nil {
		r.size.Store(uint32(rows)<<16 | uint32(cols))
	}
}

func (r *recording) close() {
	if r == nil || r.f == nil {
		return
	}
	if len(r.cut) > 0 && r.left > 0 {
		cut := r.cut
		r.cut = nil
		r.event("o", strings.ToValidUTF8(string(cut), "\ufffd"))
	}
	if r.f != nil {
		r.f.Close() // nothing is buffered
		r.f = nil
	}
}
