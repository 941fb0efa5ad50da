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
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-tick.C {
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
