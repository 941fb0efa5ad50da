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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

func TestRealLife(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	e := p.create(t, life)
	w := e.IDs.Work
	if got, want := getent(t, "passwd", string(p.name)), fmt.Sprintf("%s:x:%d:%d:carrel workspace:%s:/bin/sh",
		p.name, w, w, e.Home); got != want {
		t.Errorf("passwd has %s, want %s", got, want)
	}
	if got, want := getent(t, "group", string(p.name)), fmt.Sprintf("%s:x:%d:", p.name, w); got != want {
		t.Errorf("group has %s, want %s", got, want)
	}
	for _, f := range []string{"/etc/subuid", "/etc/subgid"} {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), string(p.name)) {
			t.Errorf("%s hands ids to %s", f, p.name)
		}
	}
	data := p.settings.DataDir
	for _, c := range []struct {
		path     string
		mode     uint32
		uid, gid uint32
	}{
		{data, 0o711, 0, 0},
		{data + "/broker", 0o700, 0, 0},
		{data + "/broker/ledger.jsonl", 0o600, 0, 0},
		{data + "/homes", 0o700, 0, 0},
		{e.Home, 0o700, w, w},
		{data + "/tmp", 0o700, 0, 0},
		{data + "/tmp/" + string(p.name), 0o700, 0, 0},
		{data + "/tmp/" + string(p.name) + "/tmp", 0o1777, w, w},
		{data + "/tmp/" + string(p.name) + "/var-tmp", 0o1777, w, w},
		{data + "/retained", 0o700, 0, 0},
		{p.settings.RuntimeDir, 0o755, 0, 0},
		{p.settings.RuntimeDir + "/x", 0o710, 0, daemonUID},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(c.path, &st); err != nil {
			t.Errorf("%s: %v", c.path, err)
		} else if st.Mode&0o7777 != c.mode || st.Uid != c.uid || st.Gid != c.gid {
			t.Errorf("%s is %04o %d:%d, want %04o %d:%d", c.path, st.Mode&0o7777, st.Uid, st.Gid, c.mode, c.uid, c.gid)
		}
	}

	began := time.Now()
	running, report := start(t, life, p.name)
	t.Logf("started in %v", time.Since(began))
	for _, c := range report.Controls {
		t.Logf("%s %s: %s", c.ID, c.State, c.Evidence)
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	speak(t, running)
	stopped, err := life.Stop(t.Context(), brokerapi.NameParams{Name: p.name})
	if err != nil || stopped.State != workspace.StateStopped {
		t.Fatalf("stopped %+v, %v", stopped, err)
	}
	if err := syscall.Kill(running.Executor.PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the executor is still there: %v", err)
	}
	if err := os.WriteFile(e.Home+"/note", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	p.gone(t, e)
	kept := fmt.Sprintf("%s/retained/%s.%d", data, p.name, e.IDs.Executor)
	if b, err := os.ReadFile(kept + "/note"); err != nil || string(b) != "kept" {
		t.Errorf("the home was not kept: %q, %v", b, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(kept, &st); err != nil || st.Uid != 0 || st.Mode&0o7777 != 0o700 {
		t.Errorf("the kept home is %04o of uid %d, %v", st.Mode&0o7777, st.Uid, err)
	}
	// A second life has other ids and an empty home.
	again := p.create(t, life)
	if again.IDs.Executor <= e.IDs.Agent {
		t.Errorf("ids %+v after %+v", again.IDs, e.IDs)
	}
	if left, err := os.ReadDir(again.Home); err != nil || len(left) > 0 {
		t.Errorf("a new home holds %v, %v", left, err)
	}
}

// dialExecutor greets an executor on its socket.
func dialExecutor(t testing.TB, e brokerapi.Workspace) *jsonrpc.Conn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: e.Executor.Socket})
	if err != nil {
		t.Fatal(err)
	}
	conn := jsonrpc.New(c, jsonrpc.Config{MaxFDs: 3})
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Call(t.Context(), execapi.MethodHello, execapi.HelloParams{
		Version:    execapi.Version,
		MinVersion: execapi.MinVersion,
	}, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

// speak runs a command through an executor's socket.
func speak(t testing.TB, e brokerapi.Workspace) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(e.Executor.Socket, &st); err != nil || st.Uid != daemonUID || st.Mode&0o7777 != 0o600 {
		t.Errorf("the socket is %04o of uid %d, %v", st.Mode&0o7777, st.Uid, err)
	}
	conn := dialExecutor(t, e)
	defer func() {
		_ = conn.Close()
		<-conn.Done()
	}()
	var res execapi.ExecResult
	_, err := conn.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{ID: id.NewCommand(), Argv: []string{
		"/usr/bin/id",
		"-u",
	}, Stdout: execapi.Capture, Stderr: execapi.Capture, Wait: true}, &res)
	if err != nil || strings.TrimSpace(string(res.Stdout)) != fmt.Sprint(e.IDs.Work) {
		t.Errorf("id -u said %q %q, %v", res.Stdout, res.Stderr, err)
	}
}

