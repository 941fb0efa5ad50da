package root_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
	// How slow this host is now: others may use its processors.
	var pace time.Duration
	for range 3 {
		began := time.Now()
		h.carrel(t, "exec", other.Key, "--", "/bin/true")
		pace = max(pace, time.Since(began))
	}
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
		if took := time.Since(began); r.code != 0 || took > most+5*pace {
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

// meddler looks for the archiver, tries to open what it has open, and to signal, trace and slow it. It
// sees that it is there by EPERM, and tells it from the executor's threads by the group that it leads.
const meddler = `
use Errno; use POSIX (); $| = 1;
open(my $log, ">", "/tmp/tried") or die; select((select($log), $| = 1)[0]);
sub tried { my ($what, $done) = @_; print $log "$what ", ($done ? "OPENED" : "denied"), "\n"; }
sub there { my ($pid) = @_; return 1 if kill(0, $pid); return $!{EPERM}; }
system("touch", "/tmp/ready");
my %known; $known{$_}++ for grep { there($_) } 1 .. 65536;
my @numbers = (NUMBERS);
my ($tgkill, $sigqueue, $pidfd, $pidfdsignal, $ptrace, $prlimit, $affinity) = @numbers;
while (1) {
	for my $pid (2 .. 4000) {
		next if $pid == $$ || $known{$pid} || !there($pid) || getpgrp($pid) != $pid;
		my $dir = "/proc/$pid"; my $line = "";
		if (open(my $c, "<", "$dir/cmdline")) { $line = <$c> // ""; close($c); }
		next if $line ne "" && $line !~ /^carrel-archive/; # a command
		select(undef, undef, undef, 0.05); next if !there($pid);
		for my $what ("fd/1", "fd/2", "mem", "exe", "environ") {
			tried($what, open(my $f, "<", "$dir/$what"));
		}
		tried("fd/1 for writing", open(my $f, ">", "$dir/fd/1"));
		my ($killed, $told, $queued) = (0, 0, 0);
		for my $sig (0 .. 64) {
			$killed++ if kill($sig, $pid);
			$told++ if syscall($tgkill, $pid, $pid, $sig) == 0;
			my $info = pack("lll x116", $sig, 0, -1);
			$queued++ if syscall($sigqueue, $pid, $sig, $info) == 0;
		}
		tried("kill", $killed); tried("tgkill", $told); tried("sigqueue", $queued);
		my $fd = syscall($pidfd, $pid, 0); # names it, and gives no right
		tried("signal by pidfd", $fd >= 0 && syscall($pidfdsignal, $fd, 19, 0, 0) == 0);
		tried("ptrace", syscall($ptrace, 0x4206, $pid, 0, 0) == 0);
		my $limits = "\0" x 16;
		tried("prlimit", syscall($prlimit, $pid, 7, 0, $limits) == 0);
		my $mask = pack("Q", 1);
		tried("affinity", syscall($affinity, $pid, 8, $mask) == 0);
		tried("nice", setpriority(0, $pid, 19));
		print $log "end\n"; sleep(1000);
	}
}`

// meddling is how many ways meddler tries.
const meddling = 14

// hunter stops and ends all that it may, from the moment at which it is born.
const hunter = `
system("touch", "/tmp/stops");
$SIG{$_} = "IGNORE" for qw(HUP INT TERM USR1 USR2);
my $end = time + 120; while (time < $end) { kill("STOP", -1); kill("KILL", -1); }`

// A command can neither signal, trace nor slow the archiver, nor open what it has open. An administrator
// who stops it holds up nobody else: stop ends the archive, and what was written of it goes.
func TestArchiverIsOutOfReach(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "head -c 300M /dev/urandom > ballast")
	numbers := fmt.Sprint(unix.SYS_TGKILL, ", ", unix.SYS_RT_SIGQUEUEINFO, ", ", unix.SYS_PIDFD_OPEN, ", ", unix.SYS_PIDFD_SEND_SIGNAL, ", ",
		unix.SYS_PTRACE, ", ", unix.SYS_PRLIMIT64, ", ", unix.SYS_SCHED_SETAFFINITY)
	d.detach(t, "/usr/bin/perl", "-e", strings.Replace(meddler, "NUMBERS", numbers, 1))
	d.sh(t, "while [ ! -e /tmp/ready ]; do sleep 0.01; done")
	tried, archived := "", make(chan result, 1)
	go func() { archived <- h.try(nil, "", "archive", "create", "--live", d.Key) }()
	archiver := d.archiver(t, "pack")
	uids := fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%d\n", d.ExecutorUID, d.UID)
	harmless := []string{
		uids, strings.Replace(uids, "Uid", "Gid", 1), "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000",
		"CapInh:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	}
	missing, status := "", ""
	t.Cleanup(func() {
		if missing != "" {
			t.Logf("the archiver has no %q:\n%s", missing, status)
		}
	})
	until(t, "the archiver that has its ids and gave up its capabilities", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", archiver))
		if err != nil {
			return false
		}
		status, missing = string(b), ""
		for _, want := range harmless {
			if !strings.Contains(status, want) {
				missing = want
			}
		}
		return missing == ""
	})
	if err := unix.Kill(archiver, unix.SIGSTOP); err != nil { // so that it does not end before it was met
		t.Fatal(err)
	}
	tmp := filepath.Join("/proc", strconv.Itoa(d.ExecutorPID), "root/tmp/tried")
	until(t, "the archiver was met", func() bool {
		b, err := os.ReadFile(tmp) // from outside: the meddler would take a command for it
		tried = string(b)
		return err == nil && strings.HasSuffix(tried, "end\n")
	})
	if strings.Count(tried, "denied") != meddling || strings.Contains(tried, "OPENED") {
		t.Errorf("a command reached the archiver:\n%s", tried)
	}
	began := time.Now()
	h.carrel(t, "stop", d.Key)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the stop took %v", took)
	}
	select {
	case r := <-archived:
		if r.code == 0 || !strings.Contains(r.err, "stop") {
			t.Errorf("the archive ended with %+v", r)
		}
	case <-time.After(10 * time.Second):
		t.Error("the archive goes on after the stop")
	}
	if out := h.carrel(t, "archive", "ls", "-o", "json"); strings.Contains(out, d.Name) {
		t.Errorf("there is an archive: %s", out)
	}
	left, err := filepath.Glob(h.data + "/daemon/archives/*")
	if err != nil || len(left) != 0 {
		t.Errorf("%v, left behind: %v", err, left)
	}
}

