package jobs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/base/id"
)

// host is a host that is this machine, with a home and a shell of its own.
type host struct {
	home, shell string
	away        bool
}

// run implements jobs.Shell.
func (h *host) run(ctx context.Context, inventory, name string, argv []string) ([]byte, error) {
	if h.away || inventory != "/hosts.yaml" || name != "web-1" {
		return nil, errors.New("no route to host")
	}
	c := exec.CommandContext(ctx, h.shell, argv[1:]...)
	c.Env = []string{"HOME=" + h.home, "PATH=" + os.Getenv("PATH")}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return out, err
}

func (h *host) dir(job id.Command) string {
	return filepath.Join(h.home, ".local/state/carrel/remote-jobs", string(job))
}

func remote(text string) jobs.Spec {
	s := spec(text)
	s.Host, s.Inventory, s.Dir = "web-1", "/hosts.yaml", ""
	return s
}

// shells calls f with a registry of a host for each shell that there is here.
func shells(t *testing.T, f func(t *testing.T, r *jobs.Registry, h *host)) {
	for _, shell := range []string{"/bin/dash", "/bin/bash", "/bin/busybox"} {
		t.Run(filepath.Base(shell), func(t *testing.T) {
			if _, err := os.Stat(shell); err != nil {
				t.Skipf("SKIP: there is no %s", shell)
			}
			h := &host{home: t.TempDir(), shell: shell}
			if filepath.Base(shell) == "busybox" {
				h.shell = filepath.Join(t.TempDir(), "sh")
				if err := os.Symlink(shell, h.shell); err != nil {
					t.Fatal(err)
				}
			}
			r, err := jobs.Open(jobs.Config{Dir: filepath.Join(t.TempDir(), "jobs"), Shell: h.run})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			f(t, r, h)
		})
	}
}

func beginRemote(t *testing.T, r *jobs.Registry, s jobs.Spec) jobs.Spec {
	t.Helper()
	if err := r.BeginRemote(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Stop(context.WithoutCancel(t.Context()), s.ID) })
	return s
}

