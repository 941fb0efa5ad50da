package hostrun_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/hostrun"
	"github.com/carrel-dev/carrel/internal/workspace"
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
		a := bomb(t, u, hostrun.None, 20*time.Second, "for n in $(seq 500); do sleep 30 & done; wait")
		if !strings.Contains(a.Error, "steps.processes") {
			t.Errorf("%s, %+v", a.Error, a.Result)
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

// The report says of each bound that it is verified where a profile holds a command, and no more than it is elsewhere.
func TestBoundsAreReported(t *testing.T) {
	each(t, append([]hostrun.Profile{hostrun.None}, heldProfiles...), func(t *testing.T, u *user, p hostrun.Profile) {
		a := u.run(t, hostrun.Command{Argv: []string{"true"}, Dir: u.in(t, "project"), Profile: p})
		for _, c := range a.Result.Controls {
			want := workspace.Verified
			switch {
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
