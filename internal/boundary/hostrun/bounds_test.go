package hostrun_test

import (
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
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// small are bounds that a bomb reaches soon.
var small = hostrun.Limits{Memory: 256 << 20, Processes: 64}

// bomb has the user run a script of the shell within small bounds.
func bomb(t *testing.T, u *user, p hostrun.Profile, within time.Duration, script string) answer {
	t.Helper()
	a := u.run(t, hostrun.Command{
		Argv: []string{"bash", "-c", script}, Dir: u.in(t, "project"), Profile: p, Limits: small, Timeout: within, Grace: 100 * time.Millisecond,
	})
	if len(a.Result.Left) > 0 {
		t.Errorf("%s: left %v", p, a.Result.Left)
	}
	return a
}

// One process gets no more memory than it may have, and says so itself; within its bound it gets what it asks for.
func TestMemoryOfAProcess(t *testing.T) {
	each(t, heldProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		const eats = "head -c %d /dev/zero | tail -c %[1]d | wc -c"
		a := bomb(t, u, p, 20*time.Second, fmt.Sprintf(eats, 40<<20))
		if a.Error != "" || strings.TrimSpace(a.Result.Stdout.Text()) != strconv.Itoa(40<<20) {
			t.Errorf("within its bound: %s, %s%s", a.Error, a.Result.Stdout.Text(), a.Result.Stderr.Text())
		}
		a = bomb(t, u, p, 20*time.Second, fmt.Sprintf(eats, 400<<20))
		if !strings.Contains(a.Result.Stderr.Text(), "memory exhausted") && !strings.Contains(a.Error, "MiB of memory together") {
			t.Errorf("beyond it: %s, %s%s", a.Error, a.Result.Stdout.Text(), a.Result.Stderr.Text())
		}
	})
}

// Several that each stay within it are ended with all that runs once they take more together, also where nothing else holds them.
func TestMemoryTogether(t *testing.T) {
	each(t, append([]hostrun.Profile{hostrun.None}, heldProfiles...), func(t *testing.T, u *user, p hostrun.Profile) {
		began := time.Now()
		a := bomb(t, u, p, 20*time.Second, "trap '' TERM; for i in 1 2 3 4; do (head -c 100M /dev/zero; sleep 30) | tail -c 100M > /dev/null &"+
			" done; wait")
		if !strings.Contains(a.Error, "MiB of memory together, and may take 256") || !strings.Contains(a.Error, "steps.memory") ||
			time.Since(began) > 15*time.Second {
			t.Errorf("after %v: %s, %+v", time.Since(began), a.Error, a.Result)
		}
	})
}

// A fork bomb makes as many processes as it may and no more, and ends with its command.
func TestForkBomb(t *testing.T) {
	each(t, heldProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		a := bomb(t, u, p, 3*time.Second, "n=0; while [ $n -lt 1000 ]; do sleep 30 & n=$((n+1)); echo $n; done")
		made := len(strings.Fields(a.Result.Stdout.Text()))
		// Root's are bounded by numbers, of which the kernel keeps 300 back once it has come round.
		most := map[bool]int{false: small.Processes + 32, true: small.Processes + 333}[u.id == 0]
		if a.Error != "" || made < 10 || made > most {
			t.Errorf("%d processes, at most %d: %s, %s", made, most, a.Error, a.Result.Stderr.Text())
		}
		began := time.Now()
		a = bomb(t, u, p, 2*time.Second, "b() { b | b & b; }; trap '' TERM; b")
		if a.Error != "" && !strings.Contains(a.Error, "steps.processes") || time.Since(began) > 15*time.Second {
			t.Errorf("the bomb goes on for %v: %s", time.Since(began), a.Error)
		}
	})
	users(t, func(t *testing.T, u *user) { // where only the watch is
		a := bomb(t, u, hostrun.None, 20*time.Second, "exec sh -c 'for n in $(seq 500); do sleep 30 & done; wait'")
		refused := grouped(t, u) && strings.Contains(a.Result.Stderr.Text(), "Cannot fork") && a.Result.Code != 0
		if !strings.Contains(a.Error, "steps.processes") && !refused {
			t.Errorf("%s, code %d, %s", a.Error, a.Result.Code, a.Result.Stderr.Text())
		}
	})
}

