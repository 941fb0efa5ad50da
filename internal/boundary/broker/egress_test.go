package broker_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/linux/thread"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// withEgress has the broker use the carrel-egress of this repository.
func (p *installation) withEgress(t testing.TB) {
	t.Helper()
	path, err := binary("carrel-egress")
	if err != nil {
		t.Fatal(err)
	}
	p.settings.EgressPath = path
}

func dialForFiles(t testing.TB, path string) *jsonrpc.Conn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	conn := jsonrpc.New(c, jsonrpc.Config{MaxFDs: 1})
	if _, err := conn.Call(t.Context(), brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version}, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

// wayOut asks for a carrel-egress and returns its control socket.
func wayOut(t testing.TB, conn *jsonrpc.Conn, name id.Workspace) *os.File {
	t.Helper()
	files, err := conn.Call(t.Context(), brokerapi.MethodEgress, brokerapi.NameParams{Name: name}, nil)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	t.Cleanup(func() { files[0].Close() })
	return files[0]
}

// netMembers are the processes in the group of carrel-egress.
func (p *installation) netMembers(t testing.TB, name id.Workspace) (pids []int) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/memory/%s", "/sys/fs/cgroup/%s"} {
		root := fmt.Sprintf(pattern, p.settings.CgroupName)
		for _, below := range []string{"", "*/"} { // of an owner
			found, _ := filepath.Glob(root + "/" + below + string(name) + "/net/cgroup.procs")
			for _, f := range found {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				for field := range strings.FieldsSeq(string(b)) {
					pid, err := strconv.Atoi(field)
					if err != nil {
						t.Fatal(err)
					}
					pids = append(pids, pid)
				}
				return pids
			}
		}
	}
	return nil
}

