package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

const smallFile = 2 << 10

// fullOf lists the full files of a log, in order.
func fullOf(t testing.TB, path string) []string {
	t.Helper()
	full, err := filepath.Glob(filepath.Join(filepath.Dir(path), "audit-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(full)
	return full
}

func mustHoldAll(t testing.TB, path string, trust audit.Trust, records int64) {
	t.Helper()
	v, err := audit.VerifyLog(t.Context(), path, trust)
	if err != nil || v.Bad != nil || v.Records != records {
		t.Fatalf("verify: %+v, bad %+v, %v; want %d good records", v, v.Bad, err, records)
	}
}

func TestRotation(t *testing.T) {
	d := newFixture(t)
	l := open(t, audit.Options{Path: d.path, MaxSize: smallFile})
	c := d.checkpoints(t, l, d.options())
	// A reader follows across files.
	ctx, cancel := context.WithCancel(t.Context())
	var followed []int64
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = l.Read(ctx, 1, 0, true, func(lines [][]byte) error {
			for _, line := range lines {
				followed = append(followed, headOf(line).Seq)
			}
			if len(followed) >= 60 {
				cancel()
			}
			return nil
		})
	})
	var appenders sync.WaitGroup
	for w := range 3 {
		appenders.Go(func() {
			for i := range 20 {
				if _, err := l.Append(t.Context(), intent(100*w+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	appenders.Wait()
	wg.Wait()
	cancel()
	for i, seq := range followed {
		if seq != int64(i+1) {
			t.Fatalf("followed %v", followed)
		}
	}
	head := l.Head()
	mustMake(t, c, head.Seq)
	full := fullOf(t, d.path)
	if len(full) < 5 {
		t.Fatalf("full files: %v", full)
	}
	if v, err := l.Verify(t.Context()); err != nil || v.Bad != nil || v.Records != head.Seq {
		t.Errorf("%+v %v", v, err)
	}
	mustHoldAll(t, d.path, d.trust(t), head.Seq)
	// The first record of each file describes the file before, and the file's name its records.
	next := int64(1)
	prev := ""
	for _, file := range append(slices.Clone(full), d.path) {
		ls := lines(t, file)
		first, _ := audit.Decode(ls[0])
		last, _ := audit.Decode(ls[len(ls)-1])
		if first.Seq != next {
			t.Errorf("%s begins with %d, want %d", file, first.Seq, next)
		}
		if file != d.path && filepath.Base(file) != fmt.Sprintf("audit-%012d-%012d.jsonl", first.Seq, last.Seq) {
			t.Errorf("%s has %d to %d", file, first.Seq, last.Seq)
		}
		if prev != "" {
			var r audit.Rotated
			if err := json.Unmarshal(first.Data, &r); err != nil || first.Type != audit.Rotation ||
				r.File != filepath.Base(prev) || r.LastHash != first.PrevHash || r.TreeSize != first.Seq-1 {
				t.Errorf("%s begins with %+v", file, first)
			}
		}
		next, prev = last.Seq+1, file
	}
	// Reading from any record, and again after a restart.
	c.Close()
	l.Close()
	l = open(t, audit.Options{Path: d.path, MaxSize: smallFile, Since: audit.Mark{Head: headOf(lines(t, full[1])[0])}})
	for _, from := range []int64{1, 2, head.Seq / 2, head.Seq} {
		want := from
		if err := l.Read(t.Context(), from, 0, false, func(ls [][]byte) error {
			for _, line := range ls {
				if got := headOf(line).Seq; got != want {
					return fmt.Errorf("record %d instead of %d", got, want)
				}
				want++
			}
			return nil
		}); err != nil || want != head.Seq+1 {
			t.Errorf("from %d to %d: %v", from, want, err)
		}
	}
	c = d.checkpoints(t, l, d.options())
	mustAppend(t, l, intent(1))
	if f, err := c.Verify(t.Context()); err != nil || !f.OK {
		t.Errorf("%+v %v", f, err)
	}
	open, err := l.Unfinished()
	if err != nil || len(open) == 0 {
		t.Errorf("%d unfinished, %v", len(open), err)
	}
}

func TestRotationByAge(t *testing.T) {
	path := logPath(t)
	old := intent(0)
	old.Time = time.Now().Add(-time.Hour)
	l := open(t, audit.Options{Path: path, MaxAge: 30 * time.Minute})
	mustAppend(t, l, old)
	l.Close()
	l = open(t, audit.Options{Path: path, MaxAge: 30 * time.Minute})
	mustAppend(t, l, intent(1))
	mustAppend(t, l, intent(2))
	if full := fullOf(t, path); len(full) != 1 || l.Head().Seq != 4 {
		t.Errorf("%v, head %v", full, l.Head())
	}
}

// The next start repairs each state that a kill between two steps of a rotation can leave.
func TestRotationBrokenOff(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(t *testing.T, path string)
	}{
		{"the next file begun", func(t *testing.T, path string) {
			if err := os.WriteFile(path+".new", []byte(`{"hash":"`), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"the full file named", func(t *testing.T, path string) {
			ls := lines(t, path)
			first, last := headOf(ls[0]), headOf(ls[len(ls)-1])
			err := os.Link(path, filepath.Join(filepath.Dir(path), fmt.Sprintf("audit-%012d-%012d.jsonl", first.Seq, last.Seq)))
			if err := errors.Join(err, os.WriteFile(path+".new", audit.Line(intent(9), last.Hash, last.Seq+1, time.Now()), 0o600)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := logPath(t)
			l := open(t, audit.Options{Path: path, MaxSize: smallFile})
			for i := range 10 {
				mustAppend(t, l, intent(i))
			}
			head := l.Head().Seq
			l.Close()
			before := len(fullOf(t, path))
			c.leave(t, path)
			l = open(t, audit.Options{Path: path, MaxSize: smallFile})
			if n := len(fullOf(t, path)); n != before || l.Head().Seq != head {
				t.Errorf("%d full files, %d before; head %v, %d before", n, before, l.Head(), head)
			}
			for i := range 10 {
				mustAppend(t, l, intent(i))
			}
			mustHoldAll(t, path, audit.Trust{}, l.Head().Seq)
			if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
		})
	}
}

// A start and a verification notice a removed or exchanged file.
func TestFullFilesChanged(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(full []string, path string) error
		want audit.Harm
	}{
		"the first removed": {func(f []string, _ string) error { return os.Remove(f[0]) }, audit.TruncatedFront},
		"one removed":       {func(f []string, _ string) error { return os.Remove(f[2]) }, audit.Deleted},
		"the last removed":  {func(_ []string, p string) error { return os.Remove(p) }, ""},
		"two exchanged": {func(f []string, _ string) error {
			return errors.Join(os.Rename(f[1], f[1]+"x"), os.Rename(f[2], f[1]), os.Rename(f[1]+"x", f[2]))
		}, audit.Reordered},
		"one cut": {func(f []string, _ string) error { return os.Truncate(f[1], 700) }, audit.Torn},
		"one edited": {func(f []string, _ string) error {
			b, err := os.ReadFile(f[1])
			return errors.Join(err, os.WriteFile(f[1], bytes.Replace(b, []byte("uid:1000"), []byte("uid:1001"), 1), 0o600))
		}, audit.Edited},
		"an older copy instead of the newest": {func(f []string, p string) error {
			b, err := os.ReadFile(f[len(f)-1])
			return errors.Join(err, os.WriteFile(p, b, 0o600))
		}, audit.Inserted},
	} {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			l := open(t, audit.Options{Path: path, MaxSize: smallFile})
			for i := range 30 {
				mustAppend(t, l, intent(i))
			}
			l.Close()
			full := fullOf(t, path)
			if err := c.do(full, path); err != nil {
				t.Fatal(err)
			}
			v, err := audit.VerifyLog(t.Context(), path, audit.Trust{})
			switch {
			case c.want == "" && err == nil:
				t.Errorf("verified: %+v", v)
			case c.want != "" && (err != nil || v.Bad == nil || v.Bad.Harm != c.want || v.Bad.File == ""):
				t.Errorf("%+v %v, want %s", v.Bad, err, c.want)
			}
			l, err = audit.Open(t.Context(), audit.Options{Path: path})
			if err == nil {
				l.Close()
			}
			if gone := name == "the last removed" || name == "an older copy instead of the newest"; gone && !errors.Is(err, audit.ErrDamaged) {
				t.Errorf("opened: %v", err)
			}
		})
	}
}

// If the disk is too full for the next file no further record is accepted, and no acknowledged one is lost. The log
// goes on once there is room, with and without a restart.
func TestRotationOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root to mount a small tmpfs")
	}
	for _, restart := range []bool{true, false} {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=32k,mode=700"); err != nil {
			t.Skipf("skipped: cannot mount a tmpfs here: %v", err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		o := audit.Options{Path: filepath.Join(dir, "audit.jsonl"), MaxSize: 4 << 10}
		l := open(t, o)
		var last int64
		for i := 0; ; i++ {
			seq, err := l.Append(t.Context(), intent(i))
			if err != nil {
				if !errors.Is(err, unix.ENOSPC) || !errdefs.IsResourceExhausted(err) {
					t.Fatalf("a full disk gave %v", err)
				}
				break
			}
			last = seq
		}
		if _, err := l.Append(t.Context(), intent(0)); !errdefs.IsResourceExhausted(err) {
			t.Errorf("append on a full disk: %v", err)
		}
		if restart {
			l.Close()
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, "size=256k,mode=700"); err != nil {
			t.Fatal(err)
		}
		if restart {
			l = open(t, o)
		}
		if l.Head().Seq < last {
			t.Fatalf("record %d was acknowledged and is gone: %v", last, l.Head())
		}
		for i := range 30 { // some files more
			mustAppend(t, l, intent(i))
		}
		mustHoldAll(t, o.Path, audit.Trust{}, l.Head().Seq)
	}
}
