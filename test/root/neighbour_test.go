package root_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hostPID is the pid on the host of a workspace's process by its name.
func (d *desk) hostPID(t testing.TB, comm string) int {
	t.Helper()
	var pid int
	until(t, comm, func() bool {
		out, err := exec.CommandContext(t.Context(), "pgrep", "-u", strconv.Itoa(int(d.UID)), "-x", comm).Output()
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.Fields(string(out))[0])
		return err == nil
	})
	return pid
}

// One workspace against another: its files, processes and sockets.
func TestNeighboursAreOutOfReach(t *testing.T) {
	a, b := shared.desk(t), shared.desk(t)
	a.sh(t, "echo secret-of-a > file; chmod 644 file; chmod 755 . 2>/dev/null; echo secret-of-a > /tmp/file; chmod 666 /tmp/file; echo "+
		"secret-of-a > /dev/shm/file; echo secret-of-a > /var/tmp/file; mkdir -p /run/user/$(id -u)/x 2>/dev/null; exit 0")
	service := a.detach(t, "/usr/bin/perl", "-e", `use Socket; my @k;
		sub tcp { socket(my $s, PF_INET, SOCK_STREAM, 0) or die; bind($s, pack_sockaddr_in($_[0], $_[1])) or die "bind: $!"; listen($s, 9); push @k, $s }
		sub unx { socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; bind($s, pack_sockaddr_un($_[0])) or die "unix: $!"; listen($s, 9); push @k, $s }
		tcp(8000, INADDR_LOOPBACK); tcp(8001, INADDR_ANY); unx("\0crt-service"); unx("/tmp/crt-service"); unx("$ENV{HOME}/crt-service"); chmod 0777, "/tmp/crt-service", "$ENV{HOME}/crt-service";
		system("touch", "ready"); $0 = "crtservice"; sleep 1000`)
	a.sh(t, "while [ ! -e ready ]; do sleep 0.01; done")
	pid := a.hostPID(t, "crtservice")
	script := fmt.Sprintf(`try() { if ( eval "$2" ) >/dev/null 2>&1; then echo "REACHED $1 ok"; else echo "denied $1 refused"; fi; }
		try "read the home" "cat %[1]s/file"
		try "list the home" "ls %[1]s"
		try "list all homes" "test $(ls /home | wc -l) -gt 1"
		try "read the home by its name inside" "cat %[2]s/file"
		try "read /tmp" "cat /tmp/file"
		try "read /var/tmp" "cat /var/tmp/file"
		try "read /dev/shm" "cat /dev/shm/file"
		try "read through /proc/PID/root" "cat /proc/%[3]d/root/etc/passwd"
		try "read through /proc/PID/cwd" "cat /proc/%[3]d/cwd/file"
		try "see the process" "test -d /proc/%[3]d"
		try "see a process of its uid" "ps -e -o uid= | grep -w %[4]d"
		try "signal" "kill -0 %[3]d"
		try "kill" "kill -9 %[3]d"
		try "kill its group" "kill -9 -- -%[3]d"
		try "connect to loopback" ": </dev/tcp/127.0.0.1/8000"
		try "connect to any" ": </dev/tcp/127.0.0.1/8001"
		try "connect to ::1" ": </dev/tcp/::1/8001"
		try "connect to its abstract socket" \
			"perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(qq(\0crt-service))) or exit 1'"
		try "connect to its socket in /tmp" \
			"perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(q(/tmp/crt-service))) or exit 1'"
		try "connect to its socket in the home" \
			"perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(q(%[1]s/crt-service))) or exit 1'"
		try "see its sockets" "grep -q crt-service /proc/net/unix"
		try "system v shared memory" "ipcs -m | grep -q 0x00c41"
		ln -sfn %[1]s l1; try "symlink to the home" "cat l1/file"
		ln -sfn ../../%[5]s l2; try "relative symlink" "cat l2/file"
		ln -sfn /proc/1/root l3; try "symlink through /proc/1/root" "ls l3/"
		try "hard link to the host" "ln /etc/passwd hard"
		try "hard link to another mount" "ln /usr/bin/id hard"
		try "hard link to the neighbour" "ln %[1]s/file hard"
		mkdir -p x; try "rename out of the home" "mv x %[1]s/x"
		echo end`, a.Home, a.Inside, pid, a.UID, filepath.Base(a.Home))
	r := b.try("/bin/bash", "-c", script)
	if !strings.Contains(r.out, "end\n") {
		t.Fatalf("%+v", r)
	}
	judge(t, 29, nil, r.out)
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("the neighbour's process is gone: %v", err)
	}
	// What the neighbour may do itself.
	for what, try := range map[string]string{
		"file":            "grep -q secret-of-a file /tmp/file /dev/shm/file",
		"process":         "pgrep -x crtservice",
		"loopback":        ": </dev/tcp/127.0.0.1/8000",
		"abstract socket": `perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(qq(\0crt-service))) or exit 1'`,
		"socket in /tmp":  `perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(q(/tmp/crt-service))) or exit 1'`,
	} {
		if r := a.try("/bin/bash", "-c", try); r.code != 0 {
			t.Errorf("%s: not even the workspace itself: %+v", what, r)
		}
	}
	shared.carrel(t, "kill", a.Key, service)
}

