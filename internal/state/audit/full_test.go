package audit_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/test/smalldisk"
)

// filler takes each block of a file system that becomes free, until stop is called.
func filler(t *testing.T, dir string) (stop func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filling"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	enough, full := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		once := sync.OnceFunc(func() { close(full) })
		b := make([]byte, 64<<10)
		for {
			select {
			case <-enough:
				return
			default:
			}
			for size := len(b); size > 0; {
				if _, err := f.Write(b[:size]); err != nil {
					size /= 2
				}
			}
			once()
		}
	})
	<-full
	stop = sync.OnceFunc(func() {
		close(enough)
		wg.Wait()
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

const held = 1 << 20

// While another takes each block at once, a log records what it has room for, also over restarts, and
// begins no other file. When there is room again it holds it again.
func TestRecordsOnAFullDisk(t *testing.T) {
	dir := smalldisk.Mount(t, "16m")
	o := audit.Options{Path: filepath.Join(dir, "audit.jsonl"), Room: held, MaxSize: 64 << 10}
	l := open(t, o)
	mustAppend(t, l, intent(0))
	stop := filler(t, dir)
	each := len(lines(t, o.Path)[0]) // and as much for an outcome, which is shorter
	for i := 1; i < held*5/8/each; i++ {
		seq := mustAppend(t, l, intent(i))
		mustAppend(t, l, audit.Record{Type: audit.Outcome, Intent: seq, Status: audit.StatusOK})
		if i%500 == 0 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = open(t, o)
		}
	}
	if err := l.Room(t.Context()); !errdefs.IsResourceExhausted(err) {
		t.Errorf("on a full disk the log holds all its room: %v", err)
	}
	if full, _ := filepath.Glob(filepath.Join(dir, "audit-*")); len(full) > 0 {
		t.Errorf("it began another file on a full disk: %v", full)
	}
	stop()
	if err := l.Room(t.Context()); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	last := mustAppend(t, l, intent(0))
	if full, _ := filepath.Glob(filepath.Join(dir, "audit-*")); len(full) == 0 {
		t.Error("it does not begin another file although there is room again")
	}
	stop = filler(t, dir)
	for i := range 100 { // the new file has its room
		last = mustAppend(t, l, intent(i))
	}
	stop()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if v, err := audit.VerifyLog(t.Context(), o.Path, audit.Trust{}); err != nil || v.Bad != nil || v.Head.Seq != last {
		t.Errorf("verify: %+v, bad %+v, %v", v, v.Bad, err)
	}
}

// Without any room an intent is refused and an outcome waits. Both are in the record once there is room,
// in their order; of the refused intent it says that it was not carried out.
func TestNoRoomAtAll(t *testing.T) {
	dir := smalldisk.Mount(t, "1m")
	o := audit.Options{Path: filepath.Join(dir, "audit.jsonl")}
	l := open(t, o)
	began := mustAppend(t, l, intent(0))
	stop := filler(t, dir)
	var last int64
	var err error
	refused := 0
	for i := 1; refused == 0; i++ {
		var seq int64
		if seq, err = l.Append(t.Context(), intent(i)); err != nil {
			refused = i
		} else {
			last = seq
		}
	}
	if !errors.Is(err, unix.ENOSPC) || !errdefs.IsResourceExhausted(err) {
		t.Fatalf("a full disk gave %v", err)
	}
	if _, err := l.Append(t.Context(), intent(refused+1)); !errdefs.IsResourceExhausted(err) {
		t.Errorf("append on a full disk: %v", err)
	}
	if err := l.AppendAsync(audit.Record{Type: audit.Outcome, Intent: began, Status: audit.StatusOK}); err != nil {
		t.Errorf("an outcome does not wait for room: %v", err)
	}
	if err := l.Room(t.Context()); !errdefs.IsResourceExhausted(err) {
		t.Errorf("on a full disk: %v", err)
	}
	if l.Head().Seq != last {
		t.Errorf("head is %v, the last record on disk was %d", l.Head(), last)
	}
	select {
	case <-l.Failed():
		t.Error("a full disk ended the log")
	default:
	}
	stop()
	if err := l.Room(t.Context()); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	mustAppend(t, l, intent(1))
	v := mustHold(t, o.Path, -1)
	if v.Head != l.Head() {
		t.Errorf("head of the file %v, of the log %v", v.Head, l.Head())
	}
	results := map[int64]string{}
	if err := l.Read(t.Context(), last+1, 0, false, func(lines [][]byte) error {
		for _, line := range lines {
			r, err := audit.Decode(line)
			if err != nil {
				return err
			}
			if r.Type == audit.Outcome {
				results[r.Intent] = r.Status
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if results[last+1] != audit.StatusFailed || results[began] != audit.StatusOK || len(results) != 2 {
		t.Errorf("outcomes by intent: %v; want %d failed and %d ok", results, last+1, began)
	}
}

// Where the file system can hold no room inside files, a reserve gives it, and is filled again.
func TestReserve(t *testing.T) {
	dir := oldDisk(t)
	f, err := os.OpenFile(filepath.Join(dir, "reserve"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	reserve, err := diskreserve.NewReserve(f, 4<<20)
	if err != nil || reserve == nil {
		t.Fatalf("this file system holds room itself: %v", err)
	}
	defer reserve.Close()
	if err := reserve.Room(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := audit.Options{Path: filepath.Join(dir, "audit.jsonl"), Room: held, Reserve: reserve}
	l := open(t, o)
	mustAppend(t, l, intent(0))
	filling, err := os.Create(filepath.Join(dir, "filling"))
	if err != nil {
		t.Fatal(err)
	}
	defer filling.Close()
	for size := 1 << 20; size > 0; {
		if _, err := filling.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	each := len(lines(t, o.Path)[0])
	for i := range (2 << 20) / each {
		if err := l.AppendAsync(intent(i)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if _, err := l.Mark(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := reserve.Room(t.Context()); !errdefs.IsResourceExhausted(err) {
		t.Errorf("on a full disk the reserve is filled: %v", err)
	}
	if err := filling.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if err := reserve.Room(t.Context()); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	if _, err := l.Mark(); err != nil { // nothing is being written any more
		t.Fatal(err)
	}
	mustHold(t, o.Path, -1)
}

// oldDisk mounts a file system that cannot hold room inside files.
func oldDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root to mount a small file system")
	}
	dir := filepath.Join(t.TempDir(), "carrel-test-old-disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"truncate", "-s", "24M", dir + ".img"},
		{"mkfs.ext2", "-q", "-F", "-m", "0", dir + ".img"},
		{"mount", "-o", "loop,nosuid,nodev", dir + ".img", dir},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("skipped: cannot mount an ext2 here: %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
