package root_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamespacesMountsAndDevices(t *testing.T) {
	d := shared.desk(t)
	d.attack(t, 50, nil, "namespaces")
	d.well(t)
	canReach(t, unconfined(t, "namespaces"), "unshare(user)", "clone(user)", "clone3(user)", "clone3(user+all)", "unshare(mount)",
		"mount(tmpfs)", "mount(bind)", "mount(remount rw)", "umount2", "open_tree", "move_mount", "fsopen", "fspick", "chroot", "leave a chroot",
		"mknod(block)", "mknod(mem)", "sethostname")
}

func TestKernelSurface(t *testing.T) {
	d := shared.desk(t)
	d.attack(t, 45, nil, "kernel")
	d.well(t)
	canReach(t, unconfined(t, "kernel"), "getpid by int 0x80", "keyctl(get session)", "add_key", "request_key", "bpf", "io_setup", "io_uring_setup",
		"userfaultfd", "perf_event_open", "packet socket", "raw socket", "netlink audit", "netlink netfilter", "netlink uevent", "nice -20")
}

// Every way to signal, trace, starve or look into the executor, by each of its threads.
func TestTheExecutorIsOutOfReach(t *testing.T) {
	d := shared.desk(t)
	d.attack(t, 30, nil, "supervisor", "1", "64")
	d.well(t)
	// The whole of it at once, of which only the command's own processes may see something.
	if r := d.try("/bin/bash", "-c", "trap '' TERM; kill -TERM -1; echo alive"); strings.TrimSpace(r.out) != "alive" {
		t.Errorf("kill -TERM -1: %+v", r)
	}
	d.well(t)

	// The same attempts reach a process of the command's own.
	victim := d.detach(t, "/bin/sleep", "1000")
	pid := d.sh(t, "pgrep -x sleep")
	reached := attempts(t, d.sh(t, "./supervisor "+pid+" "+pid+" mild"))
	var what []string
	for _, a := range reached {
		if a.outcome == "REACHED" {
			what = append(what, a.what)
		}
	}
	for _, prefix := range []string{
		"kill,", "tgkill,", "tkill,", "sigqueueinfo,", "pidfd_send_signal,", "ptrace(SEIZE)", "prlimit(set)", "process_vm_readv", "setpriority",
		"pidfd_getfd", "open mem", "open environ", "open maps", "open root", "open task",
	} {
		if !slices.ContainsFunc(what, func(w string) bool { return strings.HasPrefix(w, prefix) }) {
			t.Errorf("%s fails even within one workspace; reached: %q", prefix, what)
		}
	}
	shared.carrel(t, "kill", "--signal", "KILL", d.Key, victim)
}

func TestTerminalInjection(t *testing.T) {
	d := shared.desk(t)
	name := d.install(t, "terminal")
	// On a terminal, and with one of its own only.
	for _, flags := range [][]string{{"-t"}, nil} {
		r := shared.try(nil, "", append(append([]string{"exec"}, flags...), d.Key, "--", name)...)
		if r.code != 0 {
			t.Fatalf("%+v", r)
		}
		judge(t, []int{6, 18}[len(flags)], nil, r.out)
	}
	d.well(t)

	// Root puts a letter into its own terminal.
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	var n int
	control(t, master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, compile(t, "terminal"))
	c.Stdin, c.SysProcAttr = tty, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "REACHED TIOCSTI with bit 32 on standard input") {
		t.Errorf("the attempt fails even without a boundary:\n%s", out)
	}
}

// control calls f with a file's descriptor.
func control(t testing.TB, file *os.File, f func(fd int) error) {
	t.Helper()
	rc, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inner error
	if err := rc.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil || inner != nil {
		t.Fatal(err, inner)
	}
}

// CVE-2019-5736: the program that starts what is inside must not be overwritten from
// there.
func TestTheExecutorsProgramIsNotOverwritten(t *testing.T) {
	d := shared.desk(t)
	binary := filepath.Join(bin, "carrel-executor")
	before, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	name := d.install(t, "overwrite")
	done := make(chan result, 1)
	go func() { done <- d.try(name, "3") }()
	// Something to race with: each command is the executor for a moment.
	var r result
	for racing := true; racing; {
		select {
		case r = <-done:
			racing = false
		default:
			if r := d.try("true"); r.code != 0 {
				t.Errorf("%+v", r)
			}
		}
	}
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	judge(t, 5, nil, r.out)
	after, err := os.ReadFile(binary)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the program on the host was changed: %v", err)
	}
	// From the host one sees what would have stopped it in any case.
	exe, err := os.Open(fmt.Sprintf("/proc/%d/exe", d.ExecutorPID))
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	control(t, exe, func(fd int) error {
		seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
		if err != nil || seals&all != all {
			t.Errorf("seals %#x: %v", seals, err)
		}
		return nil
	})
	if running, err := io.ReadAll(exe); err != nil || !bytes.Equal(running, before) {
		t.Errorf("what runs is not the program: %v", err)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/exe", d.ExecutorPID), []byte("x"), 0); err == nil {
		t.Error("even root can write to it")
	}
	d.well(t)
}

