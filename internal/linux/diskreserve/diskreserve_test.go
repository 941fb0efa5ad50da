package diskreserve_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/test/smalldisk"
)

// asks counts what an Ahead asks for, and refuses beyond most.
type asks struct {
	calls int
	most  int64
	err   error
}

func (a *asks) hold(_, to int64) error {
	a.calls++
	if to > a.most {
		return a.err
	}
	return nil
}

// A file that grows asks once for each step, keeps what it got before there was no more, and asks a file
// system that cannot hold room once.
func TestAhead(t *testing.T) {
	const mib = 1 << 20
	a := diskreserve.Ahead{Least: 4 * mib, Step: 2 * mib}
	b := &asks{most: 1 << 40}
	for end := int64(0); end < 20*mib; end += 1000 {
		if err := a.Keep(b.hold, end); err != nil || a.Left(end) < a.Least {
			t.Fatalf("at %d %d are held, %v", end, a.Left(end), err)
		}
	}
	if b.calls > 40 { // three for each step
		t.Errorf("it asked %d times for 26 MiB", b.calls)
	}
	full := &asks{most: 30 * mib, err: unix.ENOSPC}
	if err := a.Keep(full.hold, 25*mib); !errors.Is(err, unix.ENOSPC) || a.Left(25*mib) != 5*mib {
		t.Errorf("%v, and %d are held", err, a.Left(25*mib))
	}
	none := &asks{err: unix.EOPNOTSUPP}
	a.Reset()
	for range 3 {
		if err := a.Keep(none.hold, 0); err != nil || a.Left(0) != 0 || none.calls != 1 {
			t.Errorf("%v, %d, %d calls", err, a.Left(0), none.calls)
		}
	}
}

// holder is a test double of what holds room.
type holder struct{ err error }

func (h *holder) Room(context.Context) error { return h.err }

// A small file system that is filled is full until there is clearly room again and everything holds its own.
func TestGauge(t *testing.T) {
	dir := smalldisk.Mount(t, "16m")
	var said bytes.Buffer
	h := &holder{}
	g := diskreserve.NewGauge(dir, slog.New(slog.NewTextHandler(&said, nil)), h)
	now := time.Unix(0, 0)
	see := func(want bool) {
		t.Helper()
		g.Look(t.Context(), now)
		now = now.Add(time.Second)
		err := g.Full()
		if want != (err != nil) || want && (!errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "carrel destroy --purge")) {
			t.Errorf("full: %v, want %v", err, want)
		}
	}
	fill := func(mib float64) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "filling"), make([]byte, int(mib*(1<<20))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	see(false)
	fill(15)
	see(false)
	fill(15.9)
	for range 30 {
		see(true)
	}
	if n := strings.Count(said.String(), "the disk is full"); n != 1 {
		t.Errorf("in half a minute the log says %d times that it is full", n)
	}
	fill(15.6) // more than at first, and less than twice as much
	see(true)
	fill(15)
	h.err = unix.ENOSPC
	see(true)
	h.err = nil
	see(false)
	h.err = errdefs.ErrResourceExhausted
	see(true)
	h.err = nil
	see(false)
	if !strings.Contains(said.String(), "there is room") {
		t.Errorf("the log says\n%s", said.String())
	}
}
