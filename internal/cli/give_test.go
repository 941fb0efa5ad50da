package cli_test

import (
	"os"
	"path/filepath"
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