// greeting is what the probe of a workspace's way out says.
func greeting(t testing.TB, executor int) string {
	t.Helper()
	var got []byte
	err := thread.Throwaway(func() error {
		fd, err := unix.PidfdOpen(executor, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return err
		}
		c, err := net.DialTimeout("tcp", net.JoinHostPort(netns.Probe.String(), "443"), 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		got, err = io.ReadAll(c)
		return err
	})
	if err != nil {
		t.Logf("no greeting: %v", err)
	}
	return string(got)
}

func setUp(t testing.TB, control *os.File, rules string) string {
	t.Helper()
	_ = control.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(control, `{"version":1,"rules":%s}`+"\n", rules); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 512)
	n, err := control.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func statusOf(t testing.TB, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func waitFor(t testing.TB, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !yes(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// A workspace with a way out has a carrel-egress with an id of its own in a group of its own. It is replaced when
// it has ended, hangs, or when a broker was killed, and never are there two.
func TestEgress(t *testing.T) {
	p := newInstallation(t)
	p.withEgress(t)
	p.settings.UIDFirst, p.settings.UIDCount = 1_890_000_000+5000*rand.Uint32N(10_000), 5000 // room for an id for each
	sock := p.settings.RuntimeDir + "/broker.sock"
	b := p.program(t, nil)
	conn := dialForFiles(t, sock)
	mustCreate(t, conn, p.name)
	x, err := call[brokerapi.StartResult](t, conn, brokerapi.MethodStart, brokerapi.StartParams{Name: p.name, Egress: true})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(x.Report.Controls, func(c workspace.Control) bool { return c.ID == "egress" })
	if i < 0 || x.Report.Controls[i].State != workspace.Verified || !x.Workspace.Egress {
		t.Fatalf("egress %v in %+v", x.Workspace.Egress, x.Report.Controls)
	}
	executor := x.Workspace.Executor.PID
	first := p.netMembers(t, p.name)
	if len(first) != 1 {
		t.Fatalf("in the group are %v", first)
	}
	uid := p.settings.EgressUID(x.Workspace.IDs)
	if uid != p.settings.UIDFirst+p.settings.UIDCount-2 {
		t.Errorf("its id is %d", uid)
	}
	status := statusOf(t, first[0])
	for _, want := range []string{
		"Name:\tcarrel-egress\n", fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid), fmt.Sprintf("Gid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid),
		"Groups:\t \n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapInh:\t0000000000000000\n",
		"CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n", "Seccomp:\t2\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("carrel-egress has no %q:\n%s", want, status)
		}
	}
	if adj, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", first[0])); err != nil || string(adj) != "400\n" {
		t.Errorf("oom_score_adj is %s, %v", adj, err)
	}

	// The one that served the start is handed out, once.
	control := wayOut(t, conn, p.name)
	if now := p.netMembers(t, p.name); !slices.Equal(now, first) {
		t.Errorf("%v became %v", first, now)
	}
	if said := setUp(t, control, `[]`); said != "{\"ready\":true}\n" {
		t.Errorf("it says %s", said)
	}

	replaced := func(what string) {
		t.Helper()
		before := p.netMembers(t, p.name)
		control = wayOut(t, conn, p.name)
		now := p.netMembers(t, p.name)
		if len(now) != 1 || slices.Equal(now, before) {
			t.Errorf("%s: %v became %v", what, before, now)
		}
		if said := setUp(t, control, `[]`); said != "{\"ready\":true}\n" {
			t.Errorf("%s: it says %s", what, said)
		}
		if got := greeting(t, executor); got != netns.Greeting {
			t.Errorf("%s: the workspace meets %q", what, got)
		}
	}
	old := control
	replaced("a second one")
	_ = old.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadAll(old); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the first one goes on: %v", err)
	}
	kill := func(sig syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(p.netMembers(t, p.name)[0], sig); err != nil {
			t.Fatal(err)
		}
	}
	kill(syscall.SIGSTOP)
	replaced("one that hangs")
	kill(syscall.SIGKILL)
	waitFor(t, "the end of carrel-egress", func() bool { return len(p.netMembers(t, p.name)) == 0 })
	if got := greeting(t, executor); got != "" {
		t.Errorf("without carrel-egress %q answers", got)
	}
	replaced("one that was killed")
	_ = control.Close()
	waitFor(t, "its end with the control socket", func() bool { return len(p.netMembers(t, p.name)) == 0 })
	replaced("one whose owner went away")

	// It outlives the broker, and the next broker replaces it.
	_ = b.Process.Kill()
	_ = b.Wait()
	if said := setUp(t, control, `[]`); said != "{\"ready\":true}\n" {
		t.Errorf("without a broker it says %s", said)
	}
	b = p.program(t, nil)
	conn = dialForFiles(t, sock)
	replaced("that of an earlier broker")

	// It ends with the workspace, and one without a way out has none.
	if _, err := call[brokerapi.Workspace](t, conn, brokerapi.MethodStop, brokerapi.NameParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	if now := p.netMembers(t, p.name); len(now) != 0 {
		t.Errorf("after the stop there are %v", now)
	}
	plain, err := call[brokerapi.StartResult](t, conn, brokerapi.MethodStart, brokerapi.StartParams{Name: p.name})
	if err != nil || plain.Workspace.Egress {
		t.Fatalf("%+v, %v", plain.Workspace, err)
	}
	if _, err := conn.Call(t.Context(), brokerapi.MethodEgress, brokerapi.NameParams{Name: p.name}, nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a way out of one that has none: %v", err)
	}
	_ = b.Process.Signal(syscall.SIGTERM)
	_ = b.Wait()
}

// Without a carrel-egress nothing starts with a way out, and what else is asked for works.
func TestNoEgress(t *testing.T) {
	p := newInstallation(t)
	p.settings.EgressPath = t.TempDir() + "/none"
	b := p.program(t, nil)
	conn := dialForFiles(t, p.settings.RuntimeDir+"/broker.sock")
	mustCreate(t, conn, p.name)
	_, err := call[brokerapi.StartResult](t, conn, brokerapi.MethodStart, brokerapi.StartParams{Name: p.name, Egress: true})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "egress_path") {
		t.Errorf("it starts: %v", err)
	}
	if _, err := call[brokerapi.StartResult](t, conn, brokerapi.MethodStart, brokerapi.StartParams{Name: p.name}); err != nil {
		t.Error(err)
	}
	_ = b.Process.Signal(syscall.SIGTERM)
	_ = b.Wait()

	// One that others can change is not started with root's help.
	loose := t.TempDir() + "/carrel-egress"
	if err := os.WriteFile(loose, []byte("#!/bin/sh\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(loose, 0o777); err != nil {
		t.Fatal(err)
	}
	p.settings.EgressPath = loose
	path, err := binary("carrel-broker")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), path, "--settings", p.write(t))
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cannot use the egress") ||
		!strings.Contains(string(out), "others than root can change it") {
		t.Errorf("the broker says %s", out)
	}
}

