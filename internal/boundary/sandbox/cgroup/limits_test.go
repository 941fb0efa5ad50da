package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestPidsHold(t *testing.T) {
	in := instance(t)
	if !has(in, cgroup.Pids) {
		t.Skip("skipped: this host has no pids controller")
	}
	f, _ := launched(t, in)
	_, out := start(t, "forks", f.V1Cmd, command(t, f, "c0"))
	n := 0
	for {
		l, err := out.ReadString('\n')
		if err != nil || l == "end\n" {
			break
		}
		n++
	}
	if n == 0 || n > int(limits.Pids) {
		t.Errorf("%d processes were started", n)
	}
}

// All workspaces together leave the host the numbers above the ceiling, whatever their own limits are.
func TestPidsOfAllHold(t *testing.T) {
	const ceiling = 36 // less than the workspace's own 40, and enough for the threads of two programs of Go
	in := instanceOf(t, ceiling)
	if !has(in, cgroup.Pids) {
		t.Skip("skipped: this host has no pids controller")
	}
	f, x := launched(t, in)
	_, out := start(t, "forks", f.V1Cmd, command(t, f, "c0"))
	n := 0
	for l, err := out.ReadString('\n'); err == nil && l != "end\n"; l, err = out.ReadString('\n') {
		n++
	}
	if n == 0 || n >= ceiling {
		t.Errorf("%d processes were started, where all workspaces have %d", n, ceiling)
	}
	i := slices.IndexFunc(in.Check(name, x.Process.Pid, limits), func(e cgroup.Evidence) bool {
		return e.OK && e.Control == "pids" && strings.HasSuffix(e.Text, fmt.Sprintf("all workspaces pids.max is %d", ceiling))
	})
	if i < 0 {
		t.Errorf("the ceiling is not read back: %+v", in.Check(name, x.Process.Pid, limits))
	}
}

func TestMemoryHolds(t *testing.T) {
	in := instance(t)
	if !has(in, cgroup.Memory) {
		t.Skip("skipped: this host has no memory controller")
	}
	f, x := launched(t, in)
	c, out := start(t, "eat", f.V1Cmd, command(t, f, "c0"))
	if s, err := out.ReadString('\n'); err == nil {
		t.Errorf("nothing stopped it: %s", s)
	}
	_ = c.Wait()
	st, err := in.Stats(name)
	if err != nil || st.OOMKills < 1 {
		t.Errorf("stats %+v, %v", st, err)
	}
	if err := x.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the executor's stand-in is gone: %v", err)
	}
}

// TestCheckSeesWhatIsWrong plants each kind of wrong and sees it caught.
func TestCheckSeesWhatIsWrong(t *testing.T) {
	in := instance(t)
	_, x := launched(t, in)
	bad := func(pid int, l workspace.Limits) map[string]bool {
		found := map[string]bool{}
		for _, e := range in.Check(name, pid, l) {
			if !e.OK {
				found[e.Control] = true
			}
		}
		return found
	}
	if got := bad(os.Getpid(), limits); !got["supervisor-cgroup"] {
		t.Error("an executor outside its group was not seen")
	}
	for _, c := range []struct {
		controller cgroup.Controller
		l          workspace.Limits
	}{
		{cgroup.Memory, workspace.Limits{MemoryBytes: 32 << 20, Pids: limits.Pids, CPUWeight: limits.CPUWeight}},
		{cgroup.Pids, workspace.Limits{MemoryBytes: limits.MemoryBytes, Pids: 41, CPUWeight: limits.CPUWeight}},
		{cgroup.CPU, workspace.Limits{MemoryBytes: limits.MemoryBytes, Pids: limits.Pids, CPUWeight: 300}},
	} {
		if has(in, c.controller) && !bad(x.Process.Pid, c.l)[string(c.controller)] {
			t.Errorf("a wrong %s was not seen", c.controller)
		}
	}
	if len(in.Check("cbt-ffffffff", 1, limits)) == 0 {
		t.Error("a workspace without groups passed")
	}
}

// TestDelegation: what the executor may write is what it needs, and the command's group
// leads nowhere else.
func TestDelegation(t *testing.T) {
	in := instance(t)
	f, _ := launched(t, in)
	const executor = 1_880_000_000
	owner := func(dir int, file string) uint32 {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, file, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return st.Uid
	}
	for _, file := range []string{".", "cgroup.procs", "cgroup.subtree_control"} {
		if got := owner(int(f.Cmd.Fd()), file); got != executor {
			t.Errorf("%s of cmd belongs to %d", file, got)
		}
	}
	for _, file := range []string{"cgroup.max.descendants", "cgroup.kill", "cgroup.freeze"} {
		if got := owner(int(f.Cmd.Fd()), file); got != 0 {
			t.Errorf("%s of cmd belongs to %d", file, got)
		}
	}
	for _, c := range f.V2Controllers {
		file := map[string]string{"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.weight"}[c]
		if got := owner(int(f.Cmd.Fd()), file); got != 0 {
			t.Errorf("%s of cmd belongs to %d", file, got)
		}
	}
	if got := owner(int(f.Born.Fd()), "cgroup.procs"); got != executor {
		t.Errorf("cgroup.procs of the workspace belongs to %d", got)
	}
	if got := owner(int(f.Born.Fd()), "cgroup.subtree_control"); got != 0 {
		t.Errorf("cgroup.subtree_control of the workspace belongs to %d", got)
	}
	var cmd, up unix.Stat_t
	if err := errors.Join(unix.Fstatat(int(f.Cmd.Fd()), ".", &cmd, 0), unix.Fstatat(int(f.Cmd.Fd()), "..", &up, 0)); err != nil {
		t.Fatal(err)
	}
	// Where v2 is not mounted, the directory cannot be made a mount of its own.
	if cmd.Ino != up.Ino && cgroup.ParseMounts(mountinfo(t)).V2 != "" {
		t.Error("the command's group leads to the groups above")
	}
}

func BenchmarkCreateRemove(b *testing.B) {
	in := instance(b)
	for b.Loop() {
		f, err := in.Create(name, ofOwner, 1_880_000_000, limits)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
		if err := in.Remove(b.Context(), name); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	in := instance(b)
	for b.Loop() {
		f, err := in.Create(name, ofOwner, 1_880_000_000, limits)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		f.Close()
		if err := in.Remove(b.Context(), name); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
