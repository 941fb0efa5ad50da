package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// The image and its device are out of reach from inside.
func TestImageIsOutOfReach(t *testing.T) {
	p, life, e := newLimited(t)
	running, _ := start(t, life, p.name)
	on := attached(t, p.image())
	if len(on) != 1 {
		t.Fatalf("attached to %v", on)
	}
	device := strings.Split(on[0], "/")[3]
	out := inside(t, running,
		fmt.Sprintf(`for f in %[1]s /dev/%[2]s /dev/loop-control /dev/block/7:0
do if [ -e $f ] || cat $f >/dev/null 2>&1; then echo reached $f; fi; done
		mknod dev b 7 0 2>/dev/null && echo made a device
		cat /proc/1/root%[1]s >/dev/null 2>&1 && echo reached it through /proc
		ls ~/.. /tmp/.. /var/tmp/.. | grep -E 'lost.found|var-tmp' && echo saw the root of the image
		cp /usr/bin/id id && chmod 4755 id; ls lost+found 2>/dev/null && echo reached lost+found
		grep -E ' (/tmp|/var/tmp|/home/[^ ]*) ' /proc/self/mountinfo | grep -v nosuid,nodev && echo without flags
		echo end`, p.image(), device))
	if out != "end\n" {
		t.Errorf("%q", out)
	}
	// Nor does the host's side of the home hold any of it.
	if left, err := os.ReadDir(e.Home); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// An image that is another's, or mounted already, is not used.
func TestImageOfAnother(t *testing.T) {
	p, life, e := newLimited(t)
	if err := os.Chown(p.image(), 0, int(e.IDs.Work)); err != nil {
		t.Fatal(err)
	}
	if _, err := life.Start(t.Context(), brokerapi.StartParams{Name: p.name}); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("a start on another's image: %v", err)
	}
	if err := os.Chown(p.image(), 0, int(e.IDs.Executor)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.image(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := image.Mount(t.Context(), f, p.settings.DataDir, func(*os.File) error { return nil })
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	m.Close()
	detached(t, p.image())
	// With its directories, a mount lasts.
	f, err = os.OpenFile(p.image(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err = image.Mount(t.Context(), f, p.settings.DataDir,
		func(root *os.File) error { return os.Mkdir(fmt.Sprintf("/proc/self/fd/%d/x", root.Fd()), 0o700) }, "x")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	again, err := os.OpenFile(p.image(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := image.Mount(ctx, again, p.settings.DataDir, func(*os.File) error { return nil }); !errdefs.IsUnavailable(err) {
		t.Errorf("a second mount: %v", err)
	}
	if on := attached(t, p.image()); len(on) != 1 {
		t.Errorf("attached to %v", on)
	}
	m.Close()
	detached(t, p.image())
	if _, report := start(t, life, p.name); report.Err() != nil {
		t.Error(report.Err())
	}
}

// A start in which the directories lie in another image than the workspace's own looks
// right from inside, and fails for what is seen from outside.
func TestAnotherImageIsSeen(t *testing.T) {
	p, life, e := newLimited(t)
	if err := life.Close(); err != nil {
		t.Fatal(err)
	}
	path := p.settings.DataDir + "/other"
	if out, err := exec.CommandContext(t.Context(), "/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096",
		path, "32M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.launch = func(ctx context.Context, c launch.Config) (*launch.Executor, error) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		m, err := image.Mount(ctx, f, p.settings.DataDir, func(root *os.File) error {
			for _, d := range []string{"home", "tmp", "var-tmp"} {
				at := fmt.Sprintf("/proc/self/fd/%d/%s", root.Fd(), d)
				if err := errors.Join(os.Mkdir(at, 0o700), os.Chown(at, int(e.IDs.Work), int(e.IDs.Work))); err != nil {
					return err
				}
			}
			return nil
		}, "home", "tmp", "var-tmp")
		if err != nil {
			return nil, err
		}
		defer m.Close()
		c.Home, c.Tmp, c.VarTmp = m.Trees[0], m.Trees[1], m.Trees[2]
		return launch.Start(ctx, c)
	}
	life = p.mustOpen(t)
	_, err := life.Start(t.Context(), brokerapi.StartParams{Name: p.name})
	if err == nil || !strings.Contains(err.Error(), "required control disk is failed (outside: /home/work lies on ") {
		t.Errorf("%v", err)
	}
	detached(t, path)
	detached(t, p.image())
}

// What a create leaves that is killed at any of its steps is taken back, and another's
// image is not.
func TestHalfMadeImage(t *testing.T) {
	p, life, e := newLimited(t)
	if err := life.Close(); err != nil {
		t.Fatal(err)
	}
	half := p.settings.DataDir + "/images/" + string(p.name) + ".new"
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	interrupted := func() {
		t.Helper()
		ledger, err := broker.OpenLedger(openDir(t, p.settings.DataDir+"/broker"))
		if err != nil {
			t.Fatal(err)
		}
		stored, _ := ledger.Get(e.Name)
		stored.State = workspace.StateCreating
		if err := errors.Join(ledger.Put(stored), ledger.Close()); err != nil {
			t.Fatal(err)
		}
	}
	interrupted()
	life = p.mustOpen(t)
	if left, err := os.ReadDir(p.settings.DataDir + "/images"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	p.gone(t, e)
	e = p.createLimited(t, life)
	if err := errors.Join(life.Close(), os.Chown(p.image(), 0, 0)); err != nil {
		t.Fatal(err)
	}
	interrupted()
	life = p.mustOpen(t)
	if _, err := os.Stat(p.image()); err != nil {
		t.Errorf("an image that no create made is gone: %v", err)
	}
	if _, err := life.Create(t.Context(), wanted(p.name, withDisk(limited)), nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a create over it: %v", err)
	}
	if err := os.Remove(p.image()); err != nil {
		t.Fatal(err)
	}
}

// The home on the host is empty while the files are in the image: it must not pass for
// unused, or it would be discarded.
func TestImageIsNotUnused(t *testing.T) {
	p, life, e := newLimited(t)
	if err := life.Close(); err != nil {
		t.Fatal(err)
	}
	host, err := broker.OpenHost(broker.HostConfig{Settings: p.settings, Launch: p.launch, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if empty, err := host.HomeEmpty(p.name, e.IDs); err != nil || empty {
		t.Errorf("it passes for empty: %v, %v", empty, err)
	}
}

// A killed broker and a killed executor: the image is detached and whole.
func TestImageAfterACrash(t *testing.T) {
	p, life, _ := newLimited(t)
	running, _ := start(t, life, p.name)
	inside(t, running, "echo kept > file; sync -f file; (while :; do head -c 1M /dev/zero > $$; mv $$ moved; "+
		"done) >/dev/null 2>&1 & sleep 0.2")
	if err := life.Close(); err != nil { // a broker that is killed does no more than this
		t.Fatal(err)
	}
	if err := unix.Kill(running.Executor.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	sound(t, p.image())
	life = p.mustOpen(t)
	running, _ = start(t, life, p.name)
	if out := inside(t, running, "cat file"); out != "kept\n" {
		t.Errorf("%q", out)
	}
}

// A directory that others can write is an error that says so and what to do.
func TestDirectoriesThatOthersWrite(t *testing.T) {
	p := newInstallation(t)
	for _, dir := range []string{p.settings.DataDir, p.settings.RuntimeDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o757); err != nil {
			t.Fatal(err)
		}
		host, err := broker.OpenHost(broker.HostConfig{Settings: p.settings, Launch: p.launch, Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			_ = host.Close()
		}
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "chmod go-w") {
			t.Errorf("%s: %v", dir, err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
