package rootless_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// delegation is a control group that a test gave to u, as a manager of sessions would.
type delegation struct {
	t *testing.T
	u *user
	// base is the group that is u's, and its other processes are in: shell, below it, or nil
	// where it has none but those that the test starts there.
	base, shell string
}

// delegate makes the group. With shell it hands controllers down, and u's commands are
// started beside what carrel makes; else they are started in the group itself.
func (u *user) delegate(shell bool) *delegation {
	t := u.t
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	root := cgroup.ParseMounts(string(text)).V2
	handed, _ := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if os.Geteuid() != 0 || root == "" || !strings.Contains(string(handed), "memory") || !strings.Contains(string(handed), "pids") {
		t.Skipf(
			"skipped: delegating limits takes root and a cgroup v2 that hands memory and pids down; %q hands down %q; go run ./test/vm has one",
			root, handed,
		)
	}
	d := &delegation{t: t, u: u, base: filepath.Join(root, fmt.Sprintf("carrel-test-%d-%d", os.Getpid(), rangedIDs.Add(1)))}
	d.mkdir(d.base)
	for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if err := os.Chown(filepath.Join(d.base, f), int(u.id), -1); err != nil {
			t.Fatal(err)
		}
	}
	in := d.base
	if shell {
		d.write("cgroup.subtree_control", "+memory +pids +cpu")
		d.shell = filepath.Join(d.base, "shell")
		d.mkdir(d.shell)
		in = d.shell
	}
	if u.group, err = os.Open(in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.group.Close() })
	return d
}

func (d *delegation) mkdir(path string) {
	d.t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0o600) // what is left is told below
		until(d.t, "an empty group", func() bool {
			b, _ := os.ReadFile(filepath.Join(path, "cgroup.events"))
			return strings.Contains(string(b), "populated 0")
		})
		if out, err := exec.Command("find", path, "-depth", "-type", "d", "-delete").CombinedOutput(); err != nil {
			d.t.Errorf("%v: %s", err, out)
		}
	})
}

func (d *delegation) write(file, value string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.base, file), []byte(value), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *delegation) read(file string) string {
	b, _ := os.ReadFile(filepath.Join(d.base, file))
	return strings.TrimSpace(string(b))
}