// An archiver is out of reach from its birth on, and counts for its workspace's limits.
func TestArchiverIsBornOutOfReach(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "head -c 20M /dev/urandom > ballast")
	for range 2 {
		d.detach(t, "/usr/bin/perl", "-e", hunter) // of two, one may stop the other
	}
	tmp := filepath.Join("/proc", strconv.Itoa(d.ExecutorPID), "root/tmp/stops")
	until(t, "the hunter runs", func() bool { _, err := os.Stat(tmp); return err == nil })
	for i := range 12 {
		if r := h.try(nil, "", "archive", "create", "--live", d.Key); r.code != 0 {
			t.Fatalf("archive %d: %+v", i, r)
		}
	}
	h.carrel(t, "stop", d.Key)
	d.sh(t, "head -c 200M /dev/urandom >> ballast")
	done := make(chan result, 1)
	go func() { done <- h.try(nil, "", "archive", "create", "--live", d.Key) }()
	pid := strconv.Itoa(h.look(t, d.Key).archiver(t, "pack"))
	groups, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		if strings.Contains(line, d.Name) && !strings.Contains(line, "/"+d.Name+"/cmd") {
			t.Errorf("it counts elsewhere: %s", line)
		}
	}
	if n := strings.Count(string(groups), "/"+d.Name+"/cmd"); n == 0 {
		t.Errorf("it counts nowhere:\n%s", groups)
	}
	if r := <-done; r.code != 0 {
		t.Errorf("%+v", r)
	}
}

// archiver waits for the workspace's archiver, which carries out verb, and returns its pid.
func (d *desk) archiver(t *testing.T, verb string) (found int) {
	t.Helper()
	until(t, "the archiver is there", func() bool {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.ExecutorPID))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range all {
			b, _ := os.ReadFile(file) // a thread may be gone
			for word := range strings.FieldsSeq(string(b)) {
				line, _ := os.ReadFile("/proc/" + word + "/cmdline")
				if strings.HasPrefix(string(line), "carrel-archive\x00"+verb) {
					found, err = strconv.Atoi(word)
					return err == nil
				}
			}
		}
		return false
	})
	return found
}

// An executor that answers nothing for a minute on a host that has time for it is ended: its commands end with
// its error, the record says what was seen, and the workspace serves again.
func TestSilentExecutorIsHalted(t *testing.T) {
	t.Parallel() // it is a minute of waiting
	h := newHostFor(t)
	d := h.desk(t)
	d.detach(t, "/bin/sleep", "600")
	mark := h.mark(t)
	if err := unix.Kill(d.ExecutorPID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(d.ExecutorPID, unix.SIGCONT) })
	waiting := make(chan result, 1)
	go func() { waiting <- h.try(nil, "", "exec", d.Key, "--", "/bin/true") }() // which makes the daemon notice
	stopped := func() bool { return h.look(t, d.Key).State == "stopped" }
	for end := time.Now().Add(5 * time.Minute); !stopped(); { // a minute in which the host has no time for it does not count
		if time.Now().After(end) {
			t.Fatalf("it is not ended: %s", h.carrel(t, "inspect", d.Key))
		}
		<-time.After(time.Second)
	}
	if r := <-waiting; r.code == 0 {
		t.Errorf("a request while it was silent: %+v", r)
	}
	h.settled(t)
	said := ""
	for _, r := range h.since(t, mark) {
		said += r.raw + "\n"
	}
	if !strings.Contains(said, "has answered nothing since") {
		t.Errorf("the record does not say why:\n%s", said)
	}
	if out := d.sh(t, "echo well"); out != "well" {
		t.Errorf("started again it says %q", out)
	}
}
