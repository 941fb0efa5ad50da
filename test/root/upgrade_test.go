package root_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// earlier is the first commit whose executors speak version 3 of the protocol, the oldest that
// this daemon serves.
const earlier = "6cc6568"

// TestUpgrade brings a carrel up with the programs of an earlier release, leaves a
// command running, and goes on with those of this one.
func TestUpgrade(t *testing.T) {
	needRoot(t)
	t.Parallel()
	old := earlierPrograms(t)
	dir, err := os.MkdirTemp(base, "h")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(dir, "carreld.yaml") // that the earlier one knows
	if err := os.WriteFile(settings, []byte("socket_mode: \"0666\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := hostAt(dir, settings)
	with := func(programs string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := exec.CommandContext(ctx, filepath.Join(programs, "carrel"), args...)
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "CARREL_HOST=unix://" + h.run + "/carrel.sock"}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("carrel %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	up := append([]string{"up", "--detach", "--prefix", "crt", "--config", h.config}, h.flags()...)
	with(old, up...)
	t.Cleanup(func() {
		if err := h.down(); err != nil {
			t.Error(err)
		}
	})
	with(old, "create", "--pids", "99", "demo")
	with(old, "exec", "demo", "--", "sh", "-c", "echo kept >file")
	cmd := with(old, "exec", "--detach", "demo", "--", "sh", "-c", "echo began; sleep 600")
	for _, part := range []string{"daemon", "broker"} {
		end(t, h.part(t, part), unix.SIGTERM)
	}
	with(bin, up...)
	// The executor is the one of before, and so is what it runs.
	if out := with(bin, "ps", "demo"); !strings.Contains(out, cmd) || !strings.Contains(out, "running") {
		t.Errorf("ps: %s", out)
	}
	if out := with(bin, "logs", "demo", cmd); out != "began" {
		t.Errorf("logs: %q", out)
	}
	if out := with(bin, "exec", "demo", "--", "cat", "file"); out != "kept" {
		t.Errorf("exec: %q", out)
	}
	if out := with(bin, "inspect", "-o", "json", "demo"); !strings.Contains(out, `"pids": 99`) ||
		!strings.Contains(out, `"state": "running"`) {
		t.Errorf("inspect: %s", out)
	}
	with(bin, "kill", "demo", cmd)
	with(bin, "stop", "demo")
	with(bin, "start", "demo")
	with(bin, "pause", "demo")
	with(bin, "resume", "demo")
	with(bin, "archive", "create", "demo")
	with(bin, "audit", "verify")
	// The way back works, or is refused by what has changed, and harms nothing.
	stop := func() {
		for _, part := range []string{"daemon", "broker"} {
			end(t, h.part(t, part), unix.SIGTERM)
		}
	}
	stop()
	c := exec.CommandContext(t.Context(), filepath.Join(old, "carrel"), up...)
	out, err := c.CombinedOutput()
	switch {
	case err == nil:
		stop()
	case bytes.Contains(out, []byte("cannot start the broker")), bytes.Contains(out, []byte("a newer carreld has written it")):
	default:
		t.Errorf("the earlier release: %v\n%s", err, out)
	}
	with(bin, up...)
	if out := with(bin, "exec", "demo", "--", "cat", "file"); out != "kept" {
		t.Errorf("exec: %q", out)
	}
}

// earlierPrograms builds the programs of the earlier release.
func earlierPrograms(t *testing.T) string {
	t.Helper()
	git := func(args ...string) ([]byte, error) {
		c := exec.CommandContext(t.Context(), "git", args...)
		c.Dir = filepath.Join("..", "..")
		return c.Output()
	}
	if _, err := git("cat-file", "-e", earlier+"^{commit}"); err != nil {
		t.Skip("skipped: the history of this checkout does not reach back to " + earlier)
	}
	tree, err := os.MkdirTemp(base, "earlier")
	if err != nil {
		t.Fatal(err)
	}
	tar, err := git("archive", "--format=tar", earlier)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "tar", "-x", "-C", tree)
	c.Stdin = bytes.NewReader(tar)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out := filepath.Join(tree, "bin")
	c = exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", out+"/", "./cmd/...") // the directory's name is not compiled in
	c.Dir, c.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the earlier release: %v\n%s", err, text)
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}