// What only reads reaches nobody by IP, on this machine's loopback neither. Under system_inspect it sees who listens all the same.
func TestNoNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	tcp, udp := l.Addr().(*net.TCPAddr).Port, d.LocalAddr().(*net.UDPAddr).Port
	script := fmt.Sprintf("echo x > /dev/udp/127.0.0.1/%d; exec 3<> /dev/tcp/127.0.0.1/%d && echo reached; "+
		"grep -ci ':%04X 00000000:0000' /proc/net/tcp", udp, tcp, tcp)
	each(t, append([]hostrun.Profile{hostrun.None}, heldProfiles...), func(t *testing.T, u *user, p hostrun.Profile) {
		a := u.run(t, hostrun.Command{Argv: []string{"bash", "-c", script}, Dir: u.in(t, "project"), Profile: p})
		if a.Error != "" {
			t.Fatal(a.Error)
		}
		out := a.Result.Stdout.Text()
		_ = d.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, _, _ := d.ReadFrom(make([]byte, 8))
		reaches := p == hostrun.None || p == hostrun.WorkspaceWrite
		if strings.Contains(out, "reached") != reaches || (n > 0) != reaches {
			t.Errorf("it reaches the listener: %t and by a datagram %t, and should: %t\n%s%s", strings.Contains(out, "reached"), n > 0, reaches,
				out, a.Result.Stderr.Text())
		}
		if sees := strings.HasSuffix(out, "1\n"); sees != (p != hostrun.ReadOnly) {
			t.Errorf("it sees the listener: %t\n%s", sees, out)
		}
	})
}

// grouped reports whether the user can make control groups here.
func grouped(t *testing.T, u *user) bool {
	t.Helper()
	if u.id != 0 {
		return false
	}
	s, err := cgroup.OpenSteps()
	if err != nil {
		t.Logf("SKIP: no control groups: %v", err)
		return false
	}
	s.Close()
	return true
}

// fills writes 400 MiB into files in memory, which no process has mapped.
const fills = "head -c 200M /dev/zero > /tmp/a && head -c 200M /dev/zero > /dev/shm/a && echo filled"

// Where there is a control group, files in memory count too, and nothing of the group is left. Without one they do not, which is said.
func TestMemoryOfFiles(t *testing.T) {
	each(t, []hostrun.Profile{hostrun.ReadOnly, hostrun.WorkspaceWrite}, func(t *testing.T, u *user, p hostrun.Profile) {
		a := bomb(t, u, p, 20*time.Second, fills)
		if full := strings.Contains(a.Error, "MiB of memory together, and may take 256 with files in memory"); full != grouped(t, u) {
			t.Errorf("%s, %s%s", a.Error, a.Result.Stdout.Text(), a.Result.Stderr.Text())
		}
		for _, c := range a.Result.Controls {
			if c.ID == "memory" && !grouped(t, u) && !strings.Contains(c.Evidence, "no control group bounds it: ") {
				t.Errorf("it is not said that there is no group: %s", c.Evidence)
			}
		}
	})
	left, err := filepath.Glob("/sys/fs/cgroup/*/carrel-step-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range left {
		if strings.HasPrefix(filepath.Base(dir), fmt.Sprintf("carrel-step-%d-", os.Getpid())) {
			t.Errorf("%s is left", dir)
		}
	}
}

// An ordinary user to whom groups were given has their steps in groups of their own.
func TestGroupsThatWereGiven(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: groups to give take root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("SKIP: setpriv is not installed")
	}
	t.Run("v1", func(t *testing.T) {
		var given []string
		for _, c := range []string{"memory", "pids", "cpu"} {
			given = append(given, give(t, fmt.Sprintf("/sys/fs/cgroup/%s/crt-hostrun-%d", c, os.Getpid()), "tasks"))
		}
		haveGroups(t, given, given, "tasks")
	})
	t.Run("v2", func(t *testing.T) {
		base := give(t, fmt.Sprintf("/sys/fs/cgroup/crt-hostrun-%d", os.Getpid()), "cgroup.subtree_control")
		if err := os.WriteFile(base+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0); err != nil {
			t.Skipf("SKIP: v2 limits nothing here: %v", err)
		}
		haveGroups(t, []string{give(t, base+"/shell", "cgroup.subtree_control")}, []string{base}, "cgroup.procs")
	})
}

// give gives a group to the ordinary user. file is one that only groups of the layout have.
func give(t *testing.T, dir, file string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("SKIP: control groups are of another layout: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	for _, f := range []string{"", "/cgroup.procs", "/" + file} {
		if err := os.Chown(dir+f, ordinary, -1); err != nil {
			t.Skipf("SKIP: control groups are of another layout: %v", err)
		}
	}
	return dir
}

