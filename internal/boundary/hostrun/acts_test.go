package hostrun_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// acting has this test's program be an attacker or its victim.
const acting = "CARREL_HOSTRUN_ACT"

// scene is what an attacker knows.
type scene struct {
	// Home is the user's directory, with the victim's in it and Project, where the command runs.
	Home, Project string
	Victim        int
	// Abstract begins the names of the victim's abstract sockets, Key is that of its shared memory, Terminal is one of the user's.
	Abstract, Terminal string
	Key                int
	// Plain: nothing holds the attacker, who makes only the attacks that do no harm then.
	Plain bool
}

// heldOpen is a descriptor of the victim's.
const heldOpen = 200

func act(name string) int {
	switch name {
	case "attacker":
		return attackAll(os.Args[1])
	case "victim":
		return beVictim(os.Args[1])
	case "ready":
		return beReady()
	case "whoami":
		fmt.Print(os.Geteuid())
		return 0
	}
	return 99
}

// signalled is a context that SIGUSR1 ends.
func signalled() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), unix.SIGUSR1)
	return ctx
}

// beVictim has what an attacker could reach until its standard input ends.
func beVictim(text string) int {
	var s scene
	err := json.Unmarshal([]byte(text), &s)
	touched := func(how string) { _ = os.WriteFile(s.Home+"/victim/touched-"+how, nil, 0o600) }
	listen := func(how, network, address string) {
		l, lerr := net.Listen(network, address)
		err = errors.Join(err, lerr)
		go func() {
			if _, err := l.Accept(); err == nil {
				touched(how)
			}
		}()
	}
	listen("socket", "unix", s.Home+"/victim.sock")
	listen("abstract", "unix", "@"+s.Abstract)
	d, derr := net.ListenPacket("unixgram", "@"+s.Abstract+"-d")
	go func() {
		if n, _, err := d.ReadFrom(make([]byte, 1)); n == 1 && err == nil {
			touched("datagram")
		}
	}()
	f, ferr := os.OpenFile(s.Home+"/victim/held-open", os.O_RDWR|os.O_CREATE, 0o600)
	shm, _, e := unix.RawSyscall(unix.SYS_SHMGET, uintptr(s.Key), 4096, 0o1600) // IPC_CREAT
	if err = errors.Join(err, derr, ferr); err != nil || e != 0 {
		fmt.Fprintln(os.Stderr, err, e)
		return 1
	}
	defer unix.RawSyscall(unix.SYS_SHMCTL, shm, 0, 0) // IPC_RMID
	if err := unix.Dup3(int(f.Fd()), heldOpen, 0); err != nil {
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(f)
	return 0
}

// who says who succeeds with an attack if nothing holds them.
type who int

const (
	anybody who = iota
	root
	ordinaryUser
	// notTried does harm, or is held for everybody.
	notTried
)

// attacks return nil if they succeed.
var attacks = []struct {
	name  string
	plain who
	run   func(s *scene) error
}{
	{"make a file", anybody, func(s *scene) error { return openClose(s.Home+"/victim/made", os.O_WRONLY|os.O_CREATE|os.O_EXCL) }},
	{"write a file", anybody, func(s *scene) error { return openClose(s.Home+"/victim/file", os.O_WRONLY) }},
	{"append to a file", anybody, func(s *scene) error { return openClose(s.Home+"/victim/file", os.O_WRONLY|os.O_APPEND) }},
	{"truncate", anybody, func(s *scene) error { return unix.Truncate(s.Home+"/victim/cut", 1) }},
	{"chmod", anybody, func(s *scene) error { return os.Chmod(s.Home+"/victim/file", 0o777) }},
	{"chown", anybody, func(s *scene) error { return os.Chown(s.Home+"/victim/file", os.Getuid(), os.Getgid()) }},
	{"utimes", anybody, func(s *scene) error { return unix.Utimes(s.Home+"/victim/file", make([]unix.Timeval, 2)) }},
	{"setxattr", anybody, func(s *scene) error { return unix.Setxattr(s.Home+"/victim/file", "user.x", []byte("x"), 0) }},
	{"rename", anybody, func(s *scene) error { return os.Rename(s.Home+"/victim/old", s.Home+"/victim/new") }},
	{"rename the directory", anybody, func(s *scene) error {
		return errors.Join(os.Rename(s.Project, s.Project+"-away"), os.Rename(s.Project+"-away", s.Project))
	}},
	{"unlink", anybody, func(s *scene) error { return os.Remove(s.Home + "/victim/gone") }},
	{"mkdir", anybody, func(s *scene) error { return os.Mkdir(s.Home+"/victim/dir", 0o755) }},
	{"symlink", anybody, func(s *scene) error { return os.Symlink("x", s.Home+"/victim/link") }},
	{"hard link", anybody, func(s *scene) error { return os.Link(s.Home+"/victim/file", s.Home+"/victim/hard") }},
	{"hard link to where it may write", anybody, func(s *scene) error { return os.Link(s.Home+"/victim/file", s.Project+"/hard") }},
	{"mknod", anybody, func(s *scene) error { return unix.Mkfifo(s.Home+"/victim/fifo", 0o600) }},
	{"through a symbolic link", anybody, func(s *scene) error {
		dir, err := os.MkdirTemp("", "x")
		if err != nil && s.Plain { // of the host, where not everybody may
			dir, err = os.MkdirTemp(s.Project, "x")
		}
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		return errors.Join(os.Symlink(s.Home+"/victim/file", dir+"/link"), openClose(dir+"/link", os.O_WRONLY))
	}},
	{"through its own /proc", anybody, func(s *scene) error { return openClose("/proc/self/root"+s.Home+"/victim/file", os.O_WRONLY) }},
	{"through the victim's root", anybody, func(s *scene) error { return openClose(s.proc()+"/root"+s.Home+"/victim/file", os.O_WRONLY) }},
	{"through the victim's descriptor", anybody, func(s *scene) error {
		return openClose(s.proc()+"/fd/"+strconv.Itoa(heldOpen), os.O_WRONLY)
	}},
	{"the victim's descriptor, by pidfd", anybody, func(s *scene) error {
		fd, err := unix.PidfdOpen(s.Victim, 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, heldOpen, 0)
		return err
	}},
	{"the victim's memory", anybody, func(s *scene) error { return openClose(s.proc()+"/mem", os.O_RDWR) }},
	{"the victim's environment", anybody, func(s *scene) error { return openClose(s.proc()+"/environ", os.O_RDONLY) }},
	{"the victim's score", anybody, func(s *scene) error { return openClose(s.proc()+"/oom_score_adj", os.O_WRONLY) }},
	{"ptrace", anybody, func(s *scene) error {
		runtime.LockOSThread()
		_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(s.Victim), 0, 0, 0, 0)
		if e == 0 {
			_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, uintptr(s.Victim), 0, 0, 0, 0)
			_, _ = unix.Wait4(s.Victim, nil, unix.WALL, nil)
			return unix.PtraceDetach(s.Victim)
		}
		return errnoErr(e)
	}},
	{"process_vm_readv", anybody, func(s *scene) error {
		b := []byte{0}
		local := []unix.Iovec{{Base: &b[0], Len: 1}}
		// Of its own program, which every process of the kind has at one address at least.
		_, err := unix.ProcessVMReadv(s.Victim, local, []unix.RemoteIovec{{Base: 0, Len: 1}}, 0)
		if errors.Is(err, unix.EFAULT) { // it may, and nothing is there
			return nil
		}
		return err
	}},
	{"signal", anybody, func(s *scene) error { return unix.Kill(s.Victim, unix.SIGWINCH) }},
	{"signal, queued", anybody, func(s *scene) error {
		var info [128]byte
		*(*int32)(unsafe.Pointer(&info[0])) = int32(unix.SIGWINCH)
		*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
		_, _, e := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(s.Victim), uintptr(unix.SIGWINCH), uintptr(unsafe.Pointer(&info[0])))
		return errnoErr(e)
	}},
	{"signal by its directory in /proc", anybody, func(s *scene) error {
		fd, err := unix.Open(s.proc(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, unix.SIGWINCH, nil, 0)
	}},
	{"signal by an owner of a descriptor", notTried, func(s *scene) error {
		_, err := unix.FcntlInt(0, unix.F_SETOWN, s.Victim)
		return err
	}},
	{"limits of the victim", anybody, func(s *scene) error {
		var old unix.Rlimit
		return errors.Join(unix.Prlimit(s.Victim, unix.RLIMIT_NOFILE, nil, &old), unix.Prlimit(s.Victim, unix.RLIMIT_NOFILE, &old, nil))
	}},
	{"priority of the victim", anybody, func(s *scene) error { return unix.Setpriority(unix.PRIO_PROCESS, s.Victim, 19) }},
	{"processor of the victim", anybody, func(s *scene) error {
		var set unix.CPUSet
		return errors.Join(unix.SchedGetaffinity(0, &set), unix.SchedSetaffinity(s.Victim, &set))
	}},
	{"priority of all of the user", notTried, func(s *scene) error {
		_ = unix.Setpriority(unix.PRIO_USER, os.Getuid(), 19)
		return errors.New("its own processes are the user's too: the victim is looked at")
	}},
	{"socket", anybody, func(s *scene) error { return dial("unix", s.Home+"/victim.sock") }},
	{"abstract socket", anybody, func(s *scene) error { return dial("unix", "@"+s.Abstract) }},
	{"datagram from a pair", anybody, func(s *scene) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		return unix.Sendto(pair[0], []byte("x"), 0, &unix.SockaddrUnix{Name: "@" + s.Abstract + "-d"})
	}},
	{"datagram from a raw pair", anybody, func(s *scene) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		return unix.Sendto(pair[0], []byte("x"), 0, &unix.SockaddrUnix{Name: "@" + s.Abstract + "-d"})
	}},
	{"stream of a pair, connected again", notTried, func(s *scene) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		unix.Close(pair[1])
		return unix.Connect(pair[0], &unix.SockaddrUnix{Name: "@" + s.Abstract})
	}},
	{"shared memory", anybody, func(s *scene) error {
		_, _, e := unix.RawSyscall(unix.SYS_SHMGET, uintptr(s.Key), 4096, 0o600)
		return errnoErr(e)
	}},
	{"io_uring", notTried, func(*scene) error {
		var params [120]byte
		_, _, e := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params[0])), 0)
		return errnoErr(e)
	}},
	{"terminal of the user", anybody, func(s *scene) error { return openClose(s.Terminal, os.O_RDWR|unix.O_NOCTTY) }},
	{"own terminal", notTried, func(s *scene) error { return openClose("/dev/tty", os.O_RDWR|unix.O_NOCTTY) }},
	{"nested namespaces", anybody, func(*scene) error {
		c := exec.Command("/bin/true")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS}
		return c.Run()
	}},
	{"nested namespaces, by a call that no filter can read", anybody, func(*scene) error {
		args := [11]uint64{unix.CLONE_NEWUSER, 0, 0, 0, uint64(unix.SIGCHLD)} // struct clone_args
		pid, e := cloneAndExit(&args)
		if e == 0 {
			_, _ = unix.Wait4(int(pid), nil, 0, nil)
		}
		return errnoErr(e)
	}},
	{"bind mount", notTried, func(s *scene) error { return unix.Mount("/tmp", s.Home+"/victim", "", unix.MS_BIND, "") }},
	{"remount to write", notTried, func(*scene) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"unmount what covers", notTried, func(*scene) error { return unix.Unmount("/tmp", unix.MNT_DETACH) }},
	{"mount_setattr", notTried, func(*scene) error {
		return unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	}},
	{"the namespace of the victim", root, func(s *scene) error {
		fd, err := unix.Open(s.proc()+"/ns/uts", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		runtime.LockOSThread() // for good: the thread changes
		return unix.Setns(fd, unix.CLONE_NEWUTS)
	}},
	{"chroot", root, func(*scene) error {
		if os.Geteuid() != 0 {
			return unix.Chroot("/tmp")
		}
		return exec.Command("chroot", "/", "/bin/true").Run()
	}},
	{"hostname", root, func(*scene) error {
		name, err := os.Hostname()
		return errors.Join(err, unix.Sethostname([]byte(name)))
	}},
	{"sysctl", root, func(*scene) error { return openClose("/proc/sys/kernel/hostname", os.O_WRONLY) }},
	{"kernel log", root, func(*scene) error { return openClose("/dev/kmsg", os.O_WRONLY) }},
	{"a device made", root, func(s *scene) error {
		path := os.TempDir() + "/.carrel-null-" + strconv.Itoa(os.Getpid())
		defer os.Remove(path)
		return unix.Mknod(path, unix.S_IFCHR|0o600, 1<<8|3)
	}},
	{"set-uid program", ordinaryUser, func(s *scene) error {
		c := exec.Command(s.Home + "/suid")
		c.Env = []string{acting + "=whoami"}
		out, err := c.Output()
		if err == nil && string(out) != "0" {
			err = fmt.Errorf("it runs as %s", out)
		}
		if os.Getuid() == 0 {
			err = errors.New("it is root")
		}
		return err
	}},
	{"a descriptor of the caller's", notTried, func(*scene) error {
		for fd := 3; fd < 30; fd++ {
			if n, err := unix.Write(fd, []byte("x")); n == 1 && err == nil {
				return nil
			}
		}
		return unix.EBADF
	}},
}

// cloneAndExit makes a process that ends at once. It may not enter the scheduler or grow its stack before.
//
//go:nosplit
//go:norace
//go:noinline
func cloneAndExit(args *[11]uint64) (uintptr, unix.Errno) {
	pid, _, e := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0)
	for e == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return pid, e
}

func (s *scene) proc() string { return "/proc/" + strconv.Itoa(s.Victim) }

func openClose(path string, flags int) error {
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func dial(network, address string) error {
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	return c.Close()
}

func errnoErr(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// attackAll prints what came of each attack: "" is success.
func attackAll(text string) int {
	var s scene
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	came := map[string]string{}
	for _, a := range attacks {
		if s.Plain && a.plain == notTried {
			continue
		}
		done := make(chan error)
		go func() { done <- a.run(&s) }() // a thread that is changed is not used again
		came[a.name] = ""
		if err := <-done; err != nil {
			came[a.name] = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(came); err != nil {
		return 1
	}
	return 0
}
