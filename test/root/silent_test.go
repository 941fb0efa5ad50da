package root_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stopper stops whatever its uid may signal, newborns of the executor among them.
const stopper = `$SIG{TERM} = "IGNORE"; open(my $f, ">", "ready"); while (1) { kill "STOP", -1; }`

// A command stops newborns between the change of their ids and exec. The executor goes on, or
// its workspace alone is lost.
func TestStoppedNewborns(t *testing.T) {
	h := newHostFor(t)
	hostile, other := h.desk(t), h.desk(t)
	hostile.detach(t, "/usr/bin/perl", "-e", stopper)
	stuck, answers := 0, 0
	const times = 12
	for range times {
		began := time.Now()
		hostile.h.try(nil, "", "exec", "--timeout", "1s", hostile.Key, "--", "/bin/true")
		if time.Since(began) > 5*time.Second {
			stuck++
		}
		began = time.Now()
		other.well(t)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("another workspace answered after %v", took)
		}
		if h.try(nil, "", "ps", hostile.Key).code == 0 {
			answers++
		}
	}
	t.Logf("%d of %d starts were held up for more than 5 s; the executor answered %d times beside", stuck, times, answers)
	if answers < times-1 {
		t.Errorf("the executor of the hostile workspace answered %d of %d times", answers, times)
	}
	began := time.Now()
	h.carrel(t, "stop", hostile.Key)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("its stop took %v", took)
	}
	if out := hostile.sh(t, "echo well"); out != "well" {
		t.Errorf("started again it says %q", out)
	}
}

// Executors that answer nothing hold up nobody else: not the start of the daemon, not upkeep,
// not what other tenants do. They are named, and their owners can end them.
func TestSilentExecutors(t *testing.T) {
	h := newHostFor(t)
	const silent = 6
	var frozen []*desk
	var pids []int
	for range silent {
		d := h.desk(t, "--idle-timeout", "5s")
		frozen, pids = append(frozen, d), append(pids, d.ExecutorPID)
	}
	other := h.desk(t)
	t.Cleanup(func() {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGCONT) // one that is gone is no harm: pids are not used again so soon
		}
	})
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	// A daemon that is killed comes back at once.
	kill(t, h.part(t, "daemon"))
	began := time.Now()
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the start took %v", took)
	}
	quick := func(what string, most time.Duration, args ...string) {
		t.Helper()
		began := time.Now()
		r := h.try(nil, "", args...)
		if took := time.Since(began); r.code != 0 || took > most {
			t.Errorf("%s: %+v after %v", what, r, took)
		}
	}
	quick("exec of another", time.Second, "exec", other.Key, "--", "/bin/true")
	quick("create of another", 2*time.Second, "create", "--ttl", "2s", "short")
	until(t, "the workspace of another has lived its time", func() bool { return h.try(nil, "", "inspect", "short").code != 0 })
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("expiry came after %v", took)
	}
	quick("archive of another", 10*time.Second, "archive", "create", other.Key)
	// The silent ones: an error at once that says what to do.
	d := frozen[0]
	began = time.Now()
	r := h.try(nil, "", "exec", d.Key, "--", "/bin/true")
	if took := time.Since(began); r.code == 0 || took > 4*time.Second || !strings.Contains(r.err, "carrel stop "+d.Name) {
		t.Errorf("%+v after %v", r, took)
	}
	if out := h.carrel(t, "ls"); strings.Count(out, "unresponsive") < 1 {
		t.Errorf("ls does not name them:\n%s", out)
	}
	if out := h.carrel(t, "inspect", d.Key); !strings.Contains(out, "nothing since") {
		t.Errorf("inspect does not say so:\n%s", out)
	}
	quick("stop of a silent one", 5*time.Second, "stop", d.Key)
	quick("and its next use", 5*time.Second, "exec", d.Key, "--", "/bin/true")
	quick("destroy of another silent one", 5*time.Second, "destroy", "--purge", frozen[1].Key)
	// One that goes on is served again.
	if err := unix.Kill(pids[2], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "one that goes on is served", func() bool { return h.try(nil, "", "exec", frozen[2].Key, "--", "/bin/true").code == 0 })
	fmt.Fprintln(t.Output(), h.carrel(t, "ls"))
}
