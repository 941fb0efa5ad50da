package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	"github.com/carrel-dev/carrel/test/userdb"
)

// TestPurgeStaysInside: what a workspace put into its home leads nowhere.
func TestPurgeStaysInside(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	e := p.create(t, life)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.MkdirAll(victim+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.WriteFile(victim+"/file", []byte("x"), 0o600),
		os.Symlink(victim, e.Home+"/link"),
		os.Symlink("/", e.Home+"/root"),
		os.Symlink("../../..", e.Home+"/up"),
		os.MkdirAll(e.Home+"/deep/"+strings.Repeat("d/", 1000), 0o700),
		os.Link(victim+"/file", e.Home+"/hard"),
	); err != nil {
		t.Fatal(err)
	}
	// Far fewer descriptors than the home is deep.
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
		t.Fatal(err)
	}
	p.gone(t, e)
	if b, err := os.ReadFile(victim + "/file"); err != nil || string(b) != "x" {
		t.Errorf("the victim: %q, %v", b, err)
	}
	if _, err := os.Stat(victim + "/sub"); err != nil {
		t.Error(err)
	}
}

// TestHomeThatIsASymlink: someone with root made one where the home belongs. It is not
// followed, not given away, and not removed.
func TestHomeThatIsASymlink(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	victim := t.TempDir()
	home := p.settings.HomeRoot + "/" + string(p.name)
	if err := os.Symlink(victim, home); err != nil {
		t.Fatal(err)
	}
	_, err := life.Create(t.Context(), wanted(p.name, workspace.DefaultLimits), nil)
	if err == nil {
		t.Error("created")
	}
	var st unix.Stat_t
	if err := unix.Stat(victim, &st); err != nil || st.Uid != 0 {
		t.Errorf("the victim belongs to %d, %v", st.Uid, err)
	}
	if _, err := os.Lstat(home); err != nil {
		t.Errorf("what was there is gone: %v", err)
	}
	if got := getent(t, "passwd", string(p.name)); got != "" {
		t.Errorf("a user is left: %s", got)
	}
	if err := os.Remove(home); err != nil {
		t.Fatal(err)
	}
}

// TestUserOfTheHost: a name that exists already is neither taken over nor removed.
func TestUserOfTheHost(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	if err := userdb.Run(t.Context(), "useradd", "-M", "-l", "-N", string(p.name)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = userdb.Run(context.Background(), "userdel", string(p.name)) }()
	before := getent(t, "passwd", string(p.name))
	if _, err := life.Create(t.Context(), wanted(p.name, workspace.DefaultLimits), nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("got %v", err)
	}
	if got := getent(t, "passwd", string(p.name)); got != before || got == "" {
		t.Errorf("passwd has %q, had %q", got, before)
	}
}

// TestLockedPasswd: while someone else holds the lock, a create waits; it goes on when
// the lock is free.
func TestLockedPasswd(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	const lock = "/etc/passwd.lock"
	// The form that lckpwdf's helpers use: the pid of a living holder.
	if err := os.WriteFile(lock, fmt.Append(nil, os.Getpid(), "\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	freed := time.AfterFunc(300*time.Millisecond, func() { _ = os.Remove(lock) })
	defer func() {
		freed.Stop()
		_ = os.Remove(lock)
	}()
	p.create(t, life)
}

// TestPeers: only root and the daemon's user are served.
func TestPeers(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	s := &broker.Server{Life: life, Settings: p.settings, Log: slog.New(slog.DiscardHandler)}
	path := p.settings.RuntimeDir + "/test.sock"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	for uid, want := range map[uint32]bool{0: true, daemonUID: true, 65432: false} {
		c := exec.CommandContext(t.Context(), "/proc/self/exe")
		c.Env = []string{"BROKER_TEST_CONNECT=" + path}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.CombinedOutput()
		if got := err == nil; got != want {
			t.Errorf("uid %d: served %v: %s", uid, got, out)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// connectAndAsk is the other side of TestPeers.
func connectAndAsk(path string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	conn := jsonrpc.New(c, jsonrpc.Config{})
	defer conn.Close()
	_, err = conn.Call(context.Background(), brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version}, nil)
	return err
}