// What a symbolic link in a home leads to, followed by the host's own root in the
// product: destroy --purge removes the link, never what it points to.
func TestDestroyFollowsNoLinks(t *testing.T) {
	h := newHostFor(t)
	target := t.TempDir()
	keep := filepath.Join(target, "keep")
	if err := os.WriteFile(keep, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, other := h.desk(t), h.desk(t)
	other.sh(t, "echo kept > file")
	d.sh(
		t, fmt.Sprintf(
			"ln -s %[1]s a; ln -s %[1]s/keep b; ln -s %[2]s c; ln -s / d; mkdir -p e/f/g; ln -s / e/f/g/h; chmod 000 e/f; touch -- -rf '*' "+
				"$'new\nline'; mkfifo pipe; chmod 0 .", target, other.Home,
		),
	)
	h.carrel(t, "destroy", "--purge", d.Key)
	if b, err := os.ReadFile(keep); err != nil || string(b) != "kept" {
		t.Errorf("what a link pointed to is gone: %q, %v", b, err)
	}
	if out := other.sh(t, "cat file"); out != "kept" {
		t.Errorf("another home is gone: %q", out)
	}
	if _, err := os.Lstat(d.Home); !os.IsNotExist(err) {
		t.Errorf("the home is left: %v", err)
	}
}

// The host's own services: on its loopback, on its sockets by path and by abstract name.
func TestServicesOfTheHostAreOutOfReach(t *testing.T) {
	d := shared.desk(t)
	var lc net.ListenConfig
	ports := map[string]string{}
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		l, err := lc.Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Logf("cannot listen on %s: %v", at, err)
			continue
		}
		defer l.Close()
		_, ports[at], _ = net.SplitHostPort(l.Addr().String())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
	}
	abstract, err := lc.Listen(t.Context(), "unix", "@crt-host-service")
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	var script strings.Builder
	script.WriteString(`try() { if ( eval "$2" ) >/dev/null 2>&1; then echo "REACHED $1 ok"; else echo "denied $1 refused"; fi; }
		unx() { perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); $n = shift; $n =~ s/^@/\0/; connect(S, pack_sockaddr_un($n)) or exit 1' "$1"; }` + "\n")
	hosts := []string{"127.0.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.1", "127.1.2.3", "localhost"}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				hosts = append(hosts, n.IP.String())
			}
		}
	}
	for _, port := range ports {
		for _, h := range hosts {
			fmt.Fprintf(&script, "try 'tcp %s %s' ': </dev/tcp/%s/%s'\n", h, port, h, port)
		}
	}
	for _, to := range []string{
		"169.254.169.254/80", "fd00:ec2::254/80", "192.0.2.1/443", "10.0.0.1/80", "100.100.100.200/80", "1.1.1.1/53", "224.0.0.1/80",
		"255.255.255.255/80",
	} {
		fmt.Fprintf(&script, "try 'tcp %[1]s' ': </dev/tcp/%[1]s'\ntry 'udp %[1]s' 'echo x >/dev/udp/%[1]s'\n", to)
	}
	for _, s := range []string{
		"@crt-host-service", "@/tmp/.X11-unix/X0", "@/org/kernel/linux/storage/multipathd", shared.run + "/carrel.sock",
		shared.run + "/broker.sock", shared.run + "/x/" + d.Name + ".sock",
		"/run/carrel/carrel.sock", "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket",
		"/run/systemd/journal/socket", "/tmp/.X11-unix/X0", "/run/user/0/bus", "/dev/log", os.Getenv("SSH_AUTH_SOCK"),
	} {
		if s != "" {
			fmt.Fprintf(&script, "try 'unix %[1]s' \"unx '%[1]s'\"\n", s)
		}
	}
	script.WriteString("try 'a name' 'getent hosts example.com'\necho end\n")
	d.put(t, "script", []byte(script.String()), "644")
	r := d.try("/bin/bash", "script")
	if !strings.Contains(r.out, "end\n") {
		t.Fatalf("%+v", r)
	}
	judge(t, 40, nil, r.out)
	// The same listeners answer on the host.
	for at, port := range ports {
		host, _, _ := net.SplitHostPort(at)
		dialer := net.Dialer{Timeout: patience}
		c, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("%s does not answer on the host: %v", at, err)
			continue
		}
		_ = c.Close()
	}
}

