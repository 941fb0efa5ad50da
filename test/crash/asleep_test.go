package crash_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
	"github.com/carrel-dev/carrel/test/crash/check"
)

// FIFREEZE and FITHAW of linux/fs.h: _IOWR('X', 119 and 120, int).
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// needImages skips a test on a host without what a limit on disk space takes.
func needImages(t testing.TB) {
	t.Helper()
	needRoot(t)
	if err := image.Ready(); err != nil {
		t.Skipf("skipped: %v", err)
	}
}

// freeze freezes the file system of a running workspace with a disk limit, and no other;
// what writes there sleeps in the kernel until thaw.
func (h *host) freeze(t testing.TB, key string) (thaw func()) {
	t.Helper()
	var d struct {
		PID int `json:"executor_pid"`
	}
	must(t, json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", key)), &d))
	f, err := os.Open(fmt.Sprintf("/proc/%d/root/tmp", d.PID))
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	on, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil || !strings.HasPrefix(string(on), h.data+"/images/") {
		t.Fatalf("/tmp of %s is on %q: %v", key, on, err)
	}
	must(t, unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0))
	done := false
	thaw = func() {
		if !done {
			done = true
			must(t, unix.IoctlSetInt(int(f.Fd()), fiThaw, 0))
			must(t, f.Close())
		}
	}
	t.Cleanup(thaw)
	return thaw
}

// thawAll thaws what a test that was killed has left frozen below dir.
func thawAll(dir string) {
	all, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range all {
		on, _ := os.ReadFile(f) // it may have gone
		at := dir + "/thaw"
		if !strings.HasPrefix(string(on), dir+"/") || os.MkdirAll(at, 0o700) != nil {
			continue
		}
		if unix.Mount("/dev/"+strings.Split(f, "/")[3], at, "ext4", 0, "") != nil {
			continue
		}
		if d, err := os.Open(at); err == nil {
			_ = unix.IoctlSetInt(int(d.Fd()), fiThaw, 0) // most are not frozen
			_ = d.Close()
		}
		_ = unix.Unmount(at, unix.MNT_DETACH)
	}
}

// within runs a command and sees that it takes no longer than most.
func (h *host) within(t *testing.T, most time.Duration, args ...string) result {
	t.Helper()
	began := time.Now()
	r := h.try(args...)
	if took := time.Since(began); took > most {
		t.Errorf("carrel %q takes %v, more than %v", args, took.Round(time.Millisecond), most)
	}
	return r
}

// neighbour sees that another workspace answers as if nothing were.
func (h *host) neighbour(t *testing.T) {
	t.Helper()
	if r := h.within(t, 3*time.Second, "exec", "crk neighbour", "--", "echo", "here"); r.out != "here\n" {
		t.Errorf("the neighbour says: %v", r)
	}
	if r := h.within(t, 3*time.Second, "ls"); r.code != 0 {
		t.Errorf("ls: %v", r)
	}
}

var sleeps = regexp.MustCompile(`process (\d+) \(([^)]*)\) sleeps uninterruptibly( in \w+)?`)

// namesSleeper sees that an operation fails in time, and names a process of the host that
// does sleep in the kernel, and what to do.
func (h *host) namesSleeper(t *testing.T, most time.Duration, args ...string) {
	t.Helper()
	r := h.within(t, most, args...)
	t.Logf("carrel %q says: %s", args, strings.TrimSpace(r.err))
	m := sleeps.FindStringSubmatch(r.err)
	if r.code == 0 || m == nil || !strings.Contains(r.err, "fsfreeze --unfreeze") {
		t.Fatalf("carrel %q does not say which process sleeps: %v", args, r)
	}
	stat, err := os.ReadFile("/proc/" + m[1] + "/stat")
	if err != nil || !bytes.Contains(stat, []byte("("+m[2]+") D ")) {
		t.Errorf("process %s is %q, %v", m[1], stat, err)
	}
	wchan, err := os.ReadFile("/proc/" + m[1] + "/wchan")
	if err == nil && len(wchan) > 1 && m[3] != " in "+string(wchan) {
		t.Errorf("it sleeps in %q, and %q was said", wchan, m[3])
	}
}

