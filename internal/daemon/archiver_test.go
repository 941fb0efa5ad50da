package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/daemon"
)

// A program for files that was built with cgo cannot do its work, and is refused with the remedy. One without is taken.
func TestArchiverWithLibraries(t *testing.T) {
	hand := func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f, err := daemon.ArchiverProgram(fd)()
		if err == nil {
			f.Close()
		}
		return err
	}
	if err := hand("/bin/true"); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("one with libraries: %v", err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hand(text); err == nil || !strings.Contains(err.Error(), "no program for Linux") {
		t.Errorf("no program: %v", err)
	}
	static := filepath.Join(t.TempDir(), "static")
	c := exec.CommandContext(t.Context(), "go", "build", "-o", static, "github.com/carrel-dev/carrel/cmd/carrel-archive")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := hand(static); err != nil {
		t.Errorf("one without: %v", err)
	}
}
