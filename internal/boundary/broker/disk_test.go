package broker_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

const limited = 64 << 20

func withDisk(bytes int64) workspace.Limits {
	return workspace.Limits{MemoryBytes: 256 << 20, Pids: 64, CPUWeight: 100, OpenFiles: 256, DiskBytes: bytes}
}

// newLimited makes a workspace with a limit on disk space.
func newLimited(t *testing.T) (*installation, *broker.Lifecycle, brokerapi.Workspace) {
	t.Helper()
	t.Setenv("TMPDIR", "/var/tmp") // an image on a tmpfs would be the workspace's memory
	p := newInstallation(t)
	if err := image.Ready(); err != nil {
		t.Skipf("skipped: %v", err)
	}
	life := p.mustOpen(t)
	return p, life, p.createLimited(t, life)
}

func (p *installation) createLimited(t *testing.T, life *broker.Lifecycle) brokerapi.Workspace {
	t.Helper()
	res, err := life.Create(t.Context(), wanted(p.name, withDisk(limited)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res.Workspace
}

func (p *installation) image() string {
	return p.settings.DataDir + "/images/" + string(p.name) + ".img"
}

// inside runs a script in a running workspace.
func inside(t *testing.T, e brokerapi.Workspace, script string) string {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: e.Executor.Socket})
	if err != nil {
		t.Fatal(err)
	}
	conn := jsonrpc.New(c, jsonrpc.Config{MaxFDs: 3})
	defer func() {
		_ = conn.Close()
		<-conn.Done()
	}()
	if _, err := conn.Call(t.Context(), execapi.MethodHello, execapi.HelloParams{
		Version:    execapi.Version,
		MinVersion: execapi.MinVersion,
	}, nil); err != nil {
		t.Fatal(err)
	}
	var res execapi.ExecResult
	if _, err := conn.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{
		ID: id.NewCommand(), Argv: []string{
			"/bin/sh", "-c",
			"exec 2>&1; cd; " + script,
		}, Stdout: execapi.Capture, Stderr: execapi.Capture, Wait: true,
	}, &res); err != nil {
		t.Fatal(err)
	}
	return string(res.Stdout) + string(res.Stderr)
}

// attached lists the loop devices on a file, by the kernel's own account.
func attached(t *testing.T, path string) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var on []string
	for _, f := range all {
		if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == path {
			on = append(on, f)
		}
	}
	return on
}

func detached(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); len(attached(t, path)) > 0; {
		if time.Now().After(end) {
			t.Fatalf("%s is still attached: %v", path, attached(t, path))
		}
		<-time.After(5 * time.Millisecond)
	}
}

// sound has e2fsck look at an image that nobody has mounted. It changes nothing.
func sound(t *testing.T, path string) {
	t.Helper()
	detached(t, path)
	out, err := exec.CommandContext(t.Context(), "/usr/sbin/e2fsck", "-f", "-n", path).CombinedOutput()
	if err != nil {
		t.Errorf("the file system is not sound: %v\n%s", err, out)
	}
}

