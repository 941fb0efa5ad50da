package cgroup_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// The group that is used is one that hands down already, before one that has to be made to;
// what cannot be used is said.
func TestChooseDelegated(t *testing.T) {
	const all = "cpu memory pids"
	g := func(path, kind string, mine bool, available, enabled string, procs ...int) cgroup.Candidate {
		return cgroup.NewCandidate(path, kind, mine, strings.Fields(available), strings.Fields(enabled), procs)
	}
	root := g("/", "", false, all, all)
	for _, c := range []struct {
		name   string
		groups []cgroup.Candidate
		at     int
		park   bool
		why    string
	}{
		{"a scope of one's own", []cgroup.Candidate{g("/u/app/x.scope", "domain", true, all, "", 7), g("/u/app", "domain",
			true, all, all), g("/u", "domain", true, all, all), root}, 0, true, ""},
		{"a scope with a shell", []cgroup.Candidate{g("/u/app/x.scope", "domain", true, all, "", 6, 7), g("/u/app", "domain",
			true, all, all), g("/u", "domain", true, all, all), root}, 1, false, ""},
		{"alone, and one above hands down", []cgroup.Candidate{g("/u/mine", "domain", true, all, "", 7), g("/u", "domain",
			true, all, all), root}, 1, false, ""},
		{"alone, and one above hands nothing down", []cgroup.Candidate{g("/u/mine", "domain", true, all, "", 7), g("/u",
			"domain", false, all, all), root}, 0, true, ""},
		{"one above, over one of root's", []cgroup.Candidate{g("/u/a/b", "domain", false, all, "", 7), g("/u/a", "domain",
			false, all, all), g("/u", "domain", true, all, all), root}, 2, false, ""},
		{"no processor time to hand down", []cgroup.Candidate{g("/u/b", "domain", false, all, "", 7), g("/u", "domain",
			true, all, "memory pids"), root}, 1, false, ""},
		{"no controllers", []cgroup.Candidate{g("/", "", true, "hugetlb", "", 7)}, 0, false, "cgroup v2 has no memory controller here"},
		{"the host's root group", []cgroup.Candidate{g("/", "", true, all, all, 6, 7)}, 0, false, ""},
		{"that of a namespace", []cgroup.Candidate{g("/", "domain", true, all, all, 6, 7)}, 0, false, "holds other processes"},
		{"a session of root's", []cgroup.Candidate{g("/user/session-1.scope", "domain", false, all, "", 7), g("/user", "domain",
			false, all, all), root}, 0, false, "neither /user/session-1.scope, the group of this process, nor one above it is delegated to you"},
		{
			"without pids",
			[]cgroup.Candidate{g("/u/mine", "domain", true, "memory", "", 7), root},
			0, false,
			"the group /u/mine is delegated to you without the pids controller",
		},
		{
			"others beside it",
			[]cgroup.Candidate{g("/u/mine", "domain", true, all, "", 7, 8), root},
			0, false,
			"holds other processes beside this one",
		},
		{"handing memory alone down", []cgroup.Candidate{g("/u/a", "domain", true, "memory", "", 7, 8), g("/u", "domain",
			true, all, "memory"), root}, 0, false, "the group /u/a is delegated to you without the pids controller"},
		{
			"threads",
			[]cgroup.Candidate{g("/u/mine", "threaded", true, all, ""), g("/u", "domain threaded", true, all, all), root},
			0, false, "is of the type threaded",
		},
		{
			"under threads",
			[]cgroup.Candidate{g("/u/b/c", "domain", false, all, "", 7), g("/u/b", "domain threaded", true, all, all), root},
			0, false, "is of the type domain threaded",
		},
	} {
		at, park, why := cgroup.Choose(c.groups, 7)
		if at != c.at || park != c.park || (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %d, %v, %q", c.name, at, park, why)
		}
	}
}

