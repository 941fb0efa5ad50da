package broker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// write writes the settings of p as root's file.
func (p *installation) write(t testing.TB) string {
	t.Helper()
	b, err := json.Marshal(p.settings)
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/broker.json"
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// program starts carrel-broker and returns when it says that it is ready.
func (p *installation) program(t testing.TB, stdin *os.File, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary("carrel-broker")
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := exec.CommandContext(t.Context(), path, append([]string{"--settings", p.write(t), "--ready-fd", "3"}, args...)...)
	c.Env = append(os.Environ(), "GODEBUG=disablethp=1") // as carrel up starts it
	c.ExtraFiles = []*os.File{w}
	c.Stderr = testLog{t}
	if stdin != nil {
		c.Stdin = stdin
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready\n" {
		_ = c.Process.Kill()
		_ = c.Wait()
		t.Fatalf("it said %q, %v", line, err)
	}
	return c
}

func dial(t testing.TB, path string) *jsonrpc.Conn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	conn := jsonrpc.New(c, jsonrpc.Config{})
	if _, err := conn.Call(t.Context(), brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version}, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestProgram is the broker as it is installed: TERM ends it and not what it started, KILL
// neither, and the next one goes on where it was.
func TestProgram(t *testing.T) {
	p := newInstallation(t)
	sock := p.settings.RuntimeDir + "/broker.sock"
	b := p.program(t, nil)
	conn := dial(t, sock)
	if w := mustCreate(t, conn, p.name); w.State != workspace.StateStopped {
		t.Errorf("created %+v", w)
	}
	first, err := call[brokerapi.StartResult](t, conn, "start", brokerapi.NameParams{Name: p.name})
	if err != nil || first.Report.Err() != nil {
		t.Fatalf("started %+v, %v", first, err)
	}
	kib := pss(t, b.Process.Pid)
	t.Logf("PSS with one workspace: %d KiB", kib)
	if kib > 12<<10 {
		t.Errorf("the broker takes %d KiB", kib)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := b.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := b.Wait(); sig == syscall.SIGTERM && err != nil {
			t.Errorf("TERM: %v", err)
		}
		<-conn.Done()
		b = p.program(t, nil)
		conn = dial(t, sock)
		again, err := call[brokerapi.StartResult](t, conn, "start", brokerapi.NameParams{Name: p.name})
		if err != nil || *again.Workspace.Executor != *first.Workspace.Executor {
			t.Errorf("after %v: %+v, %v", sig, again.Workspace, err)
		}
	}
	if w, err := call[brokerapi.Workspace](t, conn, "destroy", brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil ||
		w.State != workspace.StateDestroyed {
		t.Errorf("destroyed %+v, %v", w, err)
	}
	_ = b.Process.Signal(syscall.SIGTERM)
	_ = b.Wait()
	<-conn.Done()
	if _, err := os.Lstat(sock); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestStdio: the daemon starts the broker with a socket as its standard input.
func TestStdio(t *testing.T) {
	p := newInstallation(t)
	a, z := socketPair(t)
	stdin, err := z.File()
	if err != nil {
		t.Fatal(err)
	}
	_ = z.Close()
	b := p.program(t, stdin, "--stdio")
	_ = stdin.Close()
	conn := jsonrpc.New(a, jsonrpc.Config{})
	if _, err := conn.Call(t.Context(), brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version}, nil); err != nil {
		t.Fatal(err)
	}
	if l, err := call[brokerapi.ListResult](t, conn, "list", brokerapi.ListParams{}); err != nil || len(l.Workspaces) != 0 {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := os.Lstat(p.settings.RuntimeDir + "/broker.sock"); !os.IsNotExist(err) {
		t.Errorf("it listens as well: %v", err)
	}
	_ = conn.Close()
	<-conn.Done()
	if err := b.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestProgramRefuses: one clear line, and nothing done.
func TestProgramRefuses(t *testing.T) {
	p := newInstallation(t)
	path, err := binary("carrel-broker")
	if err != nil {
		t.Fatal(err)
	}
	path = reachable(t, path)
	open := p.write(t)
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	loose := *p
	loose.settings.ExecutorPath = "/nowhere/carrel-executor"
	for _, c := range []struct {
		args []string
		uid  uint32
		says string
	}{
		{[]string{"--settings", open}, 0, "chmod go-w"},
		{[]string{"--settings", "/nowhere/broker.json"}, 0, "no such file"},
		{[]string{"--settings", loose.write(t)}, 0, "executor_path"},
		{[]string{"--settings", p.write(t), "extra"}, 0, "extra"},
		{[]string{"--settings", p.write(t), "--stdio"}, 0, "not a"},
		{[]string{"--settings", p.write(t)}, 65432, "needs root"},
	} {
		b := exec.CommandContext(t.Context(), path, c.args...)
		b.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
		b.Dir = "/"
		out, err := b.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v: %v, %s", c.args, err, out)
		}
	}
}

// reachable copies a program to where every user can run it.
func reachable(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "broker-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	copied := filepath.Join(dir, filepath.Base(path))
	if err := errors.Join(os.WriteFile(copied, b, 0o700), os.Chmod(copied, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return copied
}

// pss reads the proportional set size of a process in KiB.
func pss(t testing.TB, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no Pss")
	return 0
}

// BenchmarkStart is a start to a verified report that is in the ledger, and how much of it
// the launch took: cloning the executor, its first stage and the proof.
func BenchmarkStart(b *testing.B) {
	p := newInstallation(b)
	var launches, starts []float64
	launched := p.launch
	p.launch = func(ctx context.Context, c launch.Config) (*launch.Executor, error) {
		began := time.Now()
		defer func() { launches = append(launches, float64(time.Since(began).Microseconds())) }()
		return launched(ctx, c)
	}
	life := p.mustOpen(b)
	p.create(b, life)
	for b.Loop() {
		began := time.Now()
		if _, err := life.Start(b.Context(), brokerapi.StartParams{Name: p.name}); err != nil {
			b.Fatal(err)
		}
		starts = append(starts, float64(time.Since(began).Microseconds()))
		if _, err := life.Stop(b.Context(), brokerapi.NameParams{Name: p.name}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(median(starts), "start-p50-µs")
	b.ReportMetric(median(launches), "launch-p50-µs")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