// made are the groups that carrel made in it.
func (d *delegation) made() (names []string) {
	all, err := filepath.Glob(filepath.Join(d.base, "carrel-*"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, p := range all {
		names = append(names, filepath.Base(p))
	}
	return names
}

// verified fails unless a report has what control groups hold as verified.
func verified(t *testing.T, report string) {
	t.Helper()
	var v struct {
		Controls []struct{ ID, State, Evidence string }
	}
	if err := json.Unmarshal([]byte(report), &v); err != nil {
		t.Fatalf("%v in %q", err, report)
	}
	want := []string{"memory", "pids", "cpu", "swap", "supervisor-cgroup"}
	for _, c := range v.Controls {
		if i := slices.Index(want, c.ID); i >= 0 {
			want = slices.Delete(want, i, i+1)
			if c.State != "verified" || !strings.Contains(c.Evidence, "v2 ") {
				t.Errorf("%+v", c)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no %v in %s", want, report)
	}
}

// greedy asks for more of everything than there is, and for more limit.
const greedy = `exec 2>&1
dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null
echo hog $?
echo max > /sys/fs/cgroup/cmd/memory.max && echo raised
cat /proc/self/cgroup
i=0; while [ $i -lt 120 ]; do sleep 1000 & i=$((i+1)); done
echo never`

func tamed(t *testing.T, r result) {
	t.Helper()
	if !strings.Contains(r.out, "hog 137\n") || !strings.Contains(r.out, "0::/cmd/c") || !strings.Contains(r.out, "Cannot fork") ||
		strings.Contains(r.out, "raised") || strings.Contains(r.out, "never") {
		t.Errorf("%+v", r)
	}
}

// A run beside other processes of a delegated group is limited by groups of its own, and by
// the limits of the group it was started in; nothing of it stays, and what was killed is
// removed by the next.
func TestDelegatedRun(t *testing.T) {
	u := newUser(t)
	d := u.delegate(true)
	for file, value := range map[string]string{"memory.max": "83886080", "pids.max": "80"} {
		if err := os.WriteFile(filepath.Join(d.shell, file), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // one is killed as soon as its groups are there, one when its command runs
		c := u.command("project", filepath.Join(programs, "carrel"), "run", "--", "sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		before := d.made()
		until(t, "the groups of a run", func() bool {
			now := d.made()
			if len(before) == 0 || len(now) == 0 {
				return len(now) > 0
			}
			running, err := filepath.Glob(filepath.Join(d.base, fmt.Sprintf("carrel-%d-*/*/cmd/c0", c.Process.Pid)))
			return err == nil && len(running) > 0
		})
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // it was killed
		until(t, "the end of every process", func() bool { return len(u.processes()) == 0 })
		if left := d.made(); len(left) != 1 || !strings.HasPrefix(left[0], fmt.Sprintf("carrel-%d-", c.Process.Pid)) {
			t.Errorf("left by a run that was killed: %v", left)
		}
	}
	d.mkdir(filepath.Join(d.base, "carrel-1")) // another's
	r := u.run("--report", "../proof.json", "--", "sh", "-c", greedy)
	tamed(t, r)
	proof, err := os.ReadFile(filepath.Join(u.home, "proof.json"))
	if err != nil {
		t.Fatal(err)
	}
	verified(t, string(proof))
	if left := d.made(); !slices.Equal(left, []string{"carrel-1"}) {
		t.Errorf("groups are left: %v", left)
	}
	if r := u.run("-v", d.base+":/mnt/groups", "--", "true"); r.code != 125 || !strings.Contains(r.err, "mount it read-only") {
		t.Errorf("control groups mounted writable: %+v", r)
	}
}

// A run that has a delegated group for itself makes room in it, and gives it back.
func TestDelegatedAlone(t *testing.T) {
	u := newUser(t)
	d := u.delegate(false)
	if r := u.run("--report", "-", "--", "cat", "/proc/self/cgroup"); r.code != 0 || !strings.HasPrefix(r.out, "0::/cmd/c") {
		t.Errorf("%+v", r)
	} else {
		verified(t, r.err)
	}
	if left, handed := d.made(), d.read("cgroup.subtree_control"); len(left) > 0 || handed != "" {
		t.Errorf("left: %v, handing down %q", left, handed)
	}
	// With another process there it does not.
	other := u.command("", "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	if r := u.run("--report", "-", "--", "true"); r.code != 0 || !strings.Contains(r.err, "holds other processes beside this one") ||
		d.read("cgroup.procs") != strconv.Itoa(other.Process.Pid) {
		t.Errorf("%+v", r)
	}
}

// The daemon of one user limits, counts, pauses and changes limits in a delegated group, with
// and without ranges of ids; killed, it leaves its groups to the next, and in order none.
func TestDelegatedDaemon(t *testing.T) { delegatedDaemon(t, newRanged(t)) }

func TestOwnDelegatedDaemon(t *testing.T) { delegatedDaemon(t, newOwner(t)) }

func delegatedDaemon(t *testing.T, u *user) {
	d := u.delegate(true)
	u.must("create", "--memory", "80MiB", "--pids", "60", "demo")
	verified(t, u.must("inspect", "-o", "json", "demo"))
	tamed(t, u.carrel("exec", "demo", "--", "sh", "-c", greedy))
	if got := u.must("top", "-o", "json"); !strings.Contains(got, `"pids": 0`) || strings.Contains(got, `"cpu_us": -1`) ||
		!strings.Contains(got, `"oom_kills": 1`) {
		t.Errorf("%s", got)
	}
	u.must("pause", "demo")
	frozen, err := filepath.Glob(filepath.Join(d.base, "carrel-*/*/cmd/cgroup.events"))
	if b, _ := os.ReadFile(strings.Join(frozen, "")); err != nil || !strings.Contains(string(b), "frozen 1") {
		t.Errorf("%v has %q", frozen, b)
	}
	u.must("resume", "demo")
	u.must("update", "--memory", "192MiB", "demo")
	if got := u.must("inspect", "-o", "json", "demo"); !strings.Contains(got, "memory.max is 201326592") {
		t.Errorf("%s", got)
	}
	if r := u.carrel("exec", "demo", "--", "sh", "-c", "dd if=/dev/zero of=/dev/null bs=120M count=1 2>&1; cat /sys/fs/cgroup$(sed s/0::// "+
		"/proc/self/cgroup)/memory.max"); r.code != 0 || !strings.HasSuffix(r.out, "\n201326592\n") {
		t.Errorf("more than there was before: %+v", r)
	}
	old := d.made()
	u.killDaemon()
	u.must("start", "demo")
	if now := d.made(); len(now) != 1 || len(old) != 1 || now[0] == old[0] {
		t.Errorf("the daemon that was killed had %v, the next has %v", old, now)
	}
	pid := u.daemon()
	u.must("down")
	gone(t, pid)
	if left := d.made(); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
}
