package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/daemon"
	"github.com/carrel-dev/carrel/test/built"
)

// Root, and any capability, is refused; a plain user serves, keeps private files
// and stops on TERM.
func TestPrivilege(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: needs root to run the daemon as several users")
	}
	f := setUp(t)
	args := []string{
		"--config", "/dev/null", "--data-dir", f.cfg.DataDir, "--runtime-dir", f.cfg.RuntimeDir, "--socket-group", "", "--ready-fd", "3",
	}
	err := daemon.Run(
		t.Context(), slices.Concat([]string{"--config", emptyFile(t)}, args[2:len(args)-2]), nil,
		daemon.Streams{Out: io.Discard, Err: io.Discard},
	)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "cannot run as root") {
		t.Errorf("root: %v", err)
	}

	const uid = 1_880_009_999
	dir := filepath.Dir(f.cfg.DataDir)
	self := filepath.Join(dir, "self")
	conf := filepath.Join(dir, "c.yaml")
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(self, b, 0o755), os.WriteFile(conf, nil, 0o644), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{
		f.cfg.DataDir, f.cfg.RuntimeDir, filepath.Join(f.cfg.RuntimeDir, "broker.sock"), filepath.Join(f.cfg.RuntimeDir, "x"),
	} {
		if err := os.Chown(d, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	args[1] = conf
	run := func(program string, attr *syscall.SysProcAttr) (cmd *exec.Cmd, ready string, stderr *bytes.Buffer) {
		rd, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer rd.Close()
		cmd = exec.CommandContext(t.Context(), program, args...)
		cmd.Env = []string{asChild + "=1"}
		stderr = new(bytes.Buffer)
		cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr, cmd.Dir = stderr, []*os.File{wr}, attr, "/"
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wr.Close()
		line, _ := io.ReadAll(rd)
		return cmd, string(line), stderr
	}
	cred := &syscall.Credential{Uid: uid, Gid: uid}
	cmd, ready, stderr := run(self, &syscall.SysProcAttr{Credential: cred, AmbientCaps: []uintptr{10}}) // CAP_NET_BIND_SERVICE
	if err := cmd.Wait(); err == nil || ready != "" || !strings.Contains(stderr.String(), "cannot run with capabilities") {
		t.Errorf("with a capability: %v, %s", err, stderr)
	}
	// What is measured is the program as it is shipped, without the tests.
	programs := filepath.Join(dir, "programs")
	if err := built.Programs(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	cmd, ready, stderr = run(filepath.Join(programs, "carreld"), &syscall.SysProcAttr{Credential: cred})
	if ready != "ready\n" {
		t.Fatalf("%v: %s", cmd.Wait(), stderr)
	}
	if out, err := f.call("WorkspaceService/Create", `{"key":"demo","noStart":true}`); err != nil {
		t.Errorf("%v %v", out, err)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
	if err != nil || len(threads) < 2 {
		t.Errorf("threads %v (%v)", threads, err)
	}
	for _, th := range threads {
		if status, err := os.ReadFile(th); err != nil || !bytes.Contains(status, []byte("NoNewPrivs:\t1")) {
			t.Errorf("no_new_privs is not set: %s (%v)", th, err)
		}
	}
	// Most of it are pages of the program, which the kernel can drop. What it cannot drop is the daemon's own.
	all, own := memoryKiB(t, cmd.Process.Pid)
	if t.Logf("PSS %d KiB, of its own %d KiB", all, own); all > 32<<10 || own > 12<<10 {
		t.Errorf("the daemon takes %d KiB, %d of them its own", all, own)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it does not stop in order: %v, %s", err, stderr)
	}
	err = filepath.WalkDir(f.cfg.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == f.cfg.DataDir {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// memoryKiB is a process's share of the memory that it uses, and what of that is not of a file.
func memoryKiB(t *testing.T, pid int) (all, own int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Skipf("skipped: cannot read the daemon's memory: %v", err)
	}
	for name, n := range map[string]*int{"\nPss:": &all, "\nPss_Anon:": &own} {
		_, rest, _ := strings.Cut(string(b), name)
		if _, err := fmt.Sscan(rest, n); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	return all, own
}
