package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

const owner = 61001

// source makes a directory of owner's.
func source(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, ".git")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, owner, owner); err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func with(dir *os.File, p sandbox.Project) func(*launch.Config) {
	return func(c *launch.Config) {
		c.Projects = append(c.Projects, launch.Project{Project: p, Dir: dir, OwnerUID: owner, OwnerGID: owner})
	}
}

func TestProjectMountIsProved(t *testing.T) {
	dir := source(t)
	ex, err := launchtest.Start(t, func(c *launch.Config) {
		with(dir, sandbox.Project{Destination: "/workspace", Pinned: []string{".git"}})(c)
		with(dir, sandbox.Project{Destination: workspace.Home + "/a/b", ReadOnly: true})(c)
	})
	if err != nil {
		t.Fatal(err)
	}
	c := control(t, ex.Report, "project-mounts")
	t.Log(c.Evidence)
	if c.State != workspace.Verified || !c.Required {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{
		"rename .git: EBUSY", "mkdir in .git: EROFS", "chmod u+s: EPERM", "bit 32: EPERM",
		"openat2: ENOSYS", "outside: /workspace is nosuid,nodev,idmapped, 1 names", "a/b: EROFS",
	} {
		if !strings.Contains(c.Evidence, want) {
			t.Errorf("no %q", want)
		}
	}
	// What was made on the way to the place in the home is the commands' own.
	var st unix.Stat_t
	if err := unix.Stat(ex.Home+"/a/b", &st); err != nil || st.Uid != ex.IDs.Work || st.Gid != ex.IDs.Work {
		t.Errorf("%d:%d %v", st.Uid, st.Gid, err)
	}
}

// As many and as long as they may be.
func TestMostProjectMounts(t *testing.T) {
	dir := source(t)
	ex, err := launchtest.Start(t, func(c *launch.Config) {
		for i := range workspace.MaxMounts {
			with(dir, sandbox.Project{
				Destination: "/mnt/" + strings.Repeat(strings.Repeat("d", 200)+"/", 4) + string(rune('a'+i)),
				Pinned:      []string{".git", ".git"},
			})(c)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := control(t, ex.Report, "project-mounts"); c.State != workspace.Verified {
		t.Errorf("%+v", c)
	}
}

// Each start here lacks something, and must fail for it.
func TestProjectMountIsMissed(t *testing.T) {
	good := sandbox.Project{Destination: "/workspace", Pinned: []string{".git"}}
	for name, x := range map[string]struct {
		change func(*launch.Config)
		want   string
	}{
		"protection left out":   {func(c *launch.Config) { c.Spec.User = skipMark + unprotected; c.Log = nil }, "project-mounts"},
		"a name that is absent": {func(c *launch.Config) { c.Projects[0].Pinned = []string{".envrc"} }, ".envrc"},
		"a link on the way": {func(c *launch.Config) {
			if err := os.Symlink("/etc", c.Home.Name()+"/x"); err != nil {
				t.Fatal(err)
			}
			c.Projects[0].Destination = workspace.Home + "/x/y"
		}, "must be a directory and no link"},
		"a link at the place": {func(c *launch.Config) {
			if err := os.Symlink("/etc", c.Home.Name()+"/x"); err != nil {
				t.Fatal(err)
			}
			c.Projects[0].Destination = workspace.Home + "/x"
		}, "must be a directory and no link"},
		"a place of the system": {func(c *launch.Config) { c.Projects[0].Destination = "/usr/x" }, "a mount goes to"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := source(t)
			_, err := launchtest.Start(t, func(c *launch.Config) {
				with(dir, good)(c)
				x.change(c)
			})
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("no %q in: %v", x.want, err)
			}
			// The directory is somebody's: trying what should fail changes nothing in it.
			names, err := os.ReadDir(dir.Name())
			if err != nil || len(names) != 1 || names[0].Name() != ".git" {
				t.Errorf("it has now %v, %v", names, err)
			}
			if inside, err := os.ReadDir(dir.Name() + "/.git"); err != nil || len(inside) != 0 {
				t.Errorf("its .git has now %v, %v", inside, err)
			}
		})
	}
}

func TestFileSystemWithoutMapping(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to mount")
	}
	proc, err := os.Open("/proc/sys")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	_, err = launchtest.Start(t, with(proc, sandbox.Project{Destination: "/workspace", ReadOnly: true}))
	if err == nil || !strings.Contains(err.Error(), "its file system cannot show files under other owners") {
		t.Errorf("%v", err)
	}
}
