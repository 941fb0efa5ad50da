package root_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/runtime/runtimetest"
	"github.com/carrel-dev/carrel/internal/sandbox/cgroup"
)

// lone is a broker without a daemon.
type lone struct {
	data, run, settings string
	pid                 int
	cmd                 *exec.Cmd
	log                 string
}

// brokerUID is that of a daemon there is not.
const brokerUID = 61997

// newBroker starts a broker and takes it away with the test; change may alter its
// settings.
func newBroker(t *testing.T, change func(map[string]any)) *lone {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp(filepath.Dir(filepath.Dir(shared.data)), "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // other users try to come through it
		t.Fatal(err)
	}
	b := &lone{data: dir + "/data", run: dir + "/run", settings: dir + "/broker.json", log: dir + "/log"}
	name := "crt-" + filepath.Base(dir)
	settings := map[string]any{
		"data_dir": b.data, "runtime_dir": b.run, "daemon_uid": brokerUID, "daemon_gid": brokerUID,
		"uid_first": 1_870_000_000 + 3000*(os.Getpid()%1000), "uid_count": 3000, "cgroup_name": name,
		"executor_path": filepath.Join(bin, "carrel-executor"),
	}
	if change != nil {
		change(settings)
	}
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.settings, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{b.data, b.run} {
		if err := os.Mkdir(d, 0o711); err != nil { //nolint:gosec // as carrel up makes it
			t.Fatal(err)
		}
	}
	b.start(t)
	t.Cleanup(func() {
		b.stop(t)
		groups, err := cgroup.Open(cgroup.Config{Name: name, MemoryBytes: 1 << 30})
		if err == nil {
			err = groups.RemoveInstance()
		}
		if err != nil {
			t.Errorf("control groups are left: %v", err)
		}
	})
	return b
}

func (b *lone) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(b.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, "carrel-broker"), "--settings", b.settings, "--ready-fd", "3")
	b.cmd.Env, b.cmd.ExtraFiles, b.cmd.Stderr = []string{}, []*os.File{w}, log
	err = b.cmd.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	b.pid = b.cmd.Process.Pid
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready\n" {
		said, _ := os.ReadFile(b.log)
		t.Fatalf("the broker is not ready: %q, %v\n%s", line, err, said)
	}
}

// stop ends it in order.
func (b *lone) stop(t *testing.T) {
	t.Helper()
	if b.cmd == nil {
		return
	}
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := b.cmd.Wait(); err != nil {
		said, _ := os.ReadFile(b.log)
		t.Errorf("the broker ended with %v\n%s", err, said)
	}
	b.cmd = nil
}

// kill ends it at once.
func (b *lone) kill(t *testing.T) {
	t.Helper()
	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = b.cmd.Wait() // killed
	b.cmd = nil
}

func TestNamespaceRuntime(t *testing.T) {
	b := newBroker(t, nil)
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
