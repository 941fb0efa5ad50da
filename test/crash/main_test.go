package crash_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
	"github.com/carrel-dev/carrel/test/supervise"
)

// base holds everything that is made; bin the programs of the crash build.
var base, bin string

// before is what was out of place on this host before the tests.
var before []check.Left

// baseEnv tells a test binary that another one cleans up behind it.
const baseEnv = "CRK_BASE"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test is skipped, and says so
	}
	if base = os.Getenv(baseEnv); base == "" {
		return supervise.Run("crk-", baseEnv, clean)
	}
	bin = filepath.Join(base, "bin")
	if err := build(bin, "-tags", "crashpoints"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	nowhere := check.Instance{Data: base + "/nowhere", Runtime: base + "/nowhere"}
	if before, err = nowhere.Look(context.Background(), check.Expect{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, l := range before {
		fmt.Fprintln(os.Stderr, "left by others:", l)
	}
	return m.Run()
}

func build(dir string, flags ...string) error {
	c := exec.CommandContext(
		context.Background(), "go", append(append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/"}, flags...),
			"./cmd/...")...,
	)
	c.Dir = filepath.Join("..", "..")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the programs: %w\n%s", err, out)
	}
	return nil
}

// clean removes the carrels that were started below dir.
func clean(dir string) error {
	base, bin = dir, filepath.Join(dir, "bin")
	var errs []error
	found, err := filepath.Glob(filepath.Join(dir, "h*"))
	errs = append(errs, err)
	for _, h := range found {
		errs = append(errs, hostAt(h).remove())
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	errs = append(errs, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			errs = append(errs, syscall.Unmount(f[4], syscall.MNT_DETACH))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// needRoot skips a test that an ordinary user cannot run.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to bring carrel up")
	}
}