// A process that sleeps in the kernel takes no KILL. Everything that would have to end it
// fails in time and says which process it is; others are not kept waiting; and once the
// process goes on, the same can be asked for again.
func TestUninterruptibleSleep(t *testing.T) {
	needImages(t)
	t.Parallel() // most of it is waiting for what does not end
	h := newHostUp(t)
	const key = "crk asleep"
	h.carrel(t, "create", "--disk", "64MiB", "--idle-timeout", "never", key)
	h.carrel(t, "create", "--idle-timeout", "never", "crk neighbour")
	h.carrel(t, "exec", key, "--", "/bin/sh", "-c", "echo kept > file")

	thaw := h.freeze(t, key)
	r := h.within(t, 15*time.Second, "exec", "--timeout", "1s", key, "--", "/bin/sh", "-c", "echo more >> file")
	t.Logf("exec says: %v", r)
	if r.code != 137 || !strings.Contains(r.err, "ended after its timeout of 1s") ||
		!strings.Contains(r.err, "KILL did not end 1 of the command's processes") {
		t.Errorf("a command that sleeps past its time-out: %v", r)
	}
	// What does not write goes on beside it, and a command that left a sleeper ends too.
	if r := h.within(t, 3*time.Second, "exec", key, "--", "cat", "file"); r.out != "kept\n" {
		t.Errorf("beside it: %v", r)
	}
	const leave = `(echo more >> file) & until grep -q ") D" "/proc/$!/stat"; do :; done; echo said` // it sleeps before its parent ends
	if r := h.within(t, 15*time.Second, "exec", key, "--", "/bin/sh", "-c", leave); r.code != 0 ||
		!strings.Contains(r.err, "KILL did not end 1") {
		t.Errorf("a command that leaves a sleeper: %v", r)
	}
	if out := h.carrel(t, "ps", key); strings.Count(out, "echo more") != 2 {
		t.Errorf("those that could not be ended are not listed:\n%s", out)
	}
	h.refused(t, []string{"commands run in it"}, "archive", "create", key)
	h.namesSleeper(t, 15*time.Second, "pause", key)
	if out := h.carrel(t, "exec", key, "--", "cat", "file"); out != "kept\n" {
		t.Errorf("after a pause that failed: %q", out)
	}
	stopped, end := context.WithCancel(t.Context())
	var neighbour sync.WaitGroup
	neighbour.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for stopped.Err() == nil {
			h.neighbour(t)
			<-tick.C
		}
	})
	h.namesSleeper(t, 35*time.Second, "stop", key)
	end()
	neighbour.Wait()
	// It is not listed as stopped, and it is not used as if it ran.
	if out := h.carrel(t, "ls"); !strings.Contains(out, "running") || strings.Contains(out, "stopped") {
		t.Errorf("after a stop that failed:\n%s", out)
	}
	h.settled(t)
	thaw()
	h.carrel(t, "stop", key)
	if out := h.carrel(t, "exec", key, "--", "cat", "file"); !strings.HasPrefix(out, "kept\n") {
		t.Errorf("after all: %q", out)
	}
	h.carrel(t, "pause", key)
	h.carrel(t, "resume", key)
	h.settled(t)
	h.look(t, check.Expect{Any: true})

	// Nobody sleeps, and still the image is in use: it is not taken away unseen.
	thaw = h.freeze(t, key)
	h.refused(t, []string{"mounted still", "losetup -j", "fsfreeze --unfreeze"}, "destroy", "--purge", key)
	h.neighbour(t)
	thaw()
	// The daemon may have gone on with it by itself.
	if r := h.try("destroy", "--purge", key); r.code != 0 && !strings.Contains(r.err, "cannot find workspace") {
		t.Fatalf("after all: %v", r)
	}
	h.settled(t)
	h.look(t, check.Expect{Live: []string{h.name(t, "crk neighbour")}})

	// A destroy, over a restart of everything, once while it sleeps and once after.
	h.carrel(t, "create", "--disk", "64MiB", key)
	thaw = h.freeze(t, key)
	h.carrel(t, "exec", "--detach", key, "--", "/bin/sh", "-c", "echo more >> file")
	h.namesSleeper(t, 35*time.Second, "destroy", key)
	h.restart(t)
	h.neighbour(t)
	thaw()
	h.restart(t)
	h.settled(t)
	h.look(t, check.Expect{Live: []string{h.name(t, "crk neighbour")}})
	h.carrel(t, "destroy", "--purge", "crk neighbour")
	h.settled(t)
	h.gone(t)
}

// restart kills daemon and broker and brings them up again, in time.
func (h *host) restart(t *testing.T) {
	t.Helper()
	for _, part := range []string{"daemon", "broker"} {
		pid, err := h.part(part)
		must(t, err)
		must(t, kill(pid))
	}
	began := time.Now()
	h.up(t)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("carrel comes up after %v", took)
	}
}
