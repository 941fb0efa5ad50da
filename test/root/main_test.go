package root_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/built"
	"github.com/carrel-dev/carrel/test/supervise"
)

// shared is the carrel that most tests use; its API can be reached by every user of the
// host. bin holds the programs, and base everything that is made.
var (
	shared    *host
	bin, base string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// baseEnv tells a test binary that another one cleans up behind it.
const baseEnv = "CRT_BASE"

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test is skipped, and says so
	}
	if os.Getenv(insideEnv) != "" {
		base = os.Getenv(baseEnv)
		bin = programDir(base)
		return m.Run() // what is there is the other process'
	}
	if base = os.Getenv(baseEnv); base == "" {
		return supervise.Run("crt-", baseEnv, clean)
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// clean removes the carrels and brokers that were started below base.
func clean(base string) error {
	bin = programDir(base)
	var errs []error
	for pattern, down := range map[string]func(dir string) error{
		"h*/data/up.json": func(dir string) error { return hostAt(dir, base+"/carreld.yaml").down() },
		"b*/broker.json":  func(dir string) error { return loneAt(dir).down() },
	} {
		found, err := filepath.Glob(filepath.Join(base, pattern))
		errs = append(errs, err)
		for _, f := range found {
			dir := filepath.Dir(f)
			if filepath.Base(dir) == "data" {
				dir = filepath.Dir(dir)
			}
			errs = append(errs, down(dir))
		}
	}
	// A small file system of a test that was killed.
	if small, err := filepath.Glob(filepath.Join(base, "h*/data")); err == nil {
		for _, dir := range small {
			_ = unix.Unmount(dir, unix.MNT_DETACH) // most are no mount
		}
	}
	return errors.Join(append(errs, os.RemoveAll(base))...)
}

// prepare builds the programs and brings the shared carrel up.
func prepare() error {
	bin = programDir(base)
	if os.Getenv("CARREL_TEST_BIN") == "" {
		if err := built.Programs(context.Background(), bin); err != nil {
			return err
		}
	}
	config := filepath.Join(base, "carreld.yaml")
	// Attacks are to reach the kernel: what policy holds is tried elsewhere.
	rules, err := os.ReadFile(filepath.Join("..", "permissive.yaml"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(base, "policy.yaml"), rules, 0o644); err != nil {
		return err
	}
	settings := "socket_mode: \"0666\"\npolicy:\n  path: " + base + "/policy.yaml\n"
	if err := os.WriteFile(config, []byte(settings), 0o644); err != nil {
		return err
	}
	shared, err = newHost(base)
	return err
}

// programDir is where the programs are. CARREL_TEST_BIN names them for a machine without
// Go.
func programDir(base string) string {
	if dir := os.Getenv("CARREL_TEST_BIN"); dir != "" {
		return dir
	}
	return filepath.Join(base, "bin")
}

// needRoot skips a test that an ordinary user cannot run.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to bring carrel up and attack it")
	}
}
