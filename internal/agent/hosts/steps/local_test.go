package steps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

// here is a command for this machine.
func here(script string) runtime.HostCommand {
	return runtime.HostCommand{
		Argv: []string{"/bin/sh", "-c", script}, Timeout: time.Minute, MaxOutput: 20_000,
	}
}

// asRoot: this test's user is root, and lets commands be root's.
func asRoot() bool { return os.Geteuid() == 0 }

func TestLocal(t *testing.T) {
	for script, want := range map[string]struct {
		code, signal int
		out, errs    string
	}{
		"echo out; echo err >&2; exit 7": {7, 0, "out\n", "err\n"},
		"kill -TERM $$":                  {143, 15, "", ""},
		"wc -c":                          {0, 0, "0\n", ""},
	} {
		r, err := steps.Local(steps.Holding{AsRoot: asRoot()})(t.Context(), here(script))
		if err != nil {
			t.Fatal(err)
		}
		if r.Status == nil || r.Status.Code != want.code || r.Status.Signal != want.signal || r.Status.TimedOut || r.Lost != 0 ||
			string(r.Stdout) != want.out || !strings.HasPrefix(string(r.Stderr), want.errs) || !strings.HasPrefix(r.Held, "profile none") {
			t.Errorf("%s: %+v, %+v", script, r, r.Status)
		}
	}
}

