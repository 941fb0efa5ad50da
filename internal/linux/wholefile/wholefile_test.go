package wholefile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/internal/linux/wholefile"
)

func TestPut(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"one", "another"} {
		if err := wholefile.Put(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		fi, serr := os.Stat(path)
		if err != nil || serr != nil || string(b) != text || fi.Mode() != 0o600 {
			t.Errorf("%q, %v, %v, %v", b, fi.Mode(), err, serr)
		}
	}
	// What cannot be replaced stays, and nothing is left beside it.
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "in it"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := wholefile.Put(taken, []byte("text")); err == nil {
		t.Error("a directory was replaced")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}
