package cgroup_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

const name = id.Workspace("cbt-0123abcd")

var limits = workspace.Limits{MemoryBytes: 96 << 20, Pids: 40, CPUWeight: 200, OpenFiles: 64}

const ofOwner = "00112233445566ff"

// A thread that joined a group leaves it when it ends, and the main thread never does:
// so the goroutine of main keeps it, and no other can be given it.
func init() { runtime.LockOSThread() }

// TestMain doubles as the program that is put into groups.
func TestMain(m *testing.M) {
	switch os.Getenv("CGROUP_TEST") {
	case "wait": // says that it runs, and waits for the end of stdin
		fmt.Println("up")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "forks": // starts processes until it cannot, or until its runtime cannot
		for n := 1; n <= 500; n++ {
			c := exec.Command("/proc/self/exe")
			c.Env = []string{"CGROUP_TEST=hold", "GOMAXPROCS=1"}
			if c.Start() != nil {
				break
			}
			fmt.Println(n)
		}
		fmt.Println("end")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "hold":
		select {}
	case "delegated": // makes an instance in a group that it is in, and removes it at the end of stdin
		in, err := cgroup.OpenAny(os.Getenv("CGROUP_POINT"), os.Getenv("CGROUP_OWN"))
		if err == nil {
			fmt.Println("open", in.Left())
			_, _ = io.Copy(io.Discard, os.Stdin)
			err = in.RemoveInstance()
		}
		fmt.Println("end", err)
		os.Exit(0)
	case "step": // runs a process in a group of its own, in a group that it was given, until the end of stdin
		os.Exit(runStep())
	case "tick": // says something as often as it can be read
		for {
			fmt.Println("tick")
		}
	case "full": // takes 40 MiB, says so, and waits for the end of stdin
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil { // it is the one that the kernel ends
			fmt.Println(err)
			os.Exit(1)
		}
		// Not of the heap: what the race detector notes of the heap would fill the group four times.
		b, err := unix.Mmap(-1, 0, 40<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for i := range b {
			b[i] = byte(i)
		}
		fmt.Println("full")
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Println(b[len(b)-1])
		os.Exit(0)
	case "read": // reads a file and ends
		var n int64
		f, err := os.Open(os.Getenv("CGROUP_FILE"))
		if err == nil {
			n, err = io.Copy(io.Discard, f)
		}
		fmt.Println(n, err)
		os.Exit(0)
	case "write": // writes 4 MiB past the cache and says how many milliseconds it took
		begin := time.Now()
		f, err := os.OpenFile(os.Getenv("CGROUP_FILE"), os.O_CREATE|os.O_WRONLY|unix.O_DIRECT, 0o600)
		b, merr := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
		for i := 0; i < 4 && err == nil && merr == nil; i++ {
			_, err = f.Write(b)
		}
		if err != nil || merr != nil {
			fmt.Println(err, merr)
			os.Exit(1)
		}
		fmt.Println(time.Since(begin).Milliseconds())
		os.Exit(0)
	case "eat": // takes memory until it is ended
		var all [][]byte
		for range 400 {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			all = append(all, b)
		}
		fmt.Println("ate", len(all))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func instance(t testing.TB) *cgroup.Instance {
	t.Helper()
	return instanceOf(t, 0)
}

// instanceConfig is of an instance whose workspaces may have so many processes together, which instanceOf makes.
func instanceConfig(pids int64) cgroup.Config {
	return cgroup.Config{
		Name: fmt.Sprintf("carrel-test-%d", os.Getpid()), Shared: cgroup.Shared{MemoryBytes: 4 << 30, Pids: pids},
		Each: cgroup.Shared{MemoryBytes: 3 << 30, Pids: pids / 2},
	}
}

func instanceOf(t testing.TB, pids int64) *cgroup.Instance {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: control groups need root")
	}
	in, err := cgroup.Open(instanceConfig(pids))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range in.Missing() {
		t.Logf("missing here: %s: %s; remedy: %s", m.Controller, m.Reason, m.Remedy)
	}
	t.Cleanup(func() {
		names, _ := in.Names()
		for _, n := range names {
			_ = in.Remove(context.Background(), n)
		}
		if err := in.RemoveInstance(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// has reports whether c limits anything on this host.
func has(in *cgroup.Instance, c cgroup.Controller) bool {
	for _, m := range in.Missing() {
		if m.Controller == c {
			return false
		}
	}
	return true
}

// process is a started child. Wait may be called from several places.
type process struct {
	*exec.Cmd
	once func() error
}

func (p *process) Wait() error { return p.once() }

// start runs this program in the role, in the v1 groups of tasks and the v2 group dir.
// It does what a launch does: the thread joins, then the child is born.
func start(t testing.TB, role string, tasks []*os.File, dir int) (*process, *bufio.Reader) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = []string{"CGROUP_TEST=" + role, "CGROUP_FILE=" + os.Getenv("CGROUP_FILE")}
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: dir}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		for _, f := range tasks {
			if _, err := f.WriteString("0"); err != nil {
				errs <- err
				return
			}
		}
		errs <- c.Start()
	}()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	p := &process{c, sync.OnceValue(c.Wait)}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Process.Kill()
		_ = p.Wait()
	})
	return p, bufio.NewReader(out)
}

func line(t testing.TB, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("got %q, %v", s, err)
	}
	return strings.TrimSpace(s)
}