func control(t *testing.T, r workspace.Report, id string) workspace.Control {
	t.Helper()
	for _, c := range r.Controls {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("no control %s", id)
	return workspace.Control{}
}

// used is how much of the host's disk a file takes.
func used(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestDiskLimit(t *testing.T) {
	p, life, e := newLimited(t)
	var st unix.Stat_t
	if err := unix.Lstat(p.image(), &st); err != nil || st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 || st.Gid != e.IDs.Executor ||
		st.Size != limited {
		t.Fatalf("the image is %o %d:%d of %d bytes, %v", st.Mode, st.Uid, st.Gid, st.Size, err)
	}
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	running, report := start(t, life, p.name)
	t.Logf("started in %v", time.Since(began))
	c := control(t, report, "disk")
	t.Logf("%+v", c)
	if c.State != workspace.Verified || !c.Requested || !c.Required {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{"fallocate past the limit: ENOSPC", "outside: " + p.image()} {
		if !strings.Contains(c.Evidence, want) {
			t.Errorf("the evidence lacks %q: %s", want, c.Evidence)
		}
	}
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || string(after) != string(before) {
		t.Errorf("the host's mount table changed: %v\n%s", err, after)
	}
	// The attempt has given back what it took.
	if out := inside(t, running, "echo kept > file; head -c 20M /dev/zero > big && stat -c %s big && rm big; ls -A /tmp /var/tmp; "+
		"stat -c '%a %u' ~ /tmp /var/tmp"); out !=
		fmt.Sprintf("20971520\n/tmp:\n\n/var/tmp:\n700 %[1]d\n1777 %[1]d\n1777 %[1]d\n", e.IDs.Work) {
		t.Errorf("%q", out)
	}
	st1, err := life.Stats(t.Context(), brokerapi.NameParams{Name: p.name})
	if err != nil || st1.DiskBytes <= 0 || st1.DiskBytes >= limited {
		t.Errorf("%+v, %v", st1, err)
	}
	for range 2 {
		if _, err := life.Stop(t.Context(), brokerapi.NameParams{Name: p.name}); err != nil {
			t.Fatal(err)
		}
		running, _ = start(t, life, p.name) // at once, while the kernel may still be at the unmounting
		if out := inside(t, running, "cat file"); out != "kept\n" {
			t.Errorf("after a stop: %q", out)
		}
		if on := attached(t, p.image()); len(on) != 1 {
			t.Errorf("attached to %v", on)
		}
	}
	if _, err := life.Stop(t.Context(), brokerapi.NameParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	sound(t, p.image())
	e, err = life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name})
	if err != nil {
		t.Fatal(err)
	}
	p.gone(t, e)
	sound(t, e.Retained+"/disk.img")
	if _, err := os.Lstat(p.image()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the image is left: %v", err)
	}
	// A second life begins with an empty image, and a purge leaves nothing.
	e = p.createLimited(t, life)
	running, _ = start(t, life, p.name)
	if out := inside(t, running, "ls -A"); out != "" {
		t.Errorf("a new home holds %q", out)
	}
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
		t.Fatal(err)
	}
	p.gone(t, e)
	if left, err := os.ReadDir(p.settings.DataDir + "/images"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What fills its disk fills its own and nothing else.
func TestDiskBombs(t *testing.T) {
	p, life, _ := newLimited(t)
	running, _ := start(t, life, p.name)
	for name, bomb := range map[string]string{
		"bytes in the home": "dd if=/dev/zero of=x bs=1M; rm x",
		"bytes in /tmp":     "dd if=/dev/zero of=/tmp/x bs=1M; rm /tmp/x",
		"bytes in /var/tmp": "dd if=/dev/zero of=/var/tmp/x bs=1M; rm /var/tmp/x",
		"files":             "mkdir d; (i=0; while : > d/$i; do i=$((i+1)); done); rm -r d",
		"space at once":     "fallocate -l 1T x; rm -f x",
		"a removed file":    "exec 9> x; rm x; dd if=/dev/zero bs=1M >&9",
		"both at a time":    "dd if=/dev/zero of=x bs=1M & dd if=/dev/zero of=/tmp/y bs=1M; wait; rm x /tmp/y",
	} {
		out := inside(t, running, bomb)
		if !strings.Contains(out, "No space left on device") && !strings.Contains(out, "cannot create d/") {
			t.Errorf("%s: %q", name, out)
		}
		if n := used(t, p.image()); n > limited {
			t.Errorf("%s: the image takes %d bytes", name, n)
		}
		speak(t, running) // the executor goes on
	}
	// A sparse file may be as long as it likes: it holds nothing.
	if out := inside(t, running, "truncate -s 1T sparse && stat -c %b sparse; rm sparse"); out != "0\n" {
		t.Errorf("sparse: %q", out)
	}
	// What was removed is given back to the host.
	for end := time.Now().Add(20 * time.Second); used(t, p.image()) > limited/2; {
		if time.Now().After(end) {
			t.Fatalf("the image still takes %d bytes", used(t, p.image()))
		}
		inside(t, running, "sync -f .")
		<-time.After(50 * time.Millisecond)
	}
	if err := os.WriteFile(p.settings.DataDir+"/neighbour", make([]byte, limited), 0o600); err != nil {
		t.Errorf("the host's own file system: %v", err)
	}
	// A full disk is proved and worked with too.
	inside(t, running, "dd if=/dev/zero of=full bs=1M")
	if _, err := life.Stop(t.Context(), brokerapi.NameParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	running, _ = start(t, life, p.name)
	if out := inside(t, running, "rm full && echo freed"); out != "freed\n" {
		t.Errorf("%q", out)
	}
	_, _ = life.Stop(t.Context(), brokerapi.NameParams{Name: p.name})
	sound(t, p.image())
}

func TestDiskLimitChanges(t *testing.T) {
	p, life, _ := newLimited(t)
	for _, to := range []int64{0, limited / 2} {
		if e, err := life.Update(t.Context(), brokerapi.UpdateParams{
			Name:   p.name,
			Limits: withDisk(to),
		}); !errdefs.IsFailedPrecondition(err) || e.Limits.DiskBytes != limited {
			t.Errorf("to %d: %+v, %v", to, e.Limits, err)
		}
	}
	_, err := life.Update(t.Context(), brokerapi.UpdateParams{Name: p.name, Limits: withDisk(8 * limited)})
	if why := image.Grows(); why != nil {
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
			t.Errorf("grown without the capability: %v", err)
		}
		t.Skipf("skipped: %v", why)
	}
	if err != nil {
		t.Fatal(err)
	}
	running, report := start(t, life, p.name)
	if out := inside(t, running, "head -c 300M /dev/zero > x && stat -c %s x"); out != "314572800\n" {
		t.Errorf("%q; %+v", out, control(t, report, "disk"))
	}
	_, _ = life.Stop(t.Context(), brokerapi.NameParams{Name: p.name})
	sound(t, p.image())
}
