package jobs_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/base/id"
)

// A job goes on when the process that began it is killed, at whatever moment: what is there afterwards runs, has ended, is
// lost or was never there, and each is told from the others.
func TestJobOutlivesItsBeginner(t *testing.T) {
	began := false
	for n := range 16 {
		r, dir := registry(t)
		c := exec.Command("/proc/self/exe")
		// What it prints last is there only if the job went on to its end.
		done := filepath.Join(t.TempDir(), "done")
		c.Env = append(os.Environ(), beginEnv+"="+dir, "CARREL_JOBS_TEXT=sleep 0.3; echo end; touch "+done)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		name, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		job := id.Command(strings.TrimSpace(name))
		said := make(chan error, 1)
		go func() {
			_, err := lines.ReadString('\n')
			said <- err
		}()
		acknowledged := false
		if n == 0 { // once it has been acknowledged
			acknowledged = <-said == nil
		} else {
			select { // or earlier
			case err := <-said:
				acknowledged = err == nil
			case <-time.After(time.Duration(n) * 2 * time.Millisecond):
			}
		}
		_ = unix.Kill(-c.Process.Pid, unix.SIGKILL) // with all that is in its process group
		_, _ = io.Copy(io.Discard, out)
		_ = c.Wait()
		_, err = r.Show(t.Context(), job)
		switch {
		case errdefs.IsNotFound(err) && !acknowledged:
			continue
		case err != nil:
			t.Fatalf("killed after %d: %v", n, err)
		}
		j := over(t, r, job)
		_, derr := os.Stat(done)
		switch {
		case j.Status() == "exited 0" && derr == nil:
			began = true
		case j.State == jobs.Lost && errors.Is(derr, os.ErrNotExist) && !acknowledged: // it had not begun
		default:
			t.Errorf("killed after %d, acknowledged %v: %+v, %v", n, acknowledged, j, derr)
		}
		// What was left half made is tidied up by the next one.
		over(t, r, begin(t, r, spec("true")).ID)
		if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) > 0 {
			t.Errorf("there is %v", left)
		}
	}
	if !began {
		t.Error("no job went on")
	}
}

// However much a job prints, what is kept is bounded: the first of it and the last, and how much is missing between.
func TestJobFloods(t *testing.T) {
	r, dir := registry(t)
	const lines = 1_000_000
	s := begin(t, r, spec(fmt.Sprintf("seq -f %%015.0f %d; echo last >&2", lines)))
	j := over(t, r, s.ID)
	text, missing := output(t, r, j, jobs.Stdout)
	if total := int64(16 * lines); int64(len(text))+missing != total || missing == 0 {
		t.Errorf("%d bytes and %d missing are not %d", len(text), missing, total)
	}
	if len(text) > 1<<20 || len(text) < 768<<10 || !strings.HasPrefix(text, "000000000000001\n") ||
		!strings.HasSuffix(text, fmt.Sprintf("\n%015d\n", lines)) {
		t.Errorf("%d bytes, from %.16q to %q", len(text), text, text[len(text)-16:])
	}
	if text, _ := output(t, r, j, jobs.Stderr); text != "last\n" {
		t.Errorf("%q", text)
	}
	var disk int64
	files, err := os.ReadDir(filepath.Join(dir, string(s.ID)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if fi, err := f.Info(); err == nil {
			disk += fi.Size()
		}
	}
	if disk > 1<<20+64<<10 {
		t.Errorf("%d bytes are on the disk", disk)
	}
}

// A full disk costs output, and nothing else: the command goes on, and how it ended is known.
func TestJobOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: needs root, to mount a small file system")
	}
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=300k,mode=700"); err != nil {
		t.Skipf("SKIP: cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := opened(t, filepath.Join(small, "jobs"))
	s := begin(t, r, spec("seq 100000; seq 100000 >&2; exit 7"))
	if j := over(t, r, s.ID); j.Status() != "exited 7" {
		t.Errorf("%+v", j)
	} else if text, _ := output(t, r, j, jobs.Stdout); !strings.HasPrefix(text, "1\n2\n") || len(text) > 300<<10 {
		t.Errorf("%d bytes", len(text))
	}
	// The next one cannot be kept, so it does not begin.
	left := filepath.Join(t.TempDir(), "left")
	s = spec("touch " + left)
	_, err := r.Begin(t.Context(), s)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a job began that was not kept")
	}
	if _, err := r.Show(t.Context(), s.ID); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