// A job on a remote host ends, is followed, stopped and removed by its name, long after what began it has gone.
func TestRemoteJob(t *testing.T) {
	shells(t, func(t *testing.T, r *jobs.Registry, h *host) {
		word := "it's \"$HOME\" `id` $(id) *"
		s := remote("echo \"$0\"; echo err >&2; exit 3")
		s.Argv = append(s.Argv, word)
		j := over(t, r, beginRemote(t, r, s).ID)
		if j.Status() != "exited 3" {
			t.Errorf("%+v", j)
		}
		for stream, want := range map[string]string{jobs.Stdout: word + "\n", jobs.Stderr: "err\n"} {
			if got, missing := output(t, r, j, stream); got != want || missing != 0 {
				t.Errorf("%s: %q, %d", stream, got, missing)
			}
		}
		h.away = true // its end is known here now
		if j, err := r.Show(t.Context(), s.ID); err != nil || j.Status() != "exited 3" {
			t.Errorf("%+v, %v", j, err)
		}
		if err := r.Remove(t.Context(), s.ID); err == nil {
			t.Error("a job was forgotten that is there on its host")
		}
		h.away = false
		if err := r.Remove(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(h.dir(s.ID)); err == nil {
			t.Error("it is there on its host")
		}
		limited := remote("sleep 1000")
		limited.LimitMS = 1000
		if j := over(t, r, beginRemote(t, r, limited).ID); j.State != jobs.TimedOut {
			t.Errorf("%+v", j)
		}
	})
}

func TestRemoteJobIsFollowed(t *testing.T) {
	shells(t, func(t *testing.T, r *jobs.Registry, _ *host) {
		followed(t, r, func(text string) jobs.Spec { return beginRemote(t, r, remote(text)) })
	})
}

// All that a remote job has started ends with it, also what left its session and its group, and if its supervisor was killed.
func TestRemoteJobEndsAll(t *testing.T) {
	shells(t, func(t *testing.T, r *jobs.Registry, h *host) {
		for _, kill := range []bool{false, true} {
			at := filepath.Join(t.TempDir(), "pid")
			s := beginRemote(t, r, remote("setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 & echo $! >"+at+"); exec sleep 1001' & wait"))
			pid := pidIn(t, at)
			if j, err := r.Show(t.Context(), s.ID); err != nil || j.State != jobs.Running {
				t.Fatalf("%+v, %v", j, err)
			}
			if err := r.Remove(t.Context(), s.ID); !errdefs.IsFailedPrecondition(err) {
				t.Error(err)
			}
			want := jobs.Stopped
			if kill {
				want = jobs.Lost
				b, err := os.ReadFile(filepath.Join(h.dir(s.ID), "supervisor"))
				if err != nil {
					t.Fatal(err)
				}
				supervisor, _ := strconv.Atoi(strings.Fields(string(b))[0])
				if err := unix.Kill(supervisor, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				gone(t, supervisor)
				if j, err := r.Show(t.Context(), s.ID); err != nil || j.State != jobs.Lost {
					t.Errorf("%+v, %v", j, err)
				}
			}
			states := make(chan jobs.State, 2)
			for range 2 {
				go func() {
					j, _ := r.Stop(context.WithoutCancel(t.Context()), s.ID)
					states <- j.State
				}()
			}
			if a, b := <-states, <-states; a != want || b != want {
				t.Errorf("%s, %s, want %s", a, b, want)
			}
			gone(t, pid)
		}
	})
}

// A link in place of a directory of a remote host is not followed.
func TestRemoteJobFollowsNoLink(t *testing.T) {
	shells(t, func(t *testing.T, r *jobs.Registry, h *host) {
		other := t.TempDir()
		s := remote("true")
		for _, place := range []string{h.dir(s.ID), filepath.Dir(h.dir(s.ID))} {
			err := errors.Join(os.RemoveAll(place), os.MkdirAll(filepath.Dir(place), 0o700), os.Symlink(other, place))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.BeginRemote(t.Context(), s); err == nil {
				t.Errorf("%s: a job began in place of a link", place)
			}
			if left, _ := os.ReadDir(other); len(left) > 0 {
				t.Errorf("%s: there is %v", place, left)
			}
			if _, err := r.Show(t.Context(), s.ID); !errdefs.IsNotFound(err) {
				t.Errorf("%v", err)
			}
		}
	})
}

// A flood is bounded on the remote host too.
func TestRemoteJobFloods(t *testing.T) {
	shells(t, func(t *testing.T, r *jobs.Registry, h *host) {
		const lines = 200_000
		s := beginRemote(t, r, remote(fmt.Sprintf("seq -f %%015.0f %d", lines)))
		j := over(t, r, s.ID)
		text, missing := output(t, r, j, jobs.Stdout)
		if total := int64(16 * lines); int64(len(text))+missing != total || missing == 0 || len(text) > 1<<20 || len(text) < 512<<10 {
			t.Errorf("%d bytes and %d missing are not %d", len(text), missing, total)
		}
		if !strings.HasPrefix(text, "000000000000001\n") || !strings.HasSuffix(text, fmt.Sprintf("\n%015d\n", lines)) {
			t.Errorf("%d bytes", len(text))
		}
		if files, _ := filepath.Glob(h.dir(s.ID) + "/stdout.*"); len(files) > 4 {
			t.Errorf("%v", files)
		}
	})
}

// What a host says of a job is believed in its form alone, and a job that did not begin is not kept.
func TestRemoteJobOfAHostThatLies(t *testing.T) {
	says := ""
	var fails error
	shell := func(_ context.Context, _, _ string, argv []string) ([]byte, error) {
		if argv[5] == "begin" {
			return nil, fails
		}
		return []byte(says), nil
	}
	dir := filepath.Join(t.TempDir(), "jobs")
	r, err := jobs.Open(jobs.Config{Dir: dir, Shell: shell})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	s := remote("x")
	if err := r.BeginRemote(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "ended", "ended 3", "ended x exit 1", "ended 3 exit x", "ended 300 exit 1", "running on", "\x1b[2J"} {
		says = text
		if j, err := r.Show(t.Context(), s.ID); err != nil || j.State != jobs.Unknown || strings.Contains(j.Why, "\x1b") {
			t.Errorf("%q: %+v, %v", text, j, err)
		}
		if _, err := r.Output(t.Context(), jobs.Job{Spec: s}, jobs.Stdout, 8); err == nil {
			t.Errorf("%q is output", text)
		}
	}
	says = "7\nbefore"
	if _, err := r.Output(t.Context(), jobs.Job{Spec: s}, jobs.Stdout, 8); err == nil {
		t.Error("what was read already is output")
	}
	says, fails = "missing", errors.New("there is no program setsid")
	s = remote("x")
	if err := r.BeginRemote(t.Context(), s); err == nil || errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "setsid") {
		t.Errorf("%v", err)
	}
	if _, err := r.Show(t.Context(), s.ID); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	says, fails = "running", fmt.Errorf("no route: %w", jobs.ErrNotRun)
	s = remote("x")
	if err := r.BeginRemote(t.Context(), s); err == nil || errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
	if _, err := r.Show(t.Context(), s.ID); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	fails, s = errors.New("the connection was lost"), remote("x") // it began all the same
	if err := r.BeginRemote(t.Context(), s); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
	if j, err := r.Show(t.Context(), s.ID); err != nil || j.State != jobs.Running {
		t.Errorf("%+v, %v", j, err)
	}
	// One that cannot be asked is shown with what was known of it last.
	says = "running"
	before, err := r.Show(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	away, err := jobs.Open(jobs.Config{Dir: dir}) // it reaches no host
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	j, err := away.Show(t.Context(), s.ID)
	if err != nil || j.State != jobs.Unknown || j.Seen.Before(before.Seen.Add(-time.Second)) || !strings.Contains(j.Why, "the job ran when") {
		t.Errorf("%+v, %v", j, err)
	}
}
