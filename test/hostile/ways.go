package main

// way is what a hostile command does. Each is bounded by the limits of its workspace, and where
// those do not bound it, by itself. System calls are by their numbers on x86-64.
type way struct {
	name, perl string
	// output is how much of its output is to be kept, in bytes; 0 is the default.
	output int64
}

var ways = []way{
	{name: "stop whatever is born", perl: `$SIG{TERM} = "IGNORE"; while (1) { kill "STOP", -1 }`},
	{name: "stop and open what works for carrel", perl: `while (1) { for (glob "/proc/[0-9]*") { my ($p) = /(\d+)/; next if $p == $$;
		kill "STOP", $p; for my $f (glob "$_/fd/*") { syswrite $h, "x" x 65536 if sysopen my $h, $f, 2049 } } }`},
	{name: "output, kept", perl: `$| = 1; for (1..20) { fork or last } print "x" x 65536 for 1..64; sleep 1`, output: 16 << 20},
	{name: "output without end", perl: `$| = 1; print "x" x 65536 while 1`},
	{name: "forks", perl: `fork while 1`},
	{name: "forks that stay", perl: `while (1) { my $p = fork;
		if (!defined $p) { select undef, undef, undef, 0.01 } elsif (!$p) { sleep 1000 } }`},
	{name: "orphans that ignore signals", perl: `use POSIX; for (1..50) { if (!fork) { setsid; $SIG{$_} = "IGNORE" for qw(TERM HUP INT);
		while (1) { sleep 1 } } }`},
	{name: "memory", perl: `while (1) { my $p = fork; if (!$p) { push @a, "x" x (1 << 20) while 1 } waitpid $p, 0 }`},
	{name: "memory in tmpfs", perl: `while (1) { for (glob("/dev/shm /run/user/*"), "/tmp") { open my $f, ">", "$_/full$$" or next;
		for (1..256) { syswrite $f, "x" x (1 << 20) or last } unlink "$_/full$$" } }`},
	{name: "disk", perl: `while (1) { open my $f, ">", "full";
		for (1..200) { syswrite $f, "x" x (1 << 20) or last } close $f; unlink "full" }`},
	{name: "writes with fsync", perl: `open my $f, ">", "synced"; while (1) { seek $f, 0, 0; for (1..16) { syswrite $f, "x" x (1 << 20) }
		syscall 74, fileno $f }`},
	{name: "many files", perl: `while (1) { for (1..20000) { open my $f, ">", "many-$_" or last } unlink glob "many-*" }`},
	{name: "a deep tree", perl: `for (1..4000) { mkdir "d"; chdir "d" or last } sleep 1000`},
	{name: "inotify", perl: `for (1..8) { fork or last } for (1..200) { push @f, syscall 294, 0 } sleep 1000`},
	{name: "timers and queued signals", perl: `for (1..8) { fork or last } my $t = "x" x 8;
		for (1..20000) { last if syscall(222, 0, 0, $t) < 0 } sleep 1000`},
	{name: "message queues", perl: `for (1..64) {
		my ($n, $a) = ("q$$-$_", pack "q8", 0, 10, 8192, 0); syscall 240, $n, 66, 384, $a } sleep 1000`},
	{name: "terminals", perl: `for (1..8) { fork or last } push @f, $f while open $f, "+<", "/dev/ptmx" and @f < 2000; sleep 1000`},
	{name: "files", perl: `for (1..50) { fork or last } push @f, $f while open $f, "<", "/dev/null"; sleep 1000`},
	{name: "sockets full of data", perl: `use Socket; while (socketpair $a, $b, AF_UNIX, SOCK_STREAM, 0) { $a->blocking(0);
		1 while syswrite $a, "x" x 65536; push @s, $a, $b; undef $a; undef $b; last if @s > 256 } sleep 1000`},
	{name: "unread netlink dumps", perl: `use Socket; for (1..64) { socket $s, 16, SOCK_RAW, 0 or last; push @s, $s;
		send $s, pack("LSSLLx16", 32, 26, 0x301, $_, 0), 0 for 1..64; undef $s } sleep 1000`},
	{name: "asynchronous writes", perl: `for (1..64) { my $c = pack "q", 0; push @c, $c if syscall(206, 1024, $c) == 0 } sleep 1000`},
	{name: "processors", perl: `for (1..16) { fork or last } 1 while 1`},
	{name: "crashes", perl: `while (1) { if (!fork) { kill "SEGV", $$; sleep 1 } wait }`},
	{name: "end the executor", perl: `$SIG{$_} = "IGNORE" for qw(TERM HUP);
		while (1) { kill $_, 1, -1 for qw(KILL STOP ABRT QUIT); syscall 101, 16, 1, 0, 0;
		my $l = pack "q2", 1, 1; syscall 302, 1, 7, $l, 0; sysopen my $m, "/proc/1/mem", 2; truncate "/proc/1/fd/1", 0 }`},
	{name: "locks and watches on the host's files", perl: `for (glob "/usr/bin/*") {
		open my $f, "<", $_ or next; flock $f, 6; push @f, $f; last if @f > 1000 } sleep 1000`},
}
