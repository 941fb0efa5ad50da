package supervise_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/supervise"
)

const (
	endEnv  = "SUPERVISE_TEST_END"  // how the tests end; set in the supervisor
	baseEnv = "SUPERVISE_TEST_BASE" // set in the tests
)

func TestMain(m *testing.M) {
	end, base := os.Getenv(endEnv), os.Getenv(baseEnv)
	switch {
	case base != "":
		if os.WriteFile(filepath.Join(base, "made"), nil, 0o600) != nil {
			os.Exit(9)
		}
		if end == "panic" {
			panic("planted")
		}
		if end == "kill" {
			p, _ := os.FindProcess(os.Getpid())
			_ = p.Kill()
		}
		os.Exit(map[string]int{"fail": 3}[end])
	case end != "":
		os.Exit(supervise.Run("supervise-test-", baseEnv, func(dir string) error {
			if end == "left" {
				return errors.Join(errors.New("planted"), os.RemoveAll(dir))
			}
			if _, err := os.Stat(filepath.Join(dir, "made")); err != nil {
				return err
			}
			return os.RemoveAll(dir)
		}))
	}
	os.Exit(m.Run())
}

func TestEnds(t *testing.T) {
	for end, code := range map[string]int{"well": 0, "fail": 3, "panic": 2, "kill": 1, "left": 1} {
		c := exec.CommandContext(t.Context(), "/proc/self/exe")
		c.Env = append(os.Environ(), endEnv+"="+end)
		out, err := c.CombinedOutput()
		if c.ProcessState.ExitCode() != code {
			t.Errorf("%s: %v, want %d: %s", end, err, code, out)
		}
		if strings.Contains(string(out), "something is left") != (end == "left") {
			t.Errorf("%s: it said %s", end, out)
		}
	}
	if left, _ := filepath.Glob("/var/tmp/supervise-test-*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
