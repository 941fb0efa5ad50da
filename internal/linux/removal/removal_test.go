package removal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// A test runs itself as another user, with few descriptors, or in a mount namespace of its own: then
// it removes what it is told and prints the error.
const childEnv = "REMOVAL_TEST_REMOVE"

// withoutEnv has a test go without openat2.
const withoutEnv = "REMOVAL_TEST_WITHOUT"

func TestMain(m *testing.M) {
	if os.Getenv(withoutEnv) != "" {
		removal.WithoutOpenat2()
	}
	path := os.Getenv(childEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	if mount := os.Getenv("REMOVAL_TEST_MOUNT"); mount != "" {
		err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")
		for m := range strings.SplitSeq(mount, ";") {
			from, to, _ := strings.Cut(m, ":")
			err = errors.Join(err, unix.Mount(from, to, "", unix.MS_BIND, ""))
		}
		if err != nil {
			fmt.Println("cannot mount:", err)
			os.Exit(2)
		}
	}
	// Its own standard streams, what the runtime polls with, and 40 of ours.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 48, Max: 48}); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	if err := removal.Path(context.Background(), path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func child(t *testing.T, path string, env ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/proc/self/exe")
	c.Env = append(env, childEnv+"="+path, withoutEnv+"="+os.Getenv(withoutEnv))
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

// chain makes directories inside each other, that many, with a file in each thousandth.
func chain(t *testing.T, top string, deep int) {
	t.Helper()
	must(t, os.Mkdir(top, 0o700))
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range deep {
		must(t, unix.Mkdirat(at, "d", 0o700))
		if i%1000 == 0 {
			fd, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			must(t, err)
			must(t, unix.Close(fd))
		}
		next, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
}

// TestDeep: far deeper than there are descriptors, and than a path can name.
func TestDeep(t *testing.T) {
	top := filepath.Join(t.TempDir(), "home")
	chain(t, top, 20_000)
	if out, err := child(t, top).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	gone(t, top)
}

func TestWide(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "removal") // a hundred thousand files, on no disk
	must(t, err)
	defer os.RemoveAll(dir)
	top := dir + "/home"
	must(t, os.Mkdir(top, 0o700))
	for i := range 100 {
		d := fmt.Sprintf("%s/%d", top, i%10)
		if i < 10 {
			must(t, os.Mkdir(d, 0o700))
		}
		for j := range 1000 {
			must(t, unix.Mknod(fmt.Sprintf("%s/%d-%d", d, i, j), unix.S_IFREG|0o600, 0))
		}
	}
	if out, err := child(t, top).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	gone(t, top)
}

// outside is a directory that must stay as it is.
func outside(t *testing.T) (dir string, unharmed func()) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Mkdir(dir+"/sub", 0o700))
	must(t, os.WriteFile(dir+"/sub/file", []byte("kept"), 0o600))
	return dir, func() {
		t.Helper()
		if b, err := os.ReadFile(dir + "/sub/file"); string(b) != "kept" {
			t.Errorf("what is outside was changed: %q, %v", b, err)
		}
		if st, err := os.Stat(dir + "/sub"); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("what is outside was changed: %v", err)
		}
	}
}

func TestLinksAreRemovedAndNotFollowed(t *testing.T) {
	out, unharmed := outside(t)
	top := filepath.Join(t.TempDir(), "home")
	deep := top + strings.Repeat("/d", 40)
	must(t, os.MkdirAll(deep, 0o700))
	for i, to := range []string{out, out + "/sub", out + "/sub/file", "..", "/", "nowhere", "d"} {
		for _, in := range []string{top, top + "/d", deep} {
			must(t, os.Symlink(to, fmt.Sprintf("%s/link%d", in, i)))
		}
	}
	must(t, os.Link(out+"/sub/file", top+"/hard"))
	must(t, unix.Mkfifo(top+"/d/fifo", 0o600))
	must(t, removal.Path(t.Context(), top))
	gone(t, top)
	unharmed()
	must(t, os.Symlink(out, top))
	must(t, removal.Path(t.Context(), top))
	gone(t, top)
	unharmed()
	must(t, removal.Path(t.Context(), top))
	must(t, removal.Path(t.Context(), filepath.Join(top, "nor", "this")))
}

