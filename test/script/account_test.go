package script_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Instances come and go at the same time and share the daemon's user: none may find it
// taken away between looking it up and starting its daemon, nor half made.
func TestInstancesShareTheAccount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to bring carrel up")
	}
	dir, err := os.MkdirTemp("/tmp", "carrel-script")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	for n := range 4 {
		flags := []string{"--data", filepath.Join(dir, fmt.Sprint("data", n)), "--runtime-dir", filepath.Join(dir, fmt.Sprint("run", n))}
		carrel := func(args ...string) error {
			out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "carrel"), append(args, flags...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("carrel %v: %w: %s", args, err, out)
			}
			return nil
		}
		g.Go(func() error {
			for range 5 {
				if err := carrel("up", "--detach"); err != nil {
					return err
				}
				if err := carrel("down", "--purge"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat("/run/carrel-account.lock"); err == nil {
		t.Log("the lock's file is there: another instance of this host holds it, or it was left behind")
	}
}