// No link in place of a directory or a file of the registry is followed.
func TestJobFollowsNoLink(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Mkdir(other, 0o700); err != nil { // which nothing else is wrong with
		t.Fatal(err)
	}
	secret := filepath.Join(other, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "jobs")
	if err := os.Symlink(other, at); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Open(jobs.Config{Dir: at}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a registry that is a link: %v", err)
	}
	wide := filepath.Join(t.TempDir(), "jobs")
	if err := os.Mkdir(wide, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(wide, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Open(jobs.Config{Dir: wide}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a registry that others can enter: %v", err)
	}
	r, dir := registry(t)
	s := spec("echo x")
	for _, name := range []string{string(s.ID), ".new-" + string(s.ID)} {
		place := filepath.Join(dir, name)
		if err := os.Symlink(other, place); err != nil {
			t.Fatal(err)
		}
		_, err := r.Begin(t.Context(), s)
		if name == string(s.ID) && err == nil {
			t.Errorf("%s: a job began in place of a link", name)
		}
		if left, _ := os.ReadDir(other); len(left) != 1 {
			t.Fatalf("%s: the directory that the link leads to has %v", name, left)
		}
		if name == string(s.ID) {
			if _, err := r.Show(t.Context(), s.ID); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%v", err)
			}
			if err := r.Remove(t.Context(), s.ID); err != nil { // the link alone
				t.Error(err)
			}
		}
	}
	// Files of a job.
	s = begin(t, r, spec("echo x"))
	j := over(t, r, s.ID)
	place := filepath.Join(dir, string(s.ID), "stdout.0")
	if err := errors.Join(os.Remove(place), os.Symlink(secret, place)); err != nil {
		t.Fatal(err)
	}
	if c, err := r.Output(t.Context(), j, jobs.Stdout, 0); err == nil || len(c.Data) > 0 {
		t.Errorf("%q, %v", c.Data, err)
	}
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(secret); string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
}

// At most 200 jobs are kept, and for 30 days. The oldest that have ended go; one that runs never does, and where all run
// none begins.
func TestJobsAreBounded(t *testing.T) {
	r, dir := registry(t)
	var locks []*os.File
	// made is a job as it is on the disk; one that runs has its lock held.
	made := func(n int, ended time.Time) id.Command {
		job := id.Command(fmt.Sprintf("c-%016x", n))
		at := filepath.Join(dir, string(job))
		err := os.Mkdir(at, 0o700)
		began := ended
		if ended.IsZero() {
			began = time.Now().Add(-50 * 24 * time.Hour)
		} else {
			err = errors.Join(err, os.WriteFile(filepath.Join(at, "end.json"), fmt.Appendf(nil, `{"code":0,"at":%q}`,
				ended.Format(time.RFC3339)), 0o600))
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(at, "job.json"), fmt.Appendf(nil, `{"id":%q,"argv":["x"],"limit_ms":1,"began":%q}`,
			job, began.Format(time.RFC3339)), 0o600))
		lock, lerr := os.Create(filepath.Join(at, "lock"))
		if err = errors.Join(err, lerr); err != nil {
			t.Fatal(err)
		}
		if ended.IsZero() {
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			locks = append(locks, lock)
		} else {
			lock.Close()
		}
		return job
	}
	there := func(job id.Command) bool { _, err := r.Show(t.Context(), job); return err == nil }
	now := time.Now()
	ancient, running := made(1, now.Add(-31*24*time.Hour)), made(2, time.Time{})
	oldest, newer := made(3, now.Add(-3*time.Hour)), made(4, now.Add(-2*time.Hour))
	over(t, r, begin(t, r, spec("true")).ID)
	if there(ancient) || !there(oldest) || !there(running) {
		t.Errorf("by age: ancient %v, oldest %v, running %v", there(ancient), there(oldest), there(running))
	}
	for n := 5; n <= jobs.MaxJobs; n++ {
		made(n, now.Add(-time.Minute))
	}
	over(t, r, begin(t, r, spec("true")).ID)
	if there(oldest) || !there(running) || !there(newer) {
		t.Errorf("oldest %v, newer %v, running %v", there(oldest), there(newer), there(running))
	}
	// One on a remote host runs as long as its time is not over, whatever else is known of it.
	away := func(n int, began time.Time) id.Command {
		job := made(n, now)
		at := filepath.Join(dir, string(job))
		text := fmt.Appendf(nil, `{"id":%q,"argv":["x"],"limit_ms":7200000,"host":"web","began":%q}`, job, began.Format(time.RFC3339))
		if err := errors.Join(os.Remove(filepath.Join(at, "end.json")), os.WriteFile(filepath.Join(at, "job.json"), text, 0o600)); err != nil {
			t.Fatal(err)
		}
		return job
	}
	past, still := away(900, now.Add(-40*24*time.Hour)), away(901, now.Add(-2*time.Hour))
	over(t, r, begin(t, r, spec("true")).ID)
	if there(past) || !there(still) {
		t.Errorf("on remote hosts: past %v, still %v", there(past), there(still))
	}
	if all, _, _ := r.List(t.Context()); len(all) != jobs.MaxJobs {
		t.Errorf("%d are kept", len(all))
	}
	for n := range jobs.MaxJobs {
		made(1000+n, time.Time{})
	}
	if _, err := r.Begin(t.Context(), spec("true")); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "carrel job stop") {
		t.Errorf("%v", err)
	}
	if !there(running) {
		t.Error("a job that runs was dropped")
	}
	for _, l := range locks {
		l.Close()
	}
}
