package logfile_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/linux/logfile"
)

// One caller's lines are limited, another's and those of other kinds are not; what was left out is
// told within a minute, and then lines are logged again.
func TestLogLinesOfOneCallerAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		log := slog.New(logfile.NewPaced(slog.NewTextHandler(&out, nil)))
		for range 1000 {
			log.Warn("refused", "principal", "uid:1000")
		}
		log.Warn("refused", "principal", "uid:1001")
		log.Warn("something else", "principal", "uid:1000")
		if !strings.Contains(out.String(), "msg=refused principal=uid:1001") {
			t.Errorf("another caller's line is missing:\n%s", out.String())
		}
		if !strings.Contains(out.String(), `msg="something else"`) {
			t.Errorf("a line of another kind is missing:\n%s", out.String())
		}
		<-time.After(logfile.LeftOutEvery)
		synctest.Wait()
		logged := strings.Count(out.String(), "msg=refused principal=uid:1000")
		if logged != 20 || !strings.Contains(out.String(), "caller=uid:1000 count=980") {
			t.Errorf("%d were logged, and:\n%s", logged, out.String())
		}
		out.Reset()
		log.Warn("refused", "principal", "uid:1000")
		if !strings.Contains(out.String(), "uid:1000") {
			t.Error("nothing is logged any more")
		}
		// Many callers together have a bound too.
		out.Reset()
		for i := range 100_000 {
			log.Warn("refused", "principal", fmt.Sprint("uid:", i))
		}
		if n := strings.Count(out.String(), "\n"); n > 600 {
			t.Errorf("%d lines of many callers", n)
		}
		<-time.After(logfile.LeftOutEvery)
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n > 700 {
			t.Errorf("%d lines, with those that count", n)
		}
	})
}

func TestLogRotates(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	const most = 1000
	log, old := open("daemon.log"), open("daemon.log.1")
	w, err := logfile.NewRotating(log, old, most)
	if err != nil {
		t.Fatal(err)
	}
	size := func(f *os.File) int64 {
		fi, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	for i := range 500 {
		if _, err := fmt.Fprintf(w, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		if size(log) > most || size(old) > most {
			t.Fatalf("after line %d: %d and %d bytes", i, size(log), size(old))
		}
	}
	_, _ = log.WriteString("a panic, not through the writer\n")
	both, err := os.ReadFile(old.Name())
	if err != nil {
		t.Fatal(err)
	}
	newer, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(both)+string(newer), "\n")
	if n := len(lines); lines[n-2] != "a panic, not through the writer" || lines[n-3] != "line 499" || n < 100 {
		t.Errorf("%d lines, the last %q", n, lines[n-3:])
	}
	numbered := lines[:len(lines)-2]
	for i, l := range numbered { // none is missing between the two files
		if want := fmt.Sprint("line ", 500-len(numbered)+i); l != want {
			t.Fatalf("%q instead of %q", l, want)
		}
	}
	// A file that others made larger is cut too.
	if err := log.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	w, err = logfile.NewRotating(log, old, most)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "the newest")
	if size(log) > most || size(old) > most {
		t.Errorf("%d and %d bytes", size(log), size(old))
	}
	pipe, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer end.Close()
	if _, err := logfile.NewRotating(pipe, old, most); err == nil {
		t.Error("a pipe is rotated")
	}
}

// lines are what is logged, also by a timer.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}
