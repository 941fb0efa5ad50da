package cli_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/cli"
)

// Whoever loses patience with up breaks off what up does, and never a change of the user
// database.
func TestToolIsNotBrokenOff(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	begun := done + ".begun"
	ctx, cancel := context.WithCancelCause(t.Context())
	impatient := errors.New("impatient")
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
			if _, err := os.Stat(begun); err == nil {
				break
			}
		}
		cancel(impatient)
	}()
	err := cli.RunTool(ctx, "/bin/sh", "-c", "ps -o pgid= -p $$ >"+begun+"; sleep 0.3; cp "+begun+" "+done)
	if err != nil {
		t.Error(err)
	}
	said, err := os.ReadFile(done)
	if err != nil {
		t.Fatal("it was broken off")
	}
	if group, err := strconv.Atoi(strings.TrimSpace(string(said))); err != nil || group == unix.Getpgrp() {
		t.Errorf("it is in process group %q, which the keyboard interrupts", said)
	}
	if err := cli.RunTool(ctx, "/bin/true"); !errors.Is(err, impatient) {
		t.Errorf("another was begun: %v", err)
	}
}

// A tool that meets a lock, or is killed, is run again, and one that fails for another reason is not. The tools here are
// scripts that say what groupadd says.
func TestToolsWaitForTheLocksOfOthers(t *testing.T) {
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	tool := func(name, fails string) string {
		path := filepath.Join(dir, name)
		script := "#!/bin/sh\necho run >> " + runs + "\nif [ $(wc -l < " + runs + ") -lt 3 ]; then " + fails + "; fi\n"
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	count := func() int {
		b, err := os.ReadFile(runs)
		if err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(runs)
		return strings.Count(string(b), "run")
	}
	locked := tool("locked", "echo 'groupadd: cannot lock /etc/gshadow; try again later.' >&2; exit 10")
	if err := cli.RunTool(t.Context(), locked); err != nil || count() != 3 {
		t.Errorf("where another holds a lock: %v", err)
	}
	killed := tool("killed", "kill -KILL $$")
	if err := cli.RunTool(t.Context(), killed); err != nil || count() != 3 {
		t.Errorf("where somebody kills it: %v", err)
	}
	broken := tool("broken", "echo 'groupadd: invalid group name' >&2; exit 3")
	if err := cli.RunTool(t.Context(), broken); err == nil || !strings.Contains(err.Error(), "invalid group name") || count() != 1 {
		t.Errorf("for another reason: %v", err)
	}
}
