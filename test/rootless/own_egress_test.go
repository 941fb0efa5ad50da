//go:build linux

package rootless_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Workspaces of one user's own daemon reach what their rules name, and have their way out again when carrel-egress
// was killed.
func TestOwnEgress(t *testing.T) { eachOwner(t, ownEgress) }

func ownEgress(t *testing.T, u *user) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	s := newSite(t, u)
	u.must("create", "--allow", "127.0.0.1:"+s.plain, "k")
	get := func() string {
		r := u.carrel("exec", "k", "--", "curl", "-sS", "-m", "10", "-x", "http://127.0.0.53:3128", fmt.Sprintf("http://127.0.0.1:%s/x", s.plain))
		return r.out + r.err
	}
	if got := get(); !strings.Contains(got, "at /x") {
		t.Errorf("it says %q", got)
	}
	first := u.egressPIDs()
	if len(first) != 1 {
		t.Fatalf("there are %v", first)
	}
	if err := unix.Kill(first[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the way out", func() bool { return strings.Contains(get(), "at /x") })
	if now := u.egressPIDs(); len(now) != 1 || now[0] == first[0] {
		t.Errorf("%v became %v", first, now)
	}
	u.must("egress", "deny", "k", "127.0.0.1")
	if got := get(); !strings.Contains(got, "is not allowed") || strings.Contains(got, "at /x") {
		t.Errorf("after a change it says %q", got)
	}
	u.must("egress", "rm", "k", "--all")
	u.must("stop", "k")
	if left := u.egressPIDs(); len(left) != 0 {
		t.Errorf("after the stop there are %v", left)
	}
	u.must("exec", "k", "--", "true") // without a way out
	if left := u.egressPIDs(); len(left) != 0 {
		t.Errorf("without rules there are %v", left)
	}
	u.down(t)
	if left := u.processes(); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
}
