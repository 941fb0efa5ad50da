package sandbox_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// What is placed where it is absent. An empty directory can be seen on the host: a further one is a decision.
const (
	placedAlways = ".git .claude .cursor .codex .gemini .agents .mcp.json .vscode .idea .envrc"
	placedInHome = ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile " +
		".zshrc .zshenv .zprofile .zlogin .zlogout .ssh .config"
	placedBare = "HEAD"
)

func protectedIn(t *testing.T, dir string, home bool) (present, absent []string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if present, absent, err = sandbox.ProtectedIn(fd, home); err != nil {
		t.Fatal(err)
	}
	return present, absent
}

func same(got []string, want ...string) bool {
	return slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(strings.Fields(strings.Join(want, " ")))))
}

func TestWhatIsPlaced(t *testing.T) {
	dir := t.TempDir()
	if present, absent := protectedIn(t, dir, false); present != nil || !same(absent, placedAlways, placedBare) {
		t.Errorf("a directory: %v, %v", present, absent)
	}
	if _, absent := protectedIn(t, dir, true); !same(absent, placedAlways, placedBare, placedInHome) {
		t.Errorf("a home: %v", absent)
	}
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, ".git", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if present, absent := protectedIn(t, dir, false); !same(present, ".git") || !same(absent, strings.TrimPrefix(placedAlways, ".git ")) {
		t.Errorf("a repository: %v, %v", present, absent)
	}
}

// fill makes all protected names in a directory of owner's, files and directories alternately.
func fill(t *testing.T, dir string) {
	t.Helper()
	for i, p := range hostfiles.Protected() {
		at := filepath.Join(dir, p.Name)
		var err error
		if i%2 == 0 {
			err = os.MkdirAll(at, 0o700)
		} else {
			err = os.WriteFile(at, nil, 0o600)
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(at, owner, owner)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// All names there can be are held, those of a home in a home alone.
func TestEveryNameIsHeld(t *testing.T) {
	if n := len(hostfiles.Protected()); n > sandbox.MaxPinned {
		t.Fatalf("%d names are more than can be pinned", n)
	}
	dir := source(t)
	fill(t, dir.Name())
	counts := map[bool]int{}
	for _, home := range []bool{false, true} {
		pinned, absent := protectedIn(t, dir.Name(), home)
		if absent != nil {
			t.Errorf("%v are absent", absent)
		}
		ex, err := launchtest.Start(t, with(dir, sandbox.Project{Destination: "/workspace", Pinned: pinned}))
		if err != nil {
			t.Fatal(err)
		}
		if c := control(t, ex.Report, "project-mounts"); c.State != workspace.Verified {
			t.Errorf("%+v", c)
		}
		if held := launch.Held(ex.PID, "/workspace"); !same(held, pinned...) {
			t.Errorf("home %v: %d names are held, and %d pinned", home, len(held), len(pinned))
		}
		counts[home] = len(pinned)
	}
	if counts[true] != len(hostfiles.Protected()) || counts[false] >= counts[true] || counts[false] < 100 {
		t.Errorf("%v of %d names", counts, len(hostfiles.Protected()))
	}
}
