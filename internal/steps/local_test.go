package steps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/steps"
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
		r, err := steps.Local(asRoot())(t.Context(), here(script))
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
	r, err := steps.Local(asRoot())(t.Context(), c)
	if err != nil || r.Status == nil || !r.Status.TimedOut || r.Status.Code == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Of an output beyond its bound the beginning and the end are kept in whole lines, what is left out is counted, and all of
// it is shorter than the bound, so that the daemon does not cut its end.
func TestLocalOutput(t *testing.T) {
	c := here("echo begin; yes 0123456789abcdef0123456789abcde | head -n 10000; echo end")
	r, err := steps.Local(asRoot())(t.Context(), c)
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
	r, err = steps.Local(asRoot())(t.Context(), here("head -c 50000 /dev/zero | tr '\\0' x"))
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
	r, err := steps.Local(asRoot())(t.Context(), c)
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

// Root runs nothing that was not allowed to be root's.
func TestLocalRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: it is about root")
	}
	for _, reads := range []bool{false, true} {
		c := here("echo ran")
		c.ReadOnly = reads
		if r, err := steps.Local(false)(t.Context(), c); !errdefs.IsPermissionDenied(err) || len(r.Stdout) > 0 || r.Status != nil {
			t.Errorf("%+v, %v", r, err)
		}
	}
}
