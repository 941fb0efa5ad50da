package probe_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// What a killed process left of its try is removed before the next one, which may have the same number; what lives keeps its own.
func TestWhatProbesLeft(t *testing.T) {
	ended := exec.CommandContext(t.Context(), "/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{strconv.Itoa(os.Getpid()), strconv.Itoa(ended.Process.Pid), strconv.Itoa(os.Getppid()), "x", "-1"} {
		if err := os.Mkdir(filepath.Join(dir, "carrel-probe-"+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	probe.SweepProbes(dir)
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	want := []string{"carrel-probe--1", "carrel-probe-" + strconv.Itoa(os.Getppid()), "carrel-probe-x"}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}