func TestLocalTimeOut(t *testing.T) {
	c := here("echo begun; trap '' TERM; while :; do sleep 300; done")
	c.Timeout = 200 * time.Millisecond
	r, err := steps.Local(steps.Holding{AsRoot: asRoot()})(t.Context(), c)
	if err != nil || r.Status == nil || !r.Status.TimedOut || r.Status.Code == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Of an output beyond its bound the beginning and the end are kept in whole lines, what is left out is counted, and all of
// it is shorter than the bound, so that the daemon does not cut its end.
func TestLocalOutput(t *testing.T) {
	c := here("echo begin; yes 0123456789abcdef0123456789abcde | head -n 10000; echo end")
	r, err := steps.Local(steps.Holding{AsRoot: asRoot()})(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	out := string(r.Stdout)
	if len(out) >= c.MaxOutput || len(out) < c.MaxOutput*9/10 || !strings.HasPrefix(out, "begin\n") || !strings.HasSuffix(out, "\nend\n") {
		t.Errorf("%d bytes: %.20q … %q", len(out), out, out[max(len(out)-20, 0):])
	}
	total, marks := 0, 0
	for line := range strings.Lines(out) {
		switch {
		case strings.HasSuffix(line, "bytes are left out …\n"):
			marks++
		case line == "\n":
		case line == "begin\n" || line == "end\n" || line == "0123456789abcdef0123456789abcde\n":
			total += len(line)
		default:
			t.Errorf("a line is cut: %q", line)
		}
	}
	if marks != 1 || int64(total)+r.Lost != int64(6+4+10000*32) {
		t.Errorf("%d marks, %d bytes kept and %d lost", marks, total, r.Lost)
	}
	// Without lines near the cut, what is beside it is left out, so that no half of a secret stays there.
	r, err = steps.Local(steps.Holding{AsRoot: asRoot()})(t.Context(), here("head -c 50000 /dev/zero | tr '\\0' x"))
	if n := strings.Count(string(r.Stdout), "x"); err != nil || len(r.Stdout) >= 20_000 || int64(n)+r.Lost != 50_000 ||
		n > 20_000-3*512 || n < 18_000 {
		t.Errorf("%v: %d kept, %d lost", err, n, r.Lost)
	}
}

// A command that only reads is held to that, or not run.
func TestLocalReadOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	c := here("echo began; echo x >" + file)
	c.ReadOnly = true
	r, err := steps.Local(steps.Holding{AsRoot: asRoot()})(t.Context(), c)
	if _, serr := os.Stat(file); serr == nil {
		t.Error("it has written a file")
	}
	if errdefs.IsFailedPrecondition(err) && len(r.Stdout) == 0 {
		t.Skipf("SKIP: this host cannot hold a command, and did not run it: %v", err)
	}
	if err != nil || r.Status == nil || r.Status.Code == 0 || string(r.Stdout) != "began\n" ||
		!strings.HasPrefix(r.Held, "profile system_inspect, ") {
		t.Errorf("%+v, %+v, %v", r, r.Status, err)
	}
}

// A command that may change something is held by the profile that the person chose, in what they named; one that only reads is held
// as such a command all the same. Why it failed is said with what the person can do.
func TestLocalProfile(t *testing.T) {
	above := "/opt"
	if !asRoot() { // not below /tmp, which a command under this profile has of its own
		var err error
		if above, err = os.UserHomeDir(); err != nil {
			t.Fatal(err)
		}
	}
	home, err := os.MkdirTemp(above, "crt-steps-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	dir := filepath.Join(home, "project")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run := steps.Local(steps.Holding{Profile: hostrun.WorkspaceWrite, Writes: []string{dir}, AsRoot: asRoot()})
	c := here("touch " + dir + "/made && echo $?")
	c.Profile = "workspace_write"
	r, err := run(t.Context(), c)
	if errdefs.IsFailedPrecondition(err) && strings.Contains(err.Error(), "so it was not run") {
		t.Skipf("SKIP: this host cannot hold a command, and did not run it: %v", err)
	}
	if err != nil || r.Status == nil || r.Status.Code != 0 || !strings.HasPrefix(r.Held, "profile workspace_write, ") {
		t.Errorf("%+v, %+v, %v", r, r.Status, err)
	}
	if _, err := os.Stat(dir + "/made"); err != nil {
		t.Error(err)
	}
	c.Argv[2] = "echo began; touch " + home + "/made"
	r, err = run(t.Context(), c)
	if err != nil || r.Status == nil || r.Status.Code == 0 || string(r.Stdout) != "began\n" ||
		!strings.Contains(string(r.Stderr), "carrel: under profile workspace_write it may change "+dir+" and a /tmp of its own") ||
		!strings.Contains(string(r.Stderr), "--profile none") {
		t.Errorf("%s, %+v, %v", r.Stderr, r.Status, err)
	}
	if _, err := os.Stat(home + "/made"); err == nil {
		t.Error("it has written beside what it may change")
	}
	c.Argv[2] = "echo Permission denied; touch " + dir + "/read"
	c.ReadOnly, c.Profile = true, "system_inspect"
	r, err = run(t.Context(), c)
	if err != nil || r.Status == nil || r.Status.Code == 0 || !strings.HasPrefix(r.Held, "profile system_inspect, ") ||
		strings.Contains(string(r.Stderr), "--profile") {
		t.Errorf("%s, %+v, %v", r.Stderr, r, err)
	}
}

// What a person was shown is what holds a command, or it is not run: here and in the background.
func TestLocalOtherProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	dir := filepath.Join(t.TempDir(), "jobs")
	for _, x := range []struct {
		shown string
		by    hostrun.Profile
		reads bool
	}{
		{"workspace_write", hostrun.None, false},
		{"workspace_write", "", false},
		{"none", hostrun.ReadOnly, false},
		{"system_inspect", hostrun.None, false},
		{"none", hostrun.None, true},
		{"other", hostrun.None, false},
	} {
		h := steps.Holding{Profile: x.by, AsRoot: asRoot()}
		for _, run := range []steps.Run{
			steps.Local(h), steps.Background(func() (*steps.Jobs, error) { return steps.OpenJobs(dir) }, nil, "", h),
		} {
			c := inBackground(here("echo ran; touch " + file))
			c.Profile, c.ReadOnly = x.shown, x.reads
			r, err := run(t.Context(), c)
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "it was not run: the question said") || r.Status != nil {
				t.Errorf("%+v: %+v, %v", x, r, err)
			}
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("one was run")
	}
}

// Root runs nothing that was not allowed to be root's.
func TestLocalRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: it is about root")
	}
	for _, reads := range []bool{false, true} {
		c := here("echo ran")
		c.ReadOnly = reads
		if r, err := steps.Local(steps.Holding{})(t.Context(), c); !errdefs.IsPermissionDenied(err) || len(r.Stdout) > 0 || r.Status != nil {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Commands and jobs are supervised by the program that was named, which others cannot write.
func TestSupervised(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	h, done, err := steps.Holding{AsRoot: asRoot()}.Supervised(program)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	defer h.Ready()()
	res, err := steps.Local(h)(t.Context(), runtime.HostCommand{
		Argv: []string{"sh", "-c", "readlink /proc/$PPID/exe"}, Timeout: time.Minute, MaxOutput: 1000,
	})
	if err != nil || strings.TrimSpace(string(res.Stdout)) != program {
		t.Errorf("%s%s, %v", res.Stdout, res.Stderr, err)
	}
	if err := os.Chmod(program, 0o757); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (steps.Holding{}).Supervised(program); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one that others can write: %v", err)
	}
}
