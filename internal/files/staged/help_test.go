package staged_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/staged"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab is a project, the upper directory of its staged copy, and a directory of carrel's.
type lab struct {
	top, lower, upper, keep string
	user                    bool
	since                   time.Time
	opened                  *staged.Copy
}

// newLab makes a project of files by their paths: "dir/" is a directory, "-> target" a link, everything else a content. What is
// laid out is older than the run.
func newLab(t testing.TB, files map[string]string) *lab {
	t.Helper()
	top := t.TempDir()
	l := &lab{top: top, lower: top + "/lower", upper: top + "/upper", keep: top + "/keep", user: inUserNamespace()}
	for _, d := range []string{l.lower, l.upper, l.keep, top + "/work", top + "/merged"} {
		must(t, os.Mkdir(d, 0o755))
	}
	must(t, os.Chmod(l.keep, 0o700))
	lay(t, l.lower, files)
	l.start(t)
	return l
}

// start notes the time at which the run begins, once the clock of file systems has moved on.
func (l *lab) start(t testing.TB) {
	t.Helper()
	since, err := staged.Clock(t.Context())
	must(t, err)
	l.since = since
}

func lay(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path, text := filepath.Join(dir, name), files[name]
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		target, link := strings.CutPrefix(text, "-> ")
		switch {
		case strings.HasSuffix(name, "/"):
			must(t, os.MkdirAll(path, 0o755))
		case link:
			must(t, os.Symlink(target, path))
		default:
			must(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
}

// needRoot skips a test that mounts or makes devices.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it mounts an overlay, which takes root")
	}
}

// run has a function change the staged copy through a real overlay, in a mount namespace of its own.
func (l *lab) run(t testing.TB, f func(merged string) error) {
	t.Helper()
	needRoot(t)
	merged := l.top + "/merged"
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s/work,redirect_dir=nofollow,metacopy=off,index=off", l.lower, l.upper, l.top)
	if l.user {
		options += ",userxattr"
		options = strings.ReplaceAll(options, "redirect_dir=nofollow,", "")
	}
	done := make(chan error)
	inMounts(func() error {
		err := unix.Mount("overlay", merged, "overlay", 0, options)
		if err == nil {
			err = errors.Join(f(merged), unix.Unmount(merged, unix.MNT_DETACH))
		}
		return err
	}, done)
	must(t, <-done)
}

// copy opens a lab's directories, once.
func (l *lab) copy(t testing.TB) staged.Copy {
	t.Helper()
	if l.opened == nil {
		lower, err := os.Open(l.lower)
		must(t, err)
		upper, err := os.Open(l.upper)
		must(t, err)
		t.Cleanup(func() { lower.Close(); upper.Close() })
		l.opened = &staged.Copy{Lower: lower, Upper: upper}
	}
	c := *l.opened
	c.UserXattr = l.user
	return c
}

func (l *lab) changes(t testing.TB) []staged.Change {
	t.Helper()
	all, err := staged.Changes(t.Context(), l.copy(t))
	must(t, err)
	return all
}

// short is a change as a line.
func short(c staged.Change) string {
	s := string(c.Kind) + " " + c.Path
	if c.LeadsOut {
		s += " (out)"
	}
	if c.Refused != "" {
		s += " (refused)"
	}
	return s
}

func shorts(all []staged.Change) (out []string) {
	for _, c := range all {
		out = append(out, short(c))
	}
	return out
}

// tree is what a directory has, by path: type, mode and content or target. With loose modes set-id bits are left out.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		is := i.Mode().String()
		switch i.Mode().Type() {
		case 0:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			is += " " + string(b)
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			is += " " + target
		default:
		}
		all[strings.TrimPrefix(path, dir+"/")] = is
		return nil
	}))
	return all
}

func equalTrees(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: %q is %.80q, want %.80q", what, name, got[name], want[name])
		}
	}
	for name, is := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %q is there: %.80q", what, name, is)
		}
	}
}

// inMounts calls a function in a mount namespace of its own.
func inMounts(f func() error, done chan<- error) {
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and its namespace with it
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
}

// asUser calls a function as an ordinary user: at once if that is who runs the test, else in a child that runs the same test.
func asUser(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	c.Dir, c.Env = "/", []string{"TMPDIR=/tmp"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("as a user: %v\n%s", err, out)
	}
}

// inUserNamespace reports whether root is another user outside: then overlays take userxattr alone.
func inUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !strings.Contains(string(b), "4294967295")
}

// inMemory has the directories of a test on a file system in memory, if there is one: many files take minutes on some disks.
func inMemory(t *testing.T) {
	t.Helper()
	const shm = "/dev/shm"
	if unix.Access(shm, unix.W_OK) == nil {
		t.Setenv("TMPDIR", shm)
	}
}
