package ways_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// An owner sees what is open and what has ended, with the bytes that have passed, and nothing of others.
func TestConnections(t *testing.T) {
	w := newWorld(t, ways.Config{})
	w.must(w.Open(t.Context(), one, []string{w.echo}, nil))
	w.must(w.Open(t.Context(), two, nil, nil))
	c := w.reaches(one)
	w.refused(two)
	of := func(after uint64) workspace.Connections {
		t.Helper()
		all, err := w.Connections(t.Context(), one, after)
		w.must(err)
		return all
	}
	all := of(0)
	if len(all.Open) != 1 || len(all.Ended) != 0 {
		t.Fatalf("%+v", all)
	}
	if x := all.Open[0]; x.Host != "127.0.0.1" || x.Port == 0 || x.Way != "connect" || x.SentBytes != 6 || x.ReceivedBytes != 6 ||
		x.Duration > time.Since(x.Began) || x.Count != 1 || x.Address == "" {
		t.Errorf("open: %+v", x)
	}
	c.Close()
	until(t, "the connection ends", func() bool { return len(of(0).Ended) == 1 })
	if x := of(0).Ended[0]; x.Number != 1 || x.SentBytes != 6 || x.ReceivedBytes != 6 || x.Refused != "" || x.Rule == "" {
		t.Errorf("ended: %+v", x)
	}
	if all := of(1); len(all.Open)+len(all.Ended) != 0 {
		t.Errorf("after the last: %+v", all)
	}
	w.must(w.Change(t.Context(), one, nil, nil))
	w.refused(one)
	until(t, "the refusal is told", func() bool { return len(of(1).Ended) == 1 })
	if x := of(1).Ended[0]; x.Number != 2 || !strings.Contains(x.Refused, "no rule names it") {
		t.Errorf("refused: %+v", x)
	}
	// A process that hangs holds nobody up for long, and what has ended is told all the same.
	pid := w.signal(one, unix.SIGSTOP)
	until(t, "it stops", func() bool { // each thread does
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		return err == nil && len(stats) > 0 && !slices.ContainsFunc(stats, func(path string) bool {
			b, err := os.ReadFile(path)
			return err != nil || !strings.Contains(string(b), ") T ")
		})
	})
	began := time.Now()
	late, err := w.Connections(t.Context(), one, 0)
	if took := time.Since(began); err == nil || len(late.Ended) != 2 || took > 5*time.Second {
		t.Errorf("%+v, %v after %v", late, err, took)
	}
	w.signal(one, unix.SIGCONT)
	// What has ended is told after the end of the way, too.
	w.Close(one)
	if all := of(0); len(all.Open) != 0 || len(all.Ended) != 2 {
		t.Errorf("%+v", all)
	}
}
