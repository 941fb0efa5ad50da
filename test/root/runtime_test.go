package root_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/runtimetest"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/permit"
)

// lone is a broker without a daemon.
type lone struct {
	dir, data, run, settings, log string
	pid                           int
	cmd                           *exec.Cmd
}

// brokerUID is that of a daemon there is not.
const brokerUID = 61997

func loneAt(dir string) *lone {
	return &lone{dir: dir, data: dir + "/data", run: dir + "/run", settings: dir + "/broker.json", log: dir + "/log"}
}

// group is the name of its control groups.
func (b *lone) group() string { return "crt-" + filepath.Base(b.dir) }

// newBroker starts a broker and takes it away with the test.
func newBroker(t *testing.T) *lone {
	t.Helper()
	return newBrokerWith(t, nil)
}

// newBrokerWith has further settings.
func newBrokerWith(t *testing.T, settings map[string]any) *lone {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp(base, "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := loneAt(dir)
	all := map[string]any{
		"data_dir": b.data, "runtime_dir": b.run, "daemon_uid": brokerUID, "daemon_gid": brokerUID,
		"uid_first": 1_870_000_000 + 3000*(os.Getpid()%1000), "uid_count": 3000, "cgroup_name": b.group(),
		"executor_path": filepath.Join(bin, "carrel-executor"),
	}
	maps.Copy(all, settings)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{b.data, b.run} {
		if err := os.Mkdir(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(b.settings, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.down(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *lone) start() error {
	var logs []*os.File // open as "carrel up" opens them
	for _, name := range []string{b.log, b.log + ".1"} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		logs = append(logs, f)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	b.cmd = exec.CommandContext(context.Background(), filepath.Join(bin, "carrel-broker"), "--settings", b.settings,
		"--ready-fd", "3", "--old-log-fd", "4")
	b.cmd.Env, b.cmd.ExtraFiles, b.cmd.Stderr = []string{}, []*os.File{w, logs[1]}, logs[0]
	err = b.cmd.Start()
	_ = w.Close()
	if err != nil {
		return err
	}
	b.pid = b.cmd.Process.Pid
	if err := os.WriteFile(b.dir+"/pid", []byte(strconv.Itoa(b.pid)), 0o600); err != nil {
		return err
	}
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready\n" {
		said, _ := os.ReadFile(b.log)
		return fmt.Errorf("the broker is not ready: %q, %w\n%s", line, err, said)
	}
	return nil
}

// stop ends it in order.
func (b *lone) stop() error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := b.cmd.Wait(); err != nil {
		said, _ := os.ReadFile(b.log)
		return fmt.Errorf("the broker ended with %w\n%s", err, said)
	}
	b.cmd = nil
	return nil
}

// orphan ends the broker of a test process that has gone.
func (b *lone) orphan() error {
	text, err := os.ReadFile(b.dir + "/pid")
	if err != nil {
		return nil // it never started
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(fd)
	if cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.Contains(string(cmdline), b.settings) {
		return nil // the pid is another's by now
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	return err
}

// down destroys every workspace, ends the broker and removes all that it made.
func (b *lone) down() error {
	if _, err := os.Stat(b.settings); err != nil {
		return nil // taken away already
	}
	if b.cmd == nil {
		if err := b.orphan(); err != nil {
			return err
		}
		if err := b.start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	r := namespace.New(namespace.Config{RuntimeDir: b.run})
	all, err := r.List(ctx)
	errs := []error{err}
	for name := range all {
		p, _ := permit.Issue(name)
		_, err := r.Destroy(ctx, p, true)
		errs = append(errs, err)
	}
	errs = append(errs, r.Close(), b.stop())
	groups, err := cgroup.Open(cgroup.Config{Name: b.group(), Shared: cgroup.Shared{MemoryBytes: 1 << 30}})
	if err == nil {
		err = groups.RemoveInstance()
	}
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(b.dir)
}

func TestNamespaceRuntime(t *testing.T) {
	b := newBroker(t)
	runtimetest.Run(t, func(*testing.T) runtime.Runtime {
		return namespace.New(namespace.Config{RuntimeDir: b.run})
	})
	if t.Failed() {
		said, _ := os.ReadFile(b.log)
		t.Logf("the broker's log:\n%s", said)
	}
	if out, err := os.ReadDir(b.data + "/homes"); err != nil || len(out) != 0 {
		t.Errorf("homes are left: %v, %v", out, err)
	}
}