// The programs of a workspace trust the authority that it is started with, until it is started without. What is not one
// certificate is refused before anything happens.
func TestTrust(t *testing.T) {
	p := newInstallation(t)
	p.withEgress(t)
	b := p.program(t, nil)
	conn := dialForFiles(t, p.settings.RuntimeDir+"/broker.sock")
	mustCreate(t, conn, p.name)
	block := func(kind, text string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(text)}))
	}
	trust := block("CERTIFICATE", "not one that programs can read, which is theirs to say")
	for what, c := range map[string]brokerapi.StartParams{
		"a certificate without a way out": {Name: p.name, Trust: trust},
		"a key":                           {Name: p.name, Egress: true, Trust: block("PRIVATE KEY", "k")},
		"two":                             {Name: p.name, Egress: true, Trust: trust + trust},
		"text in front":                   {Name: p.name, Egress: true, Trust: "x\n" + trust},
		"headers":                         {Name: p.name, Egress: true, Trust: strings.Replace(trust, "-----\n", "-----\nA: b\n\n", 1)},
		"no end":                          {Name: p.name, Egress: true, Trust: trust[:len(trust)-2]},
		"one that is too long":            {Name: p.name, Egress: true, Trust: block("CERTIFICATE", strings.Repeat("x", brokerapi.MaxTrust))},
	} {
		// It ends the connection: no daemon asks so.
		_, err := call[brokerapi.StartResult](t, dialForFiles(t, p.settings.RuntimeDir+"/broker.sock"), brokerapi.MethodStart, c)
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	started := func(trust string) string {
		t.Helper()
		x, err := call[brokerapi.StartResult](t, conn, brokerapi.MethodStart, brokerapi.StartParams{Name: p.name, Egress: true, Trust: trust})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := x.Workspace.Trust, workspace.Digest(trust); got != want {
			t.Errorf("it trusts %q, not %q", got, want)
		}
		return fmt.Sprintf("/proc/%d/root", x.Workspace.Executor.PID)
	}
	root := started(trust)
	if b, err := os.ReadFile(root + sandbox.TrustFile); err != nil || string(b) != trust {
		t.Errorf("inside is %q, %v", b, err)
	}
	if b, err := os.ReadFile(root + sandbox.BundleFile); err != nil || !strings.HasSuffix(string(b), trust) {
		t.Errorf("the bundle ends with %q, %v", b[max(0, len(b)-100):], err)
	}
	if _, err := call[brokerapi.Workspace](t, conn, brokerapi.MethodStop, brokerapi.NameParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	all, err := call[brokerapi.ListResult](t, conn, brokerapi.MethodList, brokerapi.ListParams{})
	if err != nil || all.Workspaces[0].Trust != "" {
		t.Errorf("stopped: %+v, %v", all, err)
	}
	root = started("")
	if _, err := os.Lstat(root + sandbox.TrustFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without one: %v", err)
	}
	_ = b.Process.Signal(syscall.SIGTERM)
	_ = b.Wait()
}
