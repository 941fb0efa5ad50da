package rootless_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Ten command lines at once start one daemon, which their end does not end.
func TestOwnStartedOnce(t *testing.T) {
	u := newOwner(t)
	results := make(chan result, 10)
	for i := range 10 {
		go func() { results <- u.carrel("create", "k"+strconv.Itoa(i)) }()
	}
	for range 10 {
		if r := <-results; r.code != 0 {
			t.Errorf("%+v", r)
		}
	}
	if got := strings.Count(u.must("ls"), "\n"); got != 10 {
		t.Errorf("%d workspaces", got)
	}
	if got := strings.Count(u.log(), "msg=serving"); got != 1 {
		t.Errorf("%d daemons served:\n%s", got, u.log())
	}
	pid := u.daemon()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if f := strings.Fields(string(b)); err != nil || len(f) < 6 || f[5] != strconv.Itoa(pid) {
		t.Errorf("the daemon leads no session of its own: %s, %v", b, err)
	}
}

// An unused daemon ends. A client that connects at that moment reaches it or the next one.
func TestOwnIdle(t *testing.T) {
	u := newOwner(t)
	u.configure("idle_exit: 300ms\nidle_timeout: 1s\n")
	u.must("create", "demo")
	pid := u.daemon()
	if pid == 0 {
		t.Fatal("no daemon")
	}
	gone(t, pid) // the workspace is stopped first, with nothing in it
	if left := u.processes(); os.Geteuid() == 0 && len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	server := u.must("exec", "--detach", "demo", "--", "sleep", "600")
	pid = u.daemon()
	if got := u.must("ps", "demo"); !strings.Contains(got, server) {
		t.Errorf("%s", got)
	}
	// A command keeps it, idle as it looks; its end lets it go.
	u.must("kill", "demo", server)
	u.must("stop", "demo")
	gone(t, pid)
	// In step with its end.
	for range 15 {
		if u.must("ls", "-q") == "" {
			t.Error("no workspace")
		}
		if pid := u.daemon(); pid != 0 {
			gone(t, pid)
		}
	}
	// One whose state was removed under it is found by nobody, and ends.
	u.must("ls")
	pid = u.daemon()
	if err := os.Rename(filepath.Join(u.home, ".local"), filepath.Join(u.home, ".gone")); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	if err := os.Rename(filepath.Join(u.home, ".gone"), filepath.Join(u.home, ".local")); err != nil {
		t.Fatal(err)
	}
	starts := strings.Count(u.log(), "msg=serving")
	if starts < 10 {
		t.Errorf("%d starts", starts)
	}
	// The one whose state was gone says so, of its lock and of its record, and no other says anything.
	log := u.log()
	for _, text := range []string{"ending without the lock against clients", "cannot sign the end of the audit log"} {
		if strings.Count(log, `level=ERROR msg="`+text) != 1 {
			t.Errorf("not once: %s", text)
		}
	}
	if got := strings.Count(log, "level=ERROR"); got != 2 {
		t.Errorf("%d errors, where those two say it:\n%s", got, log)
	}
}

// A daemon that is killed takes what ran with it; the next command starts another, which
// says what was lost.
func TestOwnKilled(t *testing.T) { eachOwner(t, ownKilled) }

func ownKilled(t *testing.T, u *user) {
	u.must("create", "demo")
	u.must("exec", "demo", "--", "sh", "-c", "echo kept > f")
	c := u.own("exec", "demo", "--", "sh", "-c", "(setsid sleep 600 &) ; echo here; sleep 600")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	var all []int
	if os.Geteuid() == 0 {
		for _, pid := range u.processes() {
			if pid != c.Process.Pid {
				all = append(all, pid)
			}
		}
		if u.first != 0 {
			all = append(all, (&user{t: t, id: first}).processes()...)
		}
		if len(all) < 4 {
			t.Errorf("processes %v", all)
		}
	}
	u.killDaemon()
	gone(t, all...)
	if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != 125 {
		t.Errorf("exec: %v: %s", err, stderr.String())
	}
	if got := u.must("ls"); !strings.Contains(got, "stopped") {
		t.Errorf("%s", got)
	}
	if got := u.must("exec", "demo", "--", "cat", "f"); got != "kept" {
		t.Errorf("%q", got)
	}
	until(t, "the record to say what broke off", func() bool {
		return strings.Contains(u.must("audit", "show", "--last", "100"), "interrupted")
	})
}