// Names tell whose a group is, and nothing else is taken for one.
func TestOwnedNames(t *testing.T) {
	if pid, start, ok := cgroup.ParseOwned(cgroup.OwnedName(42, 7)); !ok || pid != 42 || start != 7 {
		t.Error(pid, start, ok)
	}
	for _, name := range []string{
		"", "carrel", "carrel-", "carrel-42", "carrel-42-", "carrel-0-7", "carrel--1-7",
		"carrel-042-7", "carrel-42-7-1", "carrel-42-+7", "xcarrel-42-7",
	} {
		if _, _, ok := cgroup.ParseOwned(name); ok {
			t.Errorf("%q is taken for ours", name)
		}
	}
}

// owner is a process that makes an instance of its own.
type owner struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startOwner(t *testing.T, point, own string, want string) *owner {
	t.Helper()
	dir, err := os.Open(filepath.Join(point, own))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	o := &owner{Cmd: exec.CommandContext(t.Context(), "/proc/self/exe")}
	o.Env = append(os.Environ(), "CGROUP_TEST=delegated", "CGROUP_POINT="+point, "CGROUP_OWN="+own)
	o.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := o.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if o.in, err = o.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := o.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Process.Kill(); _ = o.Wait() })
	o.out = bufio.NewReader(out)
	if line, err := o.out.ReadString('\n'); !strings.HasPrefix(line, want) {
		t.Fatalf("%q, %v", line, err)
	}
	return o
}

// end has o remove its instance.
func (o *owner) end(t *testing.T) {
	t.Helper()
	o.in.Close()
	if line, err := o.out.ReadString('\n'); line != "end <nil>\n" {
		t.Errorf("%q, %v", line, err)
	}
	_ = o.Wait()
}

// What a process left that was killed is removed by the next, and nothing else: not what
// lives, not what somebody holds, not what another made.
func TestOwnedAreSwept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: groups to try this in take root")
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	point := cgroup.ParseMounts(string(text)).V2
	if point == "" {
		t.Skip("skipped: cgroup v2 is not mounted")
	}
	base := fmt.Sprintf("/carrel-cgroup-test-%d", os.Getpid())
	mkdir := func(path string) string {
		t.Helper()
		path = filepath.Join(point, path)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		// What a test that failed left in it, too.
		t.Cleanup(func() {
			if out, err := exec.Command("find", path, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").CombinedOutput(); err != nil &&
				!strings.Contains(string(out), "No such file") {
				t.Errorf("%v: %s", err, out)
			}
		})
		return path
	}
	mkdir(base)
	mkdir(base + "/shell")
	names := func() []string {
		all, err := filepath.Glob(filepath.Join(point, base, "carrel-*"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			all[i] = filepath.Base(all[i])
		}
		return all
	}
	first, second := startOwner(t, point, base+"/shell", "open <nil>"), startOwner(t, point, base+"/shell", "open <nil>")
	if len(names()) != 2 {
		t.Errorf("of two that live: %v", names())
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	start, _ := cgroup.StartOf(os.Getpid())
	living := mkdir(base + "/" + cgroup.OwnedName(os.Getpid(), start)) // it is not locked yet
	foreign, held, plain := mkdir(base+"/carrel-2147483647-1"), mkdir(base+"/carrel-2147483647-2"), mkdir(base+"/carrel-9")
	if err := os.Chown(foreign, 12345, -1); err != nil {
		t.Fatal(err)
	}
	hold, err := os.Open(held)
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	if err := unix.Flock(int(hold.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	startOwner(t, point, base+"/shell", "open <nil>").end(t)
	left := names()
	for _, want := range []string{living, foreign, held, plain} {
		if !slices.Contains(left, filepath.Base(want)) {
			t.Errorf("%s was removed", want)
		}
	}
	if len(left) != 5 || slices.ContainsFunc(left, func(n string) bool {
		return strings.Contains(n, fmt.Sprintf("-%d-",
			first.Process.Pid))
	}) {
		t.Errorf("left: %v", left)
	}
	hold.Close()
	startOwner(t, point, base+"/shell", "open <nil>").end(t)
	second.end(t)
	if left := names(); len(left) != 3 {
		t.Errorf("left in the end: %v", left)
	}
	// Alone in a group, and beside another in one that hands nothing down.
	mkdir(base + "/lone.scope")
	startOwner(t, point, base+"/lone.scope", "open <nil>").end(t)
	if b, err := os.ReadFile(filepath.Join(point, base, "lone.scope/cgroup.procs")); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
}