// TestClosed: without root, directories that their owner has closed.
func TestClosed(t *testing.T) {
	dir, err := os.MkdirTemp("", "removal") // others cannot reach t.TempDir
	must(t, err)
	defer os.RemoveAll(dir)
	top := dir + "/home"
	must(t, os.MkdirAll(top+strings.Repeat("/d", 70), 0o700))
	must(t, os.WriteFile(top+"/d/d/file", nil, 0o000))
	c := child(t, top)
	if os.Getuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65432, Gid: 65432}}
		must(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			return errors.Join(err, os.Lchown(path, 65432, 65432))
		}))
	}
	for n := 70; n >= 0; n-- {
		must(t, os.Chmod(top+strings.Repeat("/d", n), os.FileMode(n%4)<<7&0o700))
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	gone(t, top)
}

// TestMounts: what is mounted in a tree stays as it is, and the rest goes.
func TestMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: mounting needs root")
	}
	out, unharmed := outside(t)
	top := filepath.Join(t.TempDir(), "home")
	deep := top + strings.Repeat("/d", 50)
	must(t, os.MkdirAll(deep, 0o700))
	must(t, os.WriteFile(deep+"/file", nil, 0o600))
	must(t, os.MkdirAll(top+"/other/mounted", 0o700))
	must(t, os.WriteFile(top+"/other/file", nil, 0o600))
	c := child(t, top, "REMOVAL_TEST_MOUNT="+out+":"+top+"/other/mounted;"+out+"/sub/file:"+top+"/other/file;"+out+":"+deep)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	said, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "is mounted there") || !strings.Contains(string(said), top+"/") {
		t.Errorf("got %v, %s", err, said)
	}
	unharmed()
	must(t, removal.Path(t.Context(), top)) // nothing is mounted here
	gone(t, top)
	unharmed()
}

// TestWithoutOpenat2: all of it holds where the call cannot be had.
func TestWithoutOpenat2(t *testing.T) {
	if os.Getenv(withoutEnv) != "" {
		t.Skip("skipped: this is it")
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe",
		"-test.run=^(TestDeep|TestLinksAreRemovedAndNotFollowed|TestClosed|TestMounts|TestWhileItChanges)$")
	c.Env = append(os.Environ(), withoutEnv+"=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestStopped: one that ends early leaves a smaller tree, and the next does the rest.
func TestStopped(t *testing.T) {
	top := filepath.Join(t.TempDir(), "home")
	chain(t, top, 200)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("time is up"))
	err := removal.Path(ctx, top)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "time is up") {
		t.Errorf("got %v", err)
	}
	must(t, removal.Path(t.Context(), top))
	gone(t, top)
}

// TestKilled: killed again and again at any moment, it comes to its end and leaves alone what is outside.
func TestKilled(t *testing.T) {
	out, unharmed := outside(t)
	dir := t.TempDir()
	top := dir + "/home"
	chain(t, top, 8000)
	must(t, os.Symlink(out, top+"/d/d/d/link"))
	killed := 0
	for after := time.Millisecond; ; after += after / 2 {
		c := child(t, top)
		must(t, c.Start())
		timer := time.AfterFunc(after, func() { _ = c.Process.Kill() })
		err := c.Wait()
		timer.Stop()
		if err == nil {
			break
		}
		killed++
		if after > time.Minute {
			t.Fatal("it never ends")
		}
	}
	if killed < 3 {
		t.Errorf("it was killed %d times only", killed)
	}
	gone(t, top)
	unharmed()
}

// TestWhileItChanges: somebody who owns the tree puts links in the place of directories while it is
// removed.
func TestWhileItChanges(t *testing.T) {
	out, unharmed := outside(t)
	dir := t.TempDir()
	var swaps atomic.Int64
	for range 3 {
		top := dir + "/home"
		must(t, os.MkdirAll(top, 0o700))
		for i := range 20 {
			d := fmt.Sprintf("%s/%d", top, i)
			must(t, os.MkdirAll(d+"/sub"+strings.Repeat("/d", 40), 0o700))
			must(t, os.WriteFile(d+"/sub/file", nil, 0o600))
			must(t, os.Symlink(out, d+".link"))
		}
		over, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for i := 0; ; i = (i + 1) % 20 {
				select {
				case <-over:
					return
				default:
				}
				d := fmt.Sprintf("%s/%d", top, i)
				if unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, d+".link", unix.RENAME_EXCHANGE) == nil {
					swaps.Add(1)
				}
			}
		}()
		err := removal.Path(t.Context(), top)
		close(over)
		<-ended
		if err != nil {
			must(t, removal.Path(t.Context(), top))
		}
		gone(t, top)
		unharmed()
	}
	if swaps.Load() < 10 {
		t.Errorf("there were %d exchanges only", swaps.Load())
	}
}