// CVE-2024-21626: nothing of the host is left open, and the working directory is inside.
func TestNothingIsInherited(t *testing.T) {
	t.Setenv("CRT_SECRET_OF_THE_CALLER", "leaked")
	d := shared.desk(t)
	for _, flags := range [][]string{nil, {"-i"}, {"-t"}, {"--detach"}} {
		script := `ls -l /proc/self/fd; echo cwd $(readlink /proc/self/cwd) root $(readlink /proc/self/root) exe $(readlink /proc/$$/exe);
			cat /proc/self/cgroup; env; exec grep -E '^(Sig(Blk|Ign|Cgt)|NoNewPrivs|Seccomp|Cap...|Groups|Umask):' /proc/self/status`
		r := shared.try(nil, "", append(append([]string{"exec"}, flags...), d.Key, "--", "/bin/bash", "-c", script)...)
		if len(flags) == 1 && flags[0] == "--detach" {
			until(t, "the output", func() bool {
				out := shared.try(nil, "", "logs", d.Key, strings.TrimSpace(r.out))
				if strings.Contains(out.out, "Seccomp:") {
					r.out = out.out
					return true
				}
				return false
			})
		}
		if r.code != 0 {
			t.Fatalf("%+v", r)
		}
		fds := 0
		for line := range strings.Lines(r.out) {
			if strings.Contains(line, " -> ") {
				fds++
				if !strings.Contains(line, "pipe:") && !strings.Contains(line, "/dev/null") && !strings.Contains(line, "/dev/pts/") &&
					!strings.Contains(line, "/proc/") {
					t.Errorf("%v: a descriptor leads to %s", flags, line)
				}
			}
		}
		if fds != 4 { // 0, 1, 2 and the one of the listing
			t.Errorf("%v: %d descriptors:\n%s", flags, fds, r.out)
		}
		for _, want := range []string{
			"cwd " + d.Inside + " root / exe ", "NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000", "CapEff:\t0000000000000000",
			"SigBlk:\t0000000000000000",
		} {
			if !strings.Contains(strings.ReplaceAll(r.out, "\r", ""), want) {
				t.Errorf("%v: no %q in\n%s", flags, want, r.out)
			}
		}
		for _, bad := range []string{"leaked", "CARREL_HOST", "SSH_", "GOPATH", shared.data, shared.run, "memfd", "carrel-"} {
			if strings.Contains(r.out, bad) {
				t.Errorf("%v: %q of the host is inside:\n%s", flags, bad, r.out)
			}
		}
	}
	if out := shared.carrel(t, "exec", d.Key, "--", "grep", "-E", "^Sig(Ign|Blk)",
		"/proc/self/status"); out != "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n" {
		t.Errorf("signals are blocked or ignored: %s", out)
	}
	// What the caller names is passed on, and only that.
	out := shared.carrel(t, "exec", "--env", "BASH_ENV=/tmp/x", "--env", "LD_PRELOAD=", "--env", "MARK=1", d.Key, "--", "/usr/bin/env")
	for _, want := range []string{"BASH_ENV=/tmp/x\n", "LD_PRELOAD=\n", "MARK=1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// A set-user-id program and a core dump that a workspace makes.
func TestSetuidFilesAndCoreDumps(t *testing.T) {
	a, b := shared.desk(t), shared.desk(t)
	out := a.sh(t, `cp /usr/bin/id id-suid && chmod 6755 id-suid && stat -c %a id-suid && ./id-suid -u && ./id-suid -g
		cp /usr/bin/id /tmp/id-suid && chmod 6755 /tmp/id-suid && /tmp/id-suid -u
		/usr/bin/su root -c id 2>/dev/null || echo no su; ls -l /usr/bin/passwd >/dev/null && grep ^NoNewPrivs /proc/self/status`)
	me := strconv.Itoa(int(a.UID))
	if want := "6755\n" + me + "\n" + me + "\n" + me + "\nno su\nNoNewPrivs:\t1"; out != want {
		t.Errorf("inside: %q, want %q", out, want)
	}
	// Another workspace cannot come to it, and where the file lies it gives nothing away.
	if r := b.try(a.Home + "/id-suid"); r.code != 127 {
		t.Errorf("from another workspace: %+v", r)
	}
	if r := b.try("ls", a.Home); r.code == 0 {
		t.Errorf("from another workspace: %+v", r)
	}
	if got := fileMode(t, a.Home); got != 0o700 {
		t.Errorf("the home has mode %o", got)
	}
	nobody := &syscall.Credential{Uid: 61990, Gid: 61990, Groups: []uint32{}}
	c := exec.CommandContext(t.Context(), a.Home+"/id-suid", "-u")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: nobody}
	if out, err := c.CombinedOutput(); err == nil {
		t.Errorf("a user of the host runs it: %s", out)
	}
	// Root meets the home as the broker does; the mode bits are the file's own, and harmless behind 0700.
	r := a.try(
		"/bin/bash", "-c", "ulimit -c unlimited 2>&1; ulimit -c; cd /tmp; sh -c 'kill -SEGV $$'; echo $?; ls -A /tmp | grep -c core; cat "+
			"/proc/sys/kernel/core_pattern > /dev/null",
	)
	if !strings.Contains(r.out, "0\n139\n0\n") {
		t.Errorf("core dump: %+v", r)
	}
}

func fileMode(t testing.TB, path string) os.FileMode {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode().Perm()
}

// Writing where the kernel is told things, through whatever name.
func TestWritingTheSystem(t *testing.T) {
	d := shared.desk(t)
	script := `try() { if ( eval "$2" ) 2>/dev/null; then echo "REACHED $1 ok"; else echo "denied $1 refused"; fi; }
		for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sys/user/max_user_namespaces \
			/proc/sys/net/ipv4/ip_forward \
			/proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sysrq-trigger /proc/self/oom_score_adj_of_1 /proc/1/oom_score_adj \
			/proc/self/uid_map /proc/self/gid_map /proc/self/setgroups \
			/sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory/cgroup.procs \
			/sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/memory.max /sys/devices/system/cpu/cpu0/online /sys/kernel/uevent_helper \
			/dev/mem /dev/kmem /dev/kmsg /dev/port /dev/sda /dev/vda /dev/loop-control /dev/loop0 /dev/fuse /dev/kvm /dev/net/tun /dev/cpu/0/msr \
			/dev/autofs /dev/mapper/control \
			/etc/passwd /etc/ld.so.preload /etc/ld.so.cache /etc/hosts /etc/resolv.conf /usr/bin/env /bin/sh /lib64/ld-linux-x86-64.so.2 /run/x \
			/var/lib/x /var/lib/dpkg/status /root/x /x /home/x /proc/1/root/x /proc/self/root/etc/passwd \
			/usr/local/bin/x /opt/x /srv/x /mnt/x /dev/x; do
			try "write $f" "echo 1 >> $f"
			echo "0 0 1" > replacement
			try "replace $f" "mv -f replacement $f || cp replacement $f"
			try "remove $f" "test -e $f && rm -f $f && test ! -e $f"
		done
		for f in /proc/kcore /proc/kallsyms /proc/kmsg /proc/keys /proc/timer_list /proc/sched_debug /proc/iomem /etc/shadow /etc/gshadow \
			/etc/sudoers /etc/ssh/ssh_host_ed25519_key /root/.ssh /root/.bash_history /var/log/syslog /run/docker.sock \
			/run/containerd/containerd.sock /run/dbus/system_bus_socket /run/systemd/private /run/user/0 /run/sshd.pid /proc/1/environ \
			/proc/1/maps /sys/kernel/debug /sys/kernel/security /sys/firmware /sys/class /boot /dev/disk; do
			try "read $f" "test -n \"\$(head -c 1 $f 2>/dev/null || ls $f)\""
		done
		try "write own-file" "echo 1 >> own-file"
		try "remove own-file" "rm -f own-file"
		echo end`
	r := d.try("/bin/bash", "-c", script)
	if !strings.Contains(r.out, "end\n") {
		t.Fatalf("%+v", r)
	}
	judge(t, 170, []string{"write own-file", "remove own-file"}, r.out)
	d.well(t)
}