// launched makes the groups and puts a stand-in for the executor into them.
func launched(t testing.TB, in *cgroup.Instance) (*cgroup.Files, *process) {
	t.Helper()
	f, err := in.Create(name, ofOwner, 1_880_000_000, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	x, out := start(t, "wait", f.V1Sup, int(f.Born.Fd()))
	line(t, out)
	if f.SupProcs != nil {
		if _, err := fmt.Fprint(f.SupProcs, x.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.EnableSubtree(name, limits); err != nil {
		t.Fatal(err)
	}
	return f, x
}

// command makes a group below cmd, as the executor does, and opens it.
func command(t testing.TB, f *cgroup.Files, name string) int {
	t.Helper()
	if err := unix.Mkdirat(int(f.Cmd.Fd()), name, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Openat(int(f.Cmd.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestLayout: a machine that says what it is has all controllers, and there.
func TestLayout(t *testing.T) {
	want := os.Getenv("CARREL_TEST_CGROUP")
	if want == "" {
		t.Skip("skipped: CARREL_TEST_CGROUP does not say which hierarchies this host has")
	}
	in := instance(t)
	if m := in.Missing(); len(m) > 0 {
		t.Errorf("missing: %+v", m)
	}
	f, _ := launched(t, in)
	switch want {
	case "v2":
		if len(f.V1) > 0 || len(f.V2Controllers) != 3 || f.SupProcs == nil {
			t.Errorf("v1 %v, v2 %v", f.V1, f.V2Controllers)
		}
	case "v1", "hybrid":
		if got := strings.Join(f.V1, ","); !strings.Contains(got, "memory") || !strings.Contains(got, "pids") ||
			!strings.Contains(got, "cpu") || f.SupProcs != nil {
			t.Errorf("v1 %v, v2 %v", f.V1, f.V2Controllers)
		}
	default:
		t.Errorf("CARREL_TEST_CGROUP is %q", want)
	}
}

func TestLifeOfGroups(t *testing.T) {
	in := instance(t)
	f, x := launched(t, in)
	for _, e := range in.Check(name, x.Process.Pid, limits) {
		if !e.OK {
			t.Errorf("%s: %s", e.Control, e.Text)
		}
		t.Logf("%s: %s", e.Control, e.Text)
	}
	if names, err := in.Names(); err != nil || len(names) != 1 || names[0] != name {
		t.Errorf("got %v, %v", names, err)
	}
	if _, err := in.Create(name, ofOwner, 1, limits); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second create: %v", err)
	}
	c, out := start(t, "wait", f.V1Cmd, command(t, f, "c0"))
	line(t, out)
	st, err := in.Stats(name)
	if err != nil {
		t.Fatal(err)
	}
	if has(in, cgroup.Pids) && st.Pids < 1 || has(in, cgroup.Memory) && st.MemoryBytes < 4096 {
		t.Errorf("stats %+v", st)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time"))
	if err := in.WaitEmpty(ctx, name); err == nil || !strings.Contains(err.Error(), "no time") {
		t.Errorf("waiting for what does not end: %v", err)
	}
	if err := in.Kill(name); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{x, c} {
		var e *exec.ExitError
		if err := p.Wait(); !errors.As(err, &e) || e.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("a process survived: %v", err)
		}
	}
	if err := in.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if names, err := in.Names(); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	if err := in.Remove(t.Context(), name); err != nil {
		t.Errorf("removing again: %v", err)
	}
}

func TestRemoveEndsWhatRuns(t *testing.T) {
	in := instance(t)
	f, x := launched(t, in)
	c, out := start(t, "wait", f.V1Cmd, command(t, f, "c0"))
	line(t, out)
	done := make(chan struct{}, 2)
	for _, p := range []*process{x, c} {
		go func() {
			_ = p.Wait()
			done <- struct{}{}
		}()
	}
	if err := in.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	<-done
	<-done
}

// TestRemoveFindsOneOutsideV2: a process that is in a v1 group only does not hold the
// removal up.
func TestRemoveFindsOneOutsideV2(t *testing.T) {
	in := instance(t)
	f, err := in.Create(name, ofOwner, 1_880_000_000, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.V1) == 0 {
		t.Skip("skipped: nothing limits through v1 here")
	}
	v2 := cgroup.ParseMounts(mountinfo(t)).V2
	if v2 == "" {
		t.Skip("skipped: v2 is not mounted here")
	}
	root, err := os.Open(v2)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c, out := start(t, "wait", f.V1Cmd, int(root.Fd()))
	line(t, out)
	go func() { _ = c.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := in.Remove(ctx, name); err != nil {
		t.Error(err)
	}
}

func mountinfo(t testing.TB) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDetachedV2 is a host that mounts no cgroup v2.
func TestDetachedV2(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: control groups need root")
	}
	var v1 strings.Builder
	for l := range strings.Lines(mountinfo(t)) {
		if !strings.Contains(l, " - cgroup2 ") {
			v1.WriteString(l)
		}
	}
	in, err := cgroup.Open(cgroup.Config{
		Name: fmt.Sprintf("carrel-test-%d", os.Getpid()), Shared: cgroup.Shared{MemoryBytes: 4 << 30}, Mountinfo: v1.String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.RemoveInstance() })
	f, err := in.Create(name, ofOwner, 1_880_000_000, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, out := start(t, "wait", f.V1Sup, int(f.Born.Fd()))
	line(t, out)
	go func() { _ = x.Wait() }()
	if err := in.Remove(t.Context(), name); err != nil {
		t.Error(err)
	}
}

func TestCreateLeavesNothingBehind(t *testing.T) {
	in := instance(t)
	if !has(in, cgroup.Pids) {
		t.Skip("skipped: this host has no pids controller")
	}
	bad := limits
	bad.Pids = 1 << 40 // beyond PID_MAX_LIMIT: the kernel refuses it
	f, err := in.Create(name, ofOwner, 1_880_000_000, bad)
	if err == nil && len(f.V2Controllers) > 0 { // v2 limits are set later
		f.Close()
		err = in.EnableSubtree(name, bad)
		_ = in.Remove(t.Context(), name)
	}
	if err == nil {
		t.Fatal("it was accepted")
	}
	if names, _ := in.Names(); len(names) != 0 {
		t.Errorf("left: %v after %v", names, err)
	}
	if _, err := in.Create("../x", "", 1, limits); err == nil {
		t.Error("a path was taken for a name")
	}
}
