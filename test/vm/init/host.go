package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/vm/job"
)

// load loads one module; that it is there already is no error.
func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot load a module: %w", err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot load %s: %w", path, err)
	}
	return nil
}

const rootDisk = "/dev/vda"

// enterRoot leaves the initramfs for the disk. pivot_root(2) refuses to leave an
// initramfs, and carrel needs it to work inside, so a disk it is.
func enterRoot() error {
	if err := os.MkdirAll("/dev", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /dev: %w", err)
	}
	// The driver finds the disk on a thread of the kernel.
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if _, err := os.Stat(rootDisk); err == nil {
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("cannot find the disk %s", rootDisk)
		}
	}
	if err := os.MkdirAll("/root", 0o755); err != nil {
		return err
	}
	if err := unix.Mount(rootDisk, "/root", "ext4", unix.MS_RELATIME, ""); err != nil {
		return fmt.Errorf("cannot mount %s: %w", rootDisk, err)
	}
	if err := unix.Mount("/dev", "/root/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move /dev: %w", err)
	}
	if err := unix.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// mounts are what systemd mounts on a Debian host, in its order and with its flags.
var mounts = []struct {
	fs, at string
	flags  uintptr
	data   string
}{
	{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"securityfs", "/sys/kernel/security", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=000"},
	{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=755,size=20%"},
	{"tmpfs", "/run/lock", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "mode=1777,size=5120k"},
	{"mqueue", "/dev/mqueue", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"bpf", "/sys/fs/bpf", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "mode=700"},
	{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=50%"},
}

const cgroupFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME

func mountAll(l job.Layout) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.at, m.fs, m.flags, m.data); err != nil {
			return fmt.Errorf("cannot mount %s: %w", m.at, err)
		}
	}
	mountCgroups := map[job.Layout]func() error{job.V2: mountV2, job.V1: mountV1}[l]
	if mountCgroups == nil {
		return fmt.Errorf("cannot mount control groups: there is no layout %q", l)
	}
	if err := mountCgroups(); err != nil {
		return err
	}
	// As under systemd, and the harder case: what is mounted shows everywhere unless
	// a program takes care.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot share the mounts: %w", err)
	}
	return nil
}

// The controllers that both layouts have. Without cpuset, whose v1 groups cannot be
// used before they are configured.
var controllers = []string{"memory", "pids", "cpu", "io"}

func mountV2() error {
	if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", cgroupFlags, "nsdelegate,memory_recursiveprot"); err != nil {
		return fmt.Errorf("cannot mount cgroup v2: %w", err)
	}
	for _, c := range controllers {
		if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("cannot hand the %s controller down: %w", c, err)
		}
	}
	return nil
}

func mountV1() error {
	if err := unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", cgroupFlags, "mode=755"); err != nil {
		return fmt.Errorf("cannot mount /sys/fs/cgroup: %w", err)
	}
	// systemd mounted cpu together with cpuacct; the others on their own.
	for _, options := range []string{"memory", "pids", "cpu,cpuacct", "blkio", "freezer"} {
		at := "/sys/fs/cgroup/" + options
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", at, "cgroup", cgroupFlags, options); err != nil {
			return fmt.Errorf("cannot mount the v1 hierarchy of %s: %w", options, err)
		}
	}
	return unix.Mount("", "/sys/fs/cgroup", "", unix.MS_REMOUNT|unix.MS_RDONLY|cgroupFlags, "mode=755")
}

// settle does the rest of what an init does: names, loopback, limits, devices' links.
func settle() error {
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"); err != nil { // to find programs by
		return err
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("cannot bring loopback up: %w", err)
	}
	// What systemd gives to services; the kernel's own hard limit is 4096.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 524288}); err != nil {
		return err
	}
	for name, to := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, name); err != nil {
			return err
		}
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	return os.WriteFile("/etc/machine-id", []byte(strings.ReplaceAll(string(id), "-", "")), 0o444)
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}

// state is what a job must leave as it found it, as lines that name each thing.
func state() map[string]bool {
	all := map[string]bool{}
	add := func(what string, names ...string) {
		for _, n := range names {
			all[what+" "+n] = true
		}
	}
	for _, file := range []string{"passwd", "group", "shadow", "gshadow", "subuid", "subgid"} {
		for _, l := range readLines("/etc/" + file) {
			add("line in /etc/"+file+":", l)
		}
	}
	for _, l := range readLines("/proc/self/mountinfo") {
		if f := strings.Fields(l); len(f) > 4 {
			add("mount", f[4])
		}
	}
	for _, dir := range []string{"/tmp", "/run", "/var/tmp", "/dev/shm", "/home", "/etc", "/var/lib", "/sys/class/net"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			// useradd and its kin keep a copy of each file before their change, and a lock.
			if !strings.HasSuffix(e.Name(), "-") && e.Name() != ".pwd.lock" {
				add("file", dir+"/"+e.Name())
			}
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			add("control group", path)
		}
		return nil
	})
	return all
}

func readLines(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}
