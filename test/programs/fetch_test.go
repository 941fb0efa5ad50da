//go:build linux

package programs_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fetched are packages that the host's own clients fetch, once, into .cache/programs. A new
// version has a new name, so what is there is never out of date.
var fetched = map[string][]string{
	"codex-0.169.0": {"npm", "install", "--prefix", ".", "--ignore-scripts", "--no-audit", "--no-fund", "@openai/codex@0.169.0"},
	"pytest-9.2.0": {
		"sh", "-c", "/usr/bin/python3 -m venv venv && venv/bin/pip download -q --only-binary :all: -d wheels pytest==9.2.0 && rm -r venv",
	},
}

const fetchTimeout = 2 * time.Minute

// fetch returns a directory with that package which every user can read.
func fetch(t *testing.T, name string) string {
	t.Helper()
	cache, err := filepath.Abs(filepath.Join("..", "..", ".cache", "programs", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cache); errors.Is(err, os.ErrNotExist) {
		download(t, cache, fetched[name])
	}
	if os.Geteuid() != 0 {
		return cache
	}
	// The checkout may lie where the ordinary user may not enter.
	lent := filepath.Join(base, name)
	if _, err := os.Stat(lent); err == nil {
		return lent
	}
	if exec.CommandContext(t.Context(), "cp", "-al", cache, lent).Run() != nil {
		_ = os.RemoveAll(lent)
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", cache, lent).CombinedOutput(); err != nil {
			t.Fatalf("cannot copy %s: %v: %s", cache, err, out)
		}
	}
	return lent
}

// download makes cache, whole or not at all, or skips the test.
func download(t *testing.T, cache string, argv []string) {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skipf("skipped: %v; %s", err, install)
	}
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(cache), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), fetchTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		said := string(out)
		t.Skipf("skipped: cannot fetch %s with %s, is there a network? %v: %s",
			filepath.Base(cache), argv[0], err, strings.TrimSpace(said[max(0, len(said)-300):]))
	}
	if out, err := exec.CommandContext(t.Context(), "chmod", "-R", "a+rX", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Rename(dir, cache); err != nil {
		t.Fatal(err)
	}
}