// TestBrokerThatComesBack: a broker that was killed finds its executors again.
func TestBrokerThatComesBack(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	p.create(t, life)
	before, _ := start(t, life, p.name)
	if err := life.Close(); err != nil {
		t.Fatal(err)
	}
	life = p.mustOpen(t)
	defer func() { _ = life.Close() }()
	after, report := start(t, life, p.name)
	if *after.Executor != *before.Executor || report.Err() != nil {
		t.Errorf("got %+v, had %+v", after.Executor, before.Executor)
	}
	speak(t, after)
	if rep, err := life.Report(t.Context(), brokerapi.NameParams{Name: p.name}); err != nil || rep.Err() != nil {
		t.Errorf("report: %v", err)
	}
}

// TestPidOfAnother: a process that has the pid of a former executor is neither taken for
// it nor harmed.
func TestPidOfAnother(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	p.create(t, life)
	e, _ := start(t, life, p.name)
	if _, err := life.Stop(t.Context(), brokerapi.NameParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	if err := life.Close(); err != nil {
		t.Fatal(err)
	}
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	// The same pid with another start time, as after a reuse; then the same start time in
	// another boot.
	for _, x := range []brokerapi.Executor{
		{PID: bystander.Process.Pid, StartTime: 1, BootID: e.Executor.BootID},
		{PID: bystander.Process.Pid, StartTime: e.Executor.StartTime, BootID: "00000000-0000-0000-0000-000000000000"},
		{PID: 1, StartTime: 1, BootID: e.Executor.BootID},
	} {
		dir := openDir(t, p.settings.DataDir+"/broker")
		ledger, err := broker.OpenLedger(dir)
		if err != nil {
			t.Fatal(err)
		}
		bad, _ := ledger.Get(e.Name)
		bad.State, bad.Executor = workspace.StateRunning, &x
		if err := errors.Join(ledger.Put(bad), ledger.Close()); err != nil {
			t.Fatal(err)
		}
		life := p.mustOpen(t)
		if got := life.Entries(); len(got) != 1 || got[0].State != workspace.StateStopped {
			t.Errorf("%+v: listed %+v", x, got)
		}
		if err := life.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander was harmed: %v", err)
	}
	_ = bystander.Process.Kill()
	_ = bystander.Wait()
}

// heard passes on to the test's log and tells when a text was logged.
type heard struct {
	testLog
	text string
	once sync.Once
	said chan struct{}
}

func (h *heard) Write(b []byte) (int, error) {
	if strings.Contains(string(b), h.text) {
		h.once.Do(func() { close(h.said) })
	}
	return h.testLog.Write(b)
}

// TestExecutorIsKilled: the workspace becomes stopped, and starts again.
func TestExecutorIsKilled(t *testing.T) {
	p := newInstallation(t)
	h := &heard{testLog: testLog{t}, text: "an executor ended", said: make(chan struct{})}
	life, err := p.open(t, slog.New(slog.NewTextHandler(h, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = life.Close() })
	p.create(t, life)
	e, _ := start(t, life, p.name)
	if err := syscall.Kill(e.Executor.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.said:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody noticed")
	}
	if got := life.Entries()[0]; got.State != workspace.StateStopped || got.Executor != nil {
		t.Errorf("listed %+v", got)
	}
	if left := p.groups(t); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
	again, _ := start(t, life, p.name)
	if again.Executor.PID == e.Executor.PID {
		t.Error("the same executor")
	}
}

// TestUnprovedStartLeavesNothing: the launcher says that a required control does not
// hold.
func TestUnprovedStartLeavesNothing(t *testing.T) {
	p := newInstallation(t)
	pidfd := -1
	p.launch = func(ctx context.Context, c launch.Config) (*launch.Executor, error) {
		x, err := launch.Start(ctx, c)
		if err == nil {
			pidfd, err = unix.PidfdOpen(x.PID, 0)
			x.Report.Controls[0].State, x.Report.Controls[0].Remedy = workspace.Failed, "plant nothing"
		}
		return x, err
	}
	life := p.mustOpen(t)
	p.create(t, life)
	_, err := life.Start(t.Context(), brokerapi.StartParams{Name: p.name})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "plant nothing") {
		t.Errorf("got %v", err)
	}
	if got := life.Entries(); got[0].State != workspace.StateStopped || got[0].Executor != nil {
		t.Errorf("listed %+v", got[0])
	}
	socks, _ := filepath.Glob(p.settings.RuntimeDir + "/x/*")
	if groups := p.groups(t); len(groups)+len(socks) > 0 || pidfd < 0 {
		t.Errorf("left %v %v, launched %v", groups, socks, pidfd)
	}
	defer unix.Close(pidfd)
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 5000); n != 1 {
		t.Errorf("the executor lives on: %v", err)
	}
}

// TestDestroyEndsEveryProcess: one of the workspace's ids that is in none of its groups
// is found and ended before the user goes.
func TestDestroyEndsEveryProcess(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	defer func() { _ = life.Close() }()
	e := p.create(t, life)
	var strays []*exec.Cmd
	for _, uid := range []uint32{e.IDs.Executor, e.IDs.Work, e.IDs.Agent} {
		c := exec.CommandContext(t.Context(), "sleep", "1000")
		c.Dir = "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		strays = append(strays, c)
	}
	done := make(chan error)
	for _, c := range strays {
		go func() { done <- c.Wait() }()
	}
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
		t.Fatal(err)
	}
	for range strays {
		if err := <-done; err == nil {
			t.Error("a stray ended by itself")
		}
	}
	p.gone(t, e)
}
