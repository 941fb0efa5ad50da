package root_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// shared is the carrel that most tests use; its API can be reached by every user of the
// host. bin holds the programs.
var (
	shared *host
	bin    string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	if os.Geteuid() != 0 {
		return m.Run() // every test is skipped, and says so
	}
	base, err := os.MkdirTemp("/var/tmp", "crt-")
	if err == nil {
		err = os.Chmod(base, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var once sync.Once
	cleanup := func() {
		once.Do(func() {
			err := errors.Join(downAll(), os.RemoveAll(base))
			if err != nil {
				fmt.Fprintln(os.Stderr, "something is left:", err)
				code = 1
			}
		})
	}
	defer cleanup()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-interrupted
		cleanup()
		os.Exit(130) //nolint:forbidigo // this is the test binary's main
	}()

	if bin, err = programs(base); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	config := filepath.Join(base, "carreld.yaml")
	if err := os.WriteFile(config, []byte("socket_mode: \"0666\"\n"), 0o644); err != nil { //nolint:gosec // the daemon reads it
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if shared, err = newHost(base, config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// programs builds carrel, or takes the programs that CARREL_TEST_BIN has, on a machine
// without Go.
func programs(base string) (string, error) {
	if dir := os.Getenv("CARREL_TEST_BIN"); dir != "" {
		return dir, nil
	}
	dir := filepath.Join(base, "bin")
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/...") //nolint:noctx // as long as it takes
	c.Dir = filepath.Join("..", "..")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the programs: %w\n%s", err, out)
	}
	return dir, nil
}

// needRoot skips a test that an ordinary user cannot run.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to bring carrel up and attack it")
	}
}
