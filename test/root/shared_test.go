package root_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hostNumber reads a number of the host's below /proc/sys.
func hostNumber(t testing.TB, name string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// hoard has the workspace run a Perl script that takes what it can, prints how many that are, and
// holds them until the test ends.
func (d *desk) hoard(t testing.TB, script string) int {
	t.Helper()
	id := d.detach(t, "/usr/bin/perl", "-e", script+`; open(my $f, ">", "hoard.new") or die; print $f $n; close $f; rename("hoard.new", "hoard"); sleep 600`)
	t.Cleanup(func() { d.h.try(nil, "", "kill", "--signal", "KILL", d.Key, id) })
	n, err := strconv.Atoi(d.sh(t, "while [ ! -e hoard ]; do sleep 0.01; done; cat hoard"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// One workspace takes every terminal that it can get; others and the host still get theirs.
func TestTerminalsAreLeftForOthers(t *testing.T) {
	a, b := shared.desk(t), shared.desk(t)
	before := hostNumber(t, "kernel/pty/nr")
	n := a.hoard(t, `my (@k, $n); $n = 0; while (open(my $f, "+<", "/dev/ptmx")) { push @k, $f; $n++ }`)
	if n < 16 { // a build and some shells
		t.Errorf("a workspace gets %d terminals, too few for its own use", n)
	}
	if now := hostNumber(t, "kernel/pty/nr"); n > 64 || now-before > 64+16 {
		t.Errorf("a workspace takes %d terminals; the host had %d in use, now %d of %d", n, before, now, hostNumber(t, "kernel/pty/max"))
	}
	if r := shared.try(nil, "", "exec", "-t", b.Key, "--", "/usr/bin/tty"); r.code != 0 || !strings.Contains(r.out, "/dev/pts/") {
		t.Errorf("a terminal in another workspace: %+v", r)
	}
	a.well(t)
}

// All workspaces together leave process numbers to the host, and the report of each says so.
func TestProcessNumbersAreLeftForTheHost(t *testing.T) {
	d := shared.desk(t)
	report := shared.carrel(t, "inspect", "-o", "json", d.Key)
	_, rest, found := strings.Cut(report, "all workspaces pids.max is ")
	n := 0
	if _, err := fmt.Sscan(rest, &n); !found || err != nil || n < 1 || n > hostNumber(t, "kernel/pid_max")*3/4 {
		t.Errorf("the ceiling of all workspaces is %d, of %d: %s", n, hostNumber(t, "kernel/pid_max"), report)
	}
}

// inotifyInstances has a Perl script make inotify instances until the kernel refuses.
const inotifyInstances = `my (@k, $n); $n = 0; while ((my $f = syscall(INOTIFY, 0)) >= 0) { push @k, $f; $n++; last if $n > 8000 }`

// pendingSignals has one queue signals that it blocks, which are counted until they are taken.
const pendingSignals = `use POSIX qw(:signal_h); my $set = POSIX::SigSet->new(SIGRTMIN); sigprocmask(SIG_BLOCK, $set);
	my $n = 0; my $info = pack("iiiiii", SIGRTMIN, 0, -1, 0, $$, $>) . "\0" x 104;
	while (syscall(SIGQUEUE, $$, SIGRTMIN, $info) == 0) { $n++; last if $n > 200000 }`

// inotifyWatches has one watch as many files as the kernel lets it.
const inotifyWatches = `my $i = syscall(INOTIFY, 0); my $n = 0; open(my $all, "-|", "find", "/usr", "-xdev");
	while (my $path = <$all>) { chomp $path; syscall(WATCH, $i, $path, 2) >= 0 or last; $n++ }`

// messageQueues has one make POSIX queues of the usual size; the system call takes names without the slash.
const messageQueues = `my $n = 0; while ((my $q = syscall(QUEUE, "q$$-$n", 66, 384, 0)) >= 0) { $n++; last if $n > 1000 }`

// asynchronousInput has one ask for rings of 1,024 events, which the host has a sum for.
const asynchronousInput = `my (@k, $n); $n = 0; while (syscall(SETUP, 1024, my $c = pack("q", 0)) == 0) { push @k, $c; last if ++$n > 64 }`

// What the kernel counts by user is added up for the user who made the namespace, which must not be
// the host's root.
func TestCountsEndAtTheWorkspace(t *testing.T) {
	numbers := strings.NewReplacer("INOTIFY", strconv.Itoa(unix.SYS_INOTIFY_INIT1), "SIGQUEUE", strconv.Itoa(unix.SYS_RT_SIGQUEUEINFO),
		"WATCH", strconv.Itoa(unix.SYS_INOTIFY_ADD_WATCH), "QUEUE", strconv.Itoa(unix.SYS_MQ_OPEN), "SETUP", strconv.Itoa(unix.SYS_IO_SETUP))
	for _, tt := range []struct {
		what, script string
		least, most  int
		// left is how many root of the host still gets.
		left func(t *testing.T) int
	}{
		{"inotify instances", inotifyInstances, 32, hostNumber(t, "fs/inotify/max_user_instances"), rootsInotify},
		{"pending signals", pendingSignals, 128, 1024, nil},
		{"inotify watches", inotifyWatches, 8192, 1 << 16, nil},
		{"message queues", messageQueues, 1, 16, rootsQueues},
		{"asynchronous input", asynchronousInput, 0, 0, rootsRings},
	} {
		t.Run(tt.what, func(t *testing.T) {
			a, b := shared.desk(t), shared.desk(t)
			script := numbers.Replace(tt.script)
			before, atFirst := rootsPending(t), 0
			if tt.left != nil {
				atFirst = min(tt.left(t), 32)
			}
			n := a.hoard(t, script)
			if n < tt.least || n > tt.most {
				t.Errorf("one workspace gets %d, want %d to %d", n, tt.least, tt.most)
			}
			if other := b.hoard(t, script); other < tt.least {
				t.Errorf("another workspace gets %d while one holds %d", other, n)
			}
			if tt.left != nil {
				if free := tt.left(t); free < atFirst {
					t.Errorf("root of the host gets %d while workspaces hold %d each, and %d before", free, n, atFirst)
				}
			}
			if now := rootsPending(t); now-before > 64 {
				t.Errorf("%d signals are pending for root of the host, before %d", now, before)
			}
			b.well(t)
		})
	}
}

// rootsInotify is how many inotify instances root still gets, up to 64.
func rootsInotify(t *testing.T) (n int) {
	t.Helper()
	for ; n < 64; n++ {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break
		}
		defer unix.Close(fd)
	}
	return n
}

// rootsQueues is how many POSIX queues of the usual size root gets, up to 64.
func rootsQueues(t *testing.T) (n int) {
	t.Helper()
	for ; n < 64; n++ {
		name, err := unix.BytePtrFromString(fmt.Sprintf("carrel-test-%d-%d", os.Getpid(), n))
		if err != nil {
			t.Fatal(err)
		}
		at := uintptr(unsafe.Pointer(name))
		fd, _, no := unix.Syscall6(unix.SYS_MQ_OPEN, at, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600, 0, 0, 0)
		if no != 0 {
			break
		}
		defer func() {
			_ = unix.Close(int(fd))
			_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
		}()
	}
	return n
}

// rootsRings is how many rings of 1,024 events for asynchronous input root gets, up to 16.
func rootsRings(t *testing.T) (n int) {
	t.Helper()
	for ; n < 16; n++ {
		var ring uintptr
		if _, _, no := unix.Syscall(unix.SYS_IO_SETUP, 1024, uintptr(unsafe.Pointer(&ring)), 0); no != 0 {
			break
		}
		defer func() { _, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, ring, 0, 0) }()
	}
	return n
}

// rootsPending is how many signals are pending for this process's user, root.
func rootsPending(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "SigQ:\t") // SigQ: 0/96365 (proc_pid_status(5))
	n, err := strconv.Atoi(rest[:max(strings.IndexByte(rest, '/'), 0)])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// When the host's memory is full, the kernel ends commands first, then executors, then what else the
// host runs, and the broker and the daemon last. A command cannot put itself behind its executor.
func TestCommandsEndFirstInALackOfMemory(t *testing.T) {
	d := shared.desk(t)
	score := func(pid int) int {
		t.Helper()
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	host := score(os.Getpid())
	first := d.sh(t, `for v in 600 500 400 399 0 -500; do echo $v 2>/dev/null > /proc/self/oom_score_adj; done; echo -500 > /proc/$$/oom_score_adj
		echo $(cat /proc/self/oom_score_adj) $(bash -c 'cat /proc/self/oom_score_adj')`)
	again := d.sh(t, "cat /proc/self/oom_score_adj; (cat /proc/self/oom_score_adj)")
	executor, broker, daemon := score(d.ExecutorPID), score(shared.part(t, "broker")), score(shared.part(t, "daemon"))
	t.Logf("the host has %d, an executor %d, the broker %d, the daemon %d; a command can have %q, and has %q", host, executor, broker, daemon,
		first, again)
	if again != "500\n500" || executor != 400 {
		t.Errorf("commands have %q, the executor %d", again, executor)
	}
	d.well(t)
	if !mayLowerScores(t) {
		if report := shared.carrel(t, "inspect", "-o", "json", d.Key); !strings.Contains(report, "run the broker with CAP_SYS_RESOURCE") {
			t.Errorf("the report does not say that the broker has no right to an order: %s", report)
		}
		t.Skip("the rest is skipped: root has no CAP_SYS_RESOURCE here")
	}
	for what := range strings.FieldsSeq(first) {
		if n, err := strconv.Atoi(what); err != nil || n < executor || n <= host {
			t.Errorf("a command gives itself %s, where its executor has %d and the host's processes %d", what, executor, host)
		}
	}
	if broker != -900 || daemon != -900 {
		t.Errorf("the broker has %d, the daemon %d", broker, daemon)
	}
}

func mayLowerScores(t *testing.T) bool {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// What sockets hold is bounded too where the kernel counts it apart from other memory.
func TestSocketsAreCounted(t *testing.T) {
	d := shared.desk(t)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", d.ExecutorPID))
	if err != nil {
		t.Fatal(err)
	}
	group := ""
	for line := range strings.Lines(string(b)) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), ":memory:"); ok {
			group = filepath.Join("/sys/fs/cgroup/memory", filepath.Dir(path), "cmd")
		}
	}
	number := func(name string) int64 {
		b, err := os.ReadFile(filepath.Join(group, name))
		if errors.Is(err, os.ErrNotExist) {
			t.Skipf("skipped: the memory controller of this host counts sockets with all other memory: %v", err)
		}
		n, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err := errors.Join(err, perr); err != nil {
			t.Fatal(err)
		}
		return n
	}
	limit := number("memory.kmem.tcp.limit_in_bytes")
	n := d.hoard(t, `use Socket; use Fcntl; my (@k, $n); $n = 0; my $full = 0; my $b = "x" x 65536;
		socket(my $l, PF_INET, SOCK_STREAM, 0) or die; bind($l, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die; listen($l, 128) or die;
		my $to = getsockname($l);
		for (1..400) {
			socket(my $s, PF_INET, SOCK_STREAM, 0) or last; setsockopt($s, SOL_SOCKET, SO_SNDBUF, 4194304);
			connect($s, $to) or last; accept(my $a, $l) or last; push @k, $s, $a;
			fcntl($s, F_SETFL, O_NONBLOCK);
			while (my $w = syswrite($s, $b)) { $n += $w }
		}
		$n = int($n / 1048576)`)
	used := number("memory.kmem.tcp.max_usage_in_bytes")
	t.Logf("%d MiB were sent and are not read; the kernel counted at most %d MiB of %d", n, used>>20, limit>>20)
	// A socket may always have a little, whatever is counted.
	if limit > 1<<40 || used > limit+limit/2 || used < limit/2 {
		t.Errorf("the sockets of a workspace hold %d bytes, of %d", used, limit)
	}
	d.well(t)
}
