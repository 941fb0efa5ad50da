package built_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/test/built"
)

// Programs from a shared directory run, are built once, and each caller may do with its own
// what it likes.
func TestPrograms(t *testing.T) {
	shared := t.TempDir()
	t.Setenv("CARREL_TEST_BUILD", shared)
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		if err := built.Programs(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := info(t, first), info(t, second); !os.SameFile(a, b) {
		t.Error("carrel was built twice")
	}
	if err := os.Remove(filepath.Join(first, "carrel")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(second, "carrel"), "version").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	// What is out of date is replaced.
	before := info(t, second)
	if err := os.Rename(filepath.Join(shared, "programs", "carrel-archive"), filepath.Join(shared, "programs", "carrel")); err != nil {
		t.Fatal(err)
	}
	third := t.TempDir()
	if err := built.Programs(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	if now := info(t, third); now.Size() != before.Size() {
		t.Errorf("what stood in its place was taken: %d bytes, want %d", now.Size(), before.Size())
	}
}

func info(t *testing.T, dir string) os.FileInfo {
	t.Helper()
	st, err := os.Stat(filepath.Join(dir, "carrel"))
	if err != nil {
		t.Fatal(err)
	}
	return st
}