// haveGroups has the ordinary user run steps from within some groups, and sees that they have groups of their own below others.
func haveGroups(t *testing.T, in, below []string, file string) {
	t.Helper()
	u := newUser(t, "ordinary", ordinary)
	for p, script := range map[hostrun.Profile]string{hostrun.ReadOnly: fills, hostrun.None: "head -c 400M /dev/zero | tail -c 400M | wc -c"} {
		c := u.caller(t, hostrun.Command{
			Argv: []string{"bash", "-c", script}, Dir: u.in(t, "project"), Profile: p, Limits: small, Timeout: 20 * time.Second,
		})
		enter := "for d in " + strings.Join(in, " ") + "; do echo $$ > $d/" + file + "; done; exec setpriv --reuid=" + strconv.Itoa(ordinary) +
			" --regid=" + strconv.Itoa(ordinary) + " --clear-groups " + c.Path
		c.Path, c.Args, c.SysProcAttr = "/bin/sh", []string{"sh", "-c", enter}, nil
		out, err := c.Output()
		var a answer
		if err := errors.Join(err, json.Unmarshal(out, &a)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(a.Error, "MiB of memory together, and may take 256 with files in memory") {
			t.Errorf("%s: %s, %s%s", p, a.Error, a.Result.Stdout.Text(), a.Result.Stderr.Text())
		}
		for _, c := range a.Result.Controls {
			if slices.Contains([]string{"memory", "process-count", "processor"}, c.ID) &&
				(c.State != workspace.Verified || !strings.Contains(c.Evidence, "of its own control group")) {
				t.Errorf("%s: %s is %s: %s", p, c.ID, c.State, c.Evidence)
			}
		}
		for _, dir := range below {
			if left, err := filepath.Glob(dir + "/carrel-step-*"); err != nil || left != nil {
				t.Errorf("%s: %v are left, %v", p, left, err)
			}
		}
	}
}

// The report says of each bound that it is verified where a profile holds a command, and no more than it is elsewhere.
func TestBoundsAreReported(t *testing.T) {
	each(t, append([]hostrun.Profile{hostrun.None}, heldProfiles...), func(t *testing.T, u *user, p hostrun.Profile) {
		a := u.run(t, hostrun.Command{Argv: []string{"true"}, Dir: u.in(t, "project"), Profile: p})
		for _, c := range a.Result.Controls {
			want := workspace.Verified
			switch {
			case grouped(t, u) && (c.ID == "memory" || c.ID == "process-count" || c.ID == "processor"):
				if !strings.Contains(c.Evidence, "of its own control group") {
					t.Errorf("%s is not of a control group: %s", c.ID, c.Evidence)
				}
			case c.ID == "network" && (p == hostrun.None || p == hostrun.WorkspaceWrite), c.ID == "processor" && p == hostrun.None:
				want = workspace.Off
			case (c.ID == "memory" || c.ID == "process-count") && p == hostrun.None:
				want = workspace.Applied
			case c.ID != "network" && c.ID != "memory" && c.ID != "process-count" && c.ID != "processor":
				continue
			}
			if c.State != want || c.Evidence == "" {
				t.Errorf("%s is %s, not %s: %s", c.ID, c.State, want, c.Evidence)
			}
		}
	})
}

// Bounds that cannot be meant are refused before anything runs, and none is none.
func TestBoundsAreChecked(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		for _, l := range []hostrun.Limits{{Memory: 1}, {Memory: -2}, {Processes: 1}, {Processes: -2}, {Processes: hostrun.MaxProcesses + 1}} {
			if a := u.run(t, hostrun.Command{Argv: []string{"true"}, Profile: hostrun.ReadOnly, Limits: l}); a.Kind != "invalid_argument" {
				t.Errorf("%+v: %s, %s", l, a.Kind, a.Error)
			}
		}
		none := hostrun.Limits{Memory: hostrun.NoBound, Processes: hostrun.NoBound}
		a := u.run(t, hostrun.Command{Argv: []string{"bash", "-c", "ulimit -d"}, Profile: hostrun.SystemInspect, Limits: none})
		if a.Error != "" || strings.TrimSpace(a.Result.Stdout.Text()) != "unlimited" {
			t.Errorf("%s, %s", a.Error, a.Result.Stdout.Text())
		}
	})
}
