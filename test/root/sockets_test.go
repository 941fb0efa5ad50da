package root_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostMemory reads a field of /proc/meminfo, in bytes.
func hostMemory(t testing.TB, name string) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), name+":")
	kib := int64(0)
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatalf("cannot find %s: %v", name, err)
	}
	return kib << 10
}

// Perl scripts that take sockets whose kernel memory no control group counts, and fill each. They stop at
// 600 and 4,000 sockets, which are less than 1 GiB.
const (
	// Each asks for the loopback interface until its queue is full, and reads no answer.
	netlinkSockets = `use Socket; use Fcntl; my (@k, $n); $n = 0; my $ask = pack("LSSLLCCSiLL", 32, 18, 1, 1, 0, 0, 0, 0, 1, 0, 0);
		while ($n < 600 && socket(my $s, 16, 3, 0)) {
			push @k, $s; $n++; setsockopt($s, SOL_SOCKET, SO_RCVBUF, pack("i", 1 << 30)); fcntl($s, F_SETFL, O_NONBLOCK);
			for (1..600) { defined(send($s, $ask, 0, pack("SSLL", 16, 0, 0, 0))) or last }
		}`
	// Each holds a datagram that it never ends. A process has 4,096 files.
	corkedSockets = `use Socket; my (@k, $n); $n = 0; my $part = "x" x 60000;
		while ($n < 4000 && socket(my $s, PF_INET, SOCK_DGRAM, 0)) {
			push @k, $s; $n++; send($s, $part, 0x8000, pack_sockaddr_in(9, INADDR_LOOPBACK));
		}`
)

// together has eight processes run a script at once, and adds up what they get.
func together(script string) string {
	return `my (@k, $n); pipe(my $r, my $w); for (1..8) { if (!fork) { ` + script + ` syswrite($w, "$n\n"); sleep 600 } } $n = 0; for (1..8) { $n += <$r> }`
}

// One command takes sockets, of which no group counts what they hold, and gets as many as programs need
// and no more.
func TestUncountedSocketsAreFew(t *testing.T) {
	for _, tt := range []struct {
		what, script string
		least, most  int
	}{
		{"netlink", netlinkSockets, 16, 64},
		{"netlink, eight processes", together(netlinkSockets), 16, 64},
		{"corked UDP", corkedSockets, 256, 512},
		// The kernel goes on with what was counted before it is counted.
		{"corked UDP, eight processes", together(corkedSockets), 256, 512 + 8},
	} {
		t.Run(tt.what, func(t *testing.T) {
			a, b := shared.desk(t), shared.desk(t)
			slab, free := hostMemory(t, "SUnreclaim"), hostMemory(t, "MemAvailable")
			n := a.hoard(t, tt.script)
			t.Logf("one command gets %d sockets; the host's unreclaimable slab grew by %d MiB, its available memory shrank by %d MiB; %s", n,
				(hostMemory(t, "SUnreclaim")-slab)>>20, (free-hostMemory(t, "MemAvailable"))>>20, memoryOf(t, a))
			if n < tt.least || n > tt.most {
				t.Errorf("a command gets %d sockets, want %d to %d", n, tt.least, tt.most)
			}
			if other := b.hoard(t, tt.script); other < tt.least {
				t.Errorf("another workspace gets %d while one has %d", other, n)
			}
			a.well(t)
		})
	}
}

// memoryOf is what a workspace's commands are charged for.
func memoryOf(t testing.TB, d *desk) string {
	t.Helper()
	var usage []struct {
		MemoryBytes int64 `json:"memory_bytes"`
	}
	text := shared.carrel(t, "top", "--once", "-o", "json", d.Key)
	if err := json.Unmarshal([]byte(text), &usage); err != nil || len(usage) != 1 {
		t.Errorf("%s: %v", text, err)
		return ""
	}
	return fmt.Sprintf("its group is charged %d MiB", usage[0].MemoryBytes>>20)
}

// A netlink socket is made by the executor, and is what a command would have made itself.
func TestNetlinkSocketsWork(t *testing.T) {
	d := shared.desk(t)
	out := d.sh(t, strings.NewReplacer("SOCKET", strconv.Itoa(unix.SYS_SOCKET), "FCNTL", strconv.Itoa(unix.SYS_FCNTL)).Replace(`exec 2>&1; ulimit -n 16; /usr/bin/perl -e 'use Fcntl; my $ask = pack("LSSLLCCSiLL", 32, 18, 1, 1, 0, 0, 0, 0, 1, 0, 0);
		my $fd = syscall(SOCKET, 16, 3 | 02000000, 0); print "flags ", syscall(FCNTL, $fd, F_GETFD, 0), "\n"; open(my $s, "+<&=", $fd) or die $!;
		my $plain = syscall(SOCKET, 16, 3 | 04000, 0); 
		print "flags ", syscall(FCNTL, $plain, F_GETFD, 0), " ", (syscall(FCNTL, $plain, F_GETFL, 0) & 04000) != 0, "\n";
		bind($s, pack("SSLL", 16, 0, 0, 0)) or die "bind: $!"; print "port ", (unpack("SSLL", getsockname($s)))[2] == $$, "\n";
		send($s, $ask, 0, pack("SSLL", 16, 0, 0, 0)) or die "send: $!"; defined(recv($s, my $b, 8192, 0)) or die "recv: $!";
		print "answer ", (unpack("LS", $b))[1], " ", index($b, "lo\0") > 0, "\n";
		my ($n, @k) = 0; while (($fd = syscall(SOCKET, 16, 3, 0)) >= 0) { $n++; last if $n > 20 } print "then ", $!+0, "\n"'`))
	want := fmt.Sprintf("flags 1\nflags 0 1\nport 1\nanswer 16 1\nthen %d", unix.EMFILE)
	if out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	d.well(t)
}