// Bombs in one workspace while a neighbour and the daemon go on. What a neighbour's
// command takes meanwhile is logged; the bound is only there to fail a standstill.
func TestBombsAreContained(t *testing.T) {
	const bound = 10 * time.Second
	bombed, calm := shared.desk(t, "--memory", "128MiB", "--pids", "64", "--open-files", "256"), shared.desk(t)
	for _, bomb := range []struct {
		name, script string
		// full is something that the bombed workspace no longer can; "" is for a bomb that ends.
		after string
	}{
		{"forks", "perl -e 'fork while 1'", ""},
		{"threads", `perl -e 'while (1) { my $p = fork; if (!defined $p) { select undef, undef, undef, 0.01 } elsif (!$p) { sleep 1000 } }'`, ""},
		{"memory", "while :; do tail /dev/zero; done", ""},
		{"shared memory", "while :; do cat /dev/zero > /dev/shm/full; done", "test $(stat -c %s /dev/shm/full) -lt 140000000"},
		{"tmpfs", "while :; do cat /dev/zero > /run/user/$(id -u)/full || cat /dev/zero > /dev/shm/full2; done", ""},
		{"descriptors", `perl -e 'while (open(my $f, "<", "/dev/null")) { push @f, $f } print "opened ", scalar @f, "\n"; sleep 1000'`, ""},
		{"output", "yes output without end", ""},
		{"sockets", `perl -MSocket -e 'while (socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0)) { $a->blocking(0); 1 while syswrite($a, "x" x 65536); push @s, $a, $b } sleep 1000'`, ""},
		{"processors", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait", ""},
		{"files", "i=0; while :; do : > many-$i; i=$((i+1)); [ $i -lt 20000 ] || sleep 1000; done", "rm -f many-*"},
	} {
		t.Run(bomb.name, func(t *testing.T) {
			id := bombed.detach(t, "/bin/bash", "-c", bomb.script+" 2>/dev/null")
			var worst, daemon time.Duration
			for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
				r := calm.try("true")
				if r.code != 0 {
					t.Fatalf("the neighbour: %+v", r)
				}
				worst = max(worst, r.took)
				r = shared.try(nil, "", "ps", bombed.Key)
				if r.code != 0 {
					t.Fatalf("the daemon: %+v", r)
				}
				daemon = max(daemon, r.took)
			}
			t.Logf("a neighbour's command took %v at most, a question to the bombed workspace's executor %v",
				worst.Round(time.Millisecond/10), daemon.Round(time.Millisecond/10))
			if worst > bound || daemon > bound {
				t.Errorf("that is more than %v", bound)
			}
			shared.carrel(t, "kill", "--signal", "KILL", bombed.Key, id)
			shared.carrel(t, "kill", bombed.Key, id)
			until(t, "the end of the bomb", func() bool { return shared.try(nil, "", "attach", bombed.Key, id).code >= 0 })
			until(t, "a bombed workspace that works", func() bool { return bombed.try("true").code == 0 })
			if bomb.after != "" {
				bombed.sh(t, bomb.after)
			}
			bombed.sh(t, "rm -f /dev/shm/* /run/user/*/full")
			bombed.well(t)
			calm.well(t)
		})
	}
}

// Output that nobody reads stops the command and nothing else.
func TestOutputWithoutAReader(t *testing.T) {
	d := shared.desk(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := shared.command(ctx, nil, "exec", d.Key, "--", "head", "-c", "100M", "/dev/zero")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d.well(t)
	var n int64
	buf := make([]byte, 1<<16)
	for {
		m, err := out.Read(buf)
		n += int64(m)
		if err != nil {
			break
		}
	}
	if err := c.Wait(); err != nil || n != 100<<20 {
		t.Errorf("%d bytes came: %v", n, err)
	}
}
