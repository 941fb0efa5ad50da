package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
)

// The daemon's directory goes to another uid of the daemon with what was the earlier one's in it.
// What the daemon may have linked there stays whose it was.
func TestGiveTakesNothingOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it changes owners, which takes root")
	}
	const before, now, stranger = 61701, 61702, 61703
	dir := filepath.Join(t.TempDir(), "daemon")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, owner := range map[string]int{"own": before, "sub/own": before, "hard-link-to-root's": 0, "hard-link-to-another's": stranger} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	owners := func() map[string]uint32 {
		m := map[string]uint32{}
		for _, name := range []string{".", "sub", "own", "sub/own", "hard-link-to-root's", "hard-link-to-another's"} {
			fi, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			m[name] = fi.Sys().(*syscall.Stat_t).Uid
		}
		return m
	}
	give := func(want map[string]uint32) {
		t.Helper()
		if err := cli.Give(dir, now); err != nil {
			t.Fatal(err)
		}
		for name, uid := range owners() {
			if want[name] != uid {
				t.Errorf("%s belongs to %d and not to %d", name, uid, want[name])
			}
		}
	}
	if err := os.Lchown(filepath.Join(dir, "sub"), before, before); err != nil {
		t.Fatal(err)
	}
	// Made by root a moment ago: the directory alone.
	own := map[string]uint32{
		".": now, "sub": before, "own": before, "sub/own": before, "hard-link-to-root's": 0, "hard-link-to-another's": stranger,
	}
	give(own)
	give(own) // it is whose it should be: nothing is looked at
	if err := os.Lchown(dir, before, before); err != nil {
		t.Fatal(err)
	}
	give(map[string]uint32{
		".": now, "sub": now, "own": now, "sub/own": now, "hard-link-to-root's": 0, "hard-link-to-another's": stranger,
	})
}

// A daemon that still runs makes and removes files in it meanwhile, as those of an archive.
func TestGiveBesideADaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it changes owners, which takes root")
	}
	dir := t.TempDir()
	var wg sync.WaitGroup
	end := make(chan struct{})
	for n := range 4 {
		wg.Go(func() {
			path := filepath.Join(dir, fmt.Sprint("ar-", n, ".part"))
			for {
				select {
				case <-end:
					return
				default:
				}
				_ = os.WriteFile(path, nil, 0o600)
				_ = os.Lchown(path, 61701, 61701)
				_ = os.Remove(path)
			}
		})
	}
	for n := range 2000 {
		if err := os.Lchown(dir, 61701, 61701); err != nil {
			t.Error(err)
		}
		if err := cli.Give(dir, 61702); err != nil {
			t.Errorf("round %d: %v", n, err)
			break
		}
	}
	close(end)
	wg.Wait()
}
