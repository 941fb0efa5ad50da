package crash_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// patience bounds every command and every wait.
const patience = 40 * time.Second

// host is a carrel of a test's own.
type host struct {
	dir, data, run, points string
	// prefix is that of its workspaces and of no other instance's.
	prefix string
	// taken: another carrel of this machine took away what was planted.
	taken bool
}

func hostAt(dir string) *host {
	return &host{
		dir: dir, data: dir + "/a/data", run: dir + "/b/run", points: dir + "/points",
		prefix: fmt.Sprintf("crk%08x", crc32.ChecksumIEEE([]byte(dir))),
	}
}

// newHost makes a place for a carrel and takes all of it away with the test.
func newHost(t testing.TB) *host {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp(base, "h")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	h := hostAt(dir)
	must(t, os.Mkdir(h.points, 0o777))
	must(t, os.Chmod(h.points, 0o777))
	t.Cleanup(func() {
		if err := h.remove(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// newHostUp is newHost with the carrel up.
func newHostUp(t testing.TB) *host {
	t.Helper()
	h := newHost(t)
	h.up(t)
	return h
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// result is how a program ended.
type result struct {
	code     int
	out, err string
}

func (r result) String() string { return fmt.Sprintf("exit code %d\n%s%s", r.code, r.out, r.err) }

func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(bin, "carrel"), args...)
	c.Dir = "/"
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CARREL_HOST=unix://" + h.run + "/carrel.sock", "CARREL_CRASHPOINTS=" + h.points}
	return c
}

// events are those since the start and those to come, until end is called.
func (h *host) events(t *testing.T) (lines *json.Decoder, end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	c := h.command(ctx, "events", "--since", "1", "-o", "json")
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	return json.NewDecoder(out), func() { cancel(); _ = c.Wait() }
}

// try runs the carrel program as root. A code of -1 is a signal.
func (h *host) try(args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	c := h.command(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if c.ProcessState == nil {
		return result{-2, "", fmt.Sprint(err)}
	}
	return result{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// carrel runs the program, which must succeed.
func (h *host) carrel(t testing.TB, args ...string) string {
	t.Helper()
	r := h.try(args...)
	if r.code != 0 {
		t.Fatalf("carrel %q: %v", args, r)
	}
	return r.out
}

func (h *host) flags() []string { return []string{"--data", h.data, "--runtime-dir", h.run} }

func (h *host) tryUp() result {
	return h.try(append([]string{"up", "--detach", "--prefix", h.prefix}, h.flags()...)...)
}

func (h *host) up(t testing.TB) {
	t.Helper()
	if r := h.tryUp(); r.code != 0 {
		t.Fatalf("cannot bring carrel up: %v", r)
	}
}

func (h *host) tryDown(flags ...string) result {
	return h.try(append(append([]string{"down"}, flags...), h.flags()...)...)
}

// purge destroys every workspace and takes the carrel away.
func (h *host) purge() error {
	if _, err := os.Stat(h.data + "/up.json"); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var err error
	if r := h.tryUp(); r.code != 0 {
		err = fmt.Errorf("cannot bring carrel up: %v", r)
	}
	if all := strings.Fields(h.try("ls", "-q").out); len(all) > 0 {
		if r := h.try(append([]string{"destroy", "--purge"}, all...)...); r.code != 0 {
			err = errors.Join(err, fmt.Errorf("cannot destroy %v: %v", all, r))
		}
	}
	if r := h.tryDown("--purge"); r.code != 0 {
		err = errors.Join(err, fmt.Errorf("cannot take carrel down: %v", r))
	}
	return err
}

// remove removes everything, including what no instance knows.
func (h *host) remove() error {
	disarmed := os.RemoveAll(h.points)
	if _, err := os.Stat(h.dir); err != nil {
		return nil
	}
	thawAll(h.dir)
	in, known := check.Read(h.data, h.prefix)
	err := h.purge()
	if err != nil && known == nil {
		for _, part := range []string{"daemon", "broker"} {
			if pid, err := h.part(part); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		scrub(in)
	}
	return errors.Join(disarmed, err, os.RemoveAll(h.dir))
}

// scrub removes the users of an instance that cannot do it itself.
func scrub(in check.Instance) {
	b, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(b)) {
		f := strings.Split(line, ":")
		if len(f) > 2 && strings.HasPrefix(f[0], in.Prefixes[0]+"-") {
			_ = exec.CommandContext(context.Background(), "/usr/sbin/userdel", f[0]).Run()
		}
	}
}

// arm has the process end that passes the point for the nth time.
func (h *host) arm(t testing.TB, point string, n int) {
	t.Helper()
	path := filepath.Join(h.points, point)
	must(t, os.WriteFile(path, []byte(strconv.Itoa(n)), 0o666))
	must(t, os.Chmod(path, 0o666))
}

// fired reports whether a process ended at the point since it was armed. Of an executor
// the broker's log tells; mark is where that ended before.
func (h *host) fired(point string, mark int64) bool {
	if strings.HasPrefix(point, "executor.") {
		b, err := os.ReadFile(h.data + "/log/broker.log")
		return err == nil && mark <= int64(len(b)) && strings.Contains(string(b[mark:]), "crashpoint "+point)
	}
	_, err := os.Stat(filepath.Join(h.points, point))
	return errors.Is(err, os.ErrNotExist)
}

func (h *host) logEnd() int64 {
	st, err := os.Stat(h.data + "/log/broker.log")
	if err != nil {
		return 0
	}
	return st.Size()
}

// part returns the pid of the broker or the daemon.
func (h *host) part(name string) (int, error) {
	b, err := os.ReadFile(h.run + "/" + name + ".pid")
	var p struct {
		PID int `json:"pid"`
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p.PID, err
}

// kill ends a process at once and waits until it has ended.
func kill(pid int) error { return end(pid, unix.SIGKILL) }

// end sends a signal that ends a process, and waits until it has.
func end(pid int, s unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n != 1 {
			err = fmt.Errorf("process %d does not die", pid)
		}
		return err
	}
}

// until asks again until yes says yes: of what other processes do, no word comes.
func until(t testing.TB, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !yes(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// look lets the checker decide, but for some kinds.
func (h *host) look(t testing.TB, want check.Expect, but ...check.Kind) {
	t.Helper()
	in, err := check.Read(h.data, h.prefix)
	must(t, err)
	in.Before, in.Except = before, but
	find(t, in, want)
}

// mayPass reports whether what is left may be another's that is on its way out: the daemon acts by itself, and
// what it is at has no outcome yet; and another carrel of this host may have had a tool killed that held a
// lock of the user database, which it takes away when it is up again.
func mayPass(t testing.TB, left []check.Left) bool {
	t.Helper()
	is := func(kind check.Kind) bool {
		return slices.ContainsFunc(left, func(f check.Left) bool { return f.Kind == kind })
	}
	return is(check.Audit) || is(check.Lock) && others(t)
}

// others reports whether another carrel runs on this host.
func others(t testing.TB) bool {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	return slices.ContainsFunc(all, func(path string) bool {
		b, _ := os.ReadFile(path) // it may have ended
		return bytes.HasPrefix(b, []byte("carrel-broker\x00")) && !bytes.Contains(b, []byte(base))
	})
}

// find looks until what is left is nobody else's.
func find(t testing.TB, in check.Instance, want check.Expect) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		left, err := in.Look(t.Context(), want)
		must(t, err)
		if time.Now().Before(end) && mayPass(t, left) {
			continue
		}
		for _, l := range left {
			t.Errorf("left: %s", l)
		}
		return
	}
}

// gone purges the instance and sees that nothing of it is left.
func (h *host) gone(t testing.TB) {
	t.Helper()
	in, err := check.Read(h.data, h.prefix)
	must(t, err)
	must(t, h.purge())
	h.isGone(t, in)
}

func (h *host) isGone(t testing.TB, in check.Instance) {
	t.Helper()
	in.Before = before
	find(t, in, check.Expect{Gone: true})
	for _, dir := range []string{"a", "b"} {
		if _, err := os.Lstat(h.dir + "/" + dir); err == nil {
			t.Errorf("left: %s/%s", h.dir, dir)
		}
	}
}

// name is the workspace's that has the key.
func (h *host) name(t testing.TB, key string) string {
	t.Helper()
	var d struct {
		Name string `json:"name"`
	}
	must(t, json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", key)), &d))
	return d.Name
}
