package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// newRoot is where the new root is put together: over a directory that every host
// has and that nothing is read from. The host does not see it.
const newRoot = "/tmp"

// systemBinds are paths of the host shown inside, read-only, without set-uid and
// devices. Symbolic links are copied, as those of a merged /usr; what the host does
// not have is left out.
var systemBinds = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt",
	"/var/lib/dpkg", // what packages there are: dpkg -l, apt
	"/sys/devices/system/cpu", "/sys/devices/system/node",
}

// etcBinds are the entries of /etc that programs need to behave as on the host and
// that hold no secrets. All others are absent.
var etcBinds = []string{
	"adduser.conf", "alternatives", "bash.bashrc", "bash_completion.d", "bindresvport.blacklist",
	"binfmt.d", "ca-certificates", "ca-certificates.conf", "chromium", "chromium.d", "debconf.conf", "debian_version",
	"default/locale", "deluser.conf", "dpkg", "emacs", "ethertypes", "fonts", "gai.conf", "gdb", "glvnd",
	"host.conf", "inputrc", "issue", "java", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libaudit.conf", "locale.alias", "locale.conf", "locale.gen", "localtime",
	"login.defs", "lsb-release", "magic", "magic.mime", "mailcap", "manpath.config", "maven", "mime.types", "mke2fs.conf",
	"nanorc", "netconfig", "networks", "os-release", "papersize", "perl", "php", "profile", "profile.d", "protocols",
	"python2.7", "python3", "python3.11", "python3.12", "python3.13", "python3.14", "redhat-release", "rpc", "ruby", "screenrc",
	"services", "shells", "skel", "ssl", "pki", "terminfo", "timezone", "vim", "X11", "xattr.conf", "xdg",
}

// devices are bound from the host after their numbers have been checked, so that a
// tampered /dev cannot lend a disk.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// links are made in the new root.
var links = []struct{ name, target string }{
	{"dev/ptmx", "pts/ptmx"},
	{"dev/fd", "/proc/self/fd"},
	{"dev/stdin", "/proc/self/fd/0"},
	{"dev/stdout", "/proc/self/fd/1"},
	{"dev/stderr", "/proc/self/fd/2"},
	{"dev/core", "/proc/kcore"},
	{"etc/mtab", "/proc/self/mounts"},
	{"var/run", "/run"},
	{"var/lock", "/run/lock"},
}

// maskedFiles and maskedDirs of /proc tell about the host or reach it; readOnly may be
// read. Those that the kernel does not have are left out.
var (
	maskedFiles = []string{
		"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kallsyms", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/kpagecgroup", "/proc/latency_stats", "/proc/sched_debug", "/proc/sysrq-trigger", "/proc/timer_list",
		"/proc/interrupts", "/proc/vmallocinfo", "/proc/modules", "/proc/config.gz", "/proc/iomem", "/proc/ioports",
	}
	maskedDirs   = []string{"/proc/acpi", "/proc/scsi", "/proc/driver", "/proc/dynamic_debug"}
	readOnlyDirs = []string{"/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/tty", "/proc/asound"}
)

// Terminals is how many one workspace may have open. The host has kernel.pty.max for everybody, 4096
// unless set, of which it keeps a quarter for its own devpts.
const Terminals = 64

// canary is a file that its mode lets everyone write and only Landlock protects.
const canary = "/run/.landlock"

// at returns the path of name in the root being built.
func at(name string) string { return filepath.Join(newRoot, name) }

// Clone makes a detached copy of the mount tree at path (or of fd itself if path
// is empty) with attr set on every mount of it.
func Clone(fd int, path string, attr uint64) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	tree, err := unix.OpenTree(fd, path, flags)
	if err != nil {
		return -1, fmt.Errorf("cannot copy the mount of %s: %w", path, err)
	}
	if err := restrict(tree, attr); err != nil {
		unix.Close(tree)
		return -1, fmt.Errorf("cannot restrict the mount of %s: %w", path, err)
	}
	return tree, nil
}

// restrict sets attributes on a mount and all below it.
func restrict(tree int, attr uint64) error {
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr})
}

// Attach puts a detached mount at target and closes it.
func Attach(tree int, target string) error {
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot mount %s: %w", target, err)
	}
	return nil
}

// Fresh makes a new file system instance, mounted nowhere yet. Options are names and values; "" is none.
func Fresh(fstype string, attr int, options ...string) (int, error) {
	ctx, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("cannot open file system %s: %w", fstype, err)
	}
	defer unix.Close(ctx)
	for i := 0; i+1 < len(options); i += 2 {
		if options[i+1] == "" {
			err = unix.FsconfigSetFlag(ctx, options[i])
		} else {
			err = unix.FsconfigSetString(ctx, options[i], options[i+1])
		}
		if err != nil {
			return -1, fmt.Errorf("cannot set option %s of %s: %w", options[i], fstype, err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("cannot make a %s: %w", fstype, err)
	}
	m, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("cannot mount a %s: %w", fstype, err)
	}
	return m, nil
}

// mountFresh makes a new file system instance at target in the new root.
func mountFresh(fstype, target string, attr int, options ...string) error {
	if err := makeDirs(at(target)); err != nil {
		return err
	}
	m, err := Fresh(fstype, attr, options...)
	if err != nil {
		return err
	}
	return Attach(m, at(target))
}

const (
	harmless = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	readOnly = harmless | unix.MOUNT_ATTR_RDONLY
)

// bindHost shows path of the host at the same place in the new root: a directory as a
// mount, a file as a copy, a symbolic link as one.
func (c *copier) bindHost(path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if err := makeDirs(filepath.Dir(at(path))); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return makeLink(target, at(path))
	case unix.S_IFDIR:
	default:
		return c.copyHost(path, st.Mode)
	}
	if err := makeDirs(at(path)); err != nil {
		return err
	}
	tree, err := Clone(unix.AT_FDCWD, path, readOnly)
	if err != nil {
		return err
	}
	return Attach(tree, at(path))
}

// copyHost copies a file of the host: cheaper than a mount, and nothing is copied that
// the workspace's ids could not read. What cannot be read is left out.
func (c *copier) copyHost(path string, mode uint32) error {
	err := c.copy(path, at(path), mode&0o755)
	if errors.Is(err, errUnreadable) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", path, err)
	}
	return nil
}

// buildRoot puts the new root together up to what needs the pid and cgroup namespaces.
func buildRoot(s *Spec) error {
	part := strconv.FormatInt(s.TmpfsBytes/modes[s.Mode].tmpfsParts, 10)
	m, err := Fresh("tmpfs", harmless, "size", "8m", "mode", "0755", "nr_inodes", "4096")
	if err != nil {
		return err
	}
	if err := Attach(m, newRoot); err != nil {
		return err
	}
	var c copier
	for _, p := range systemBinds {
		if err := c.bindHost(p); err != nil {
			return err
		}
	}
	for _, p := range etcBinds {
		if err := c.bindHost("/etc/" + p); err != nil {
			return err
		}
	}
	for name, content := range etcFiles(s) {
		p := at("etc/" + name)
		_ = unix.Unlink(p) // a copied or linked entry of the same name gives way
		if err := makeFile(p, []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := c.trust(s.Net.Trust); err != nil {
		return err
	}
	for _, d := range []string{
		"dev", "proc", "sys/fs/cgroup", "root", "mnt", "srv", "media", "var/cache", "var/log",
		"var/lib", "var/spool", "home",
	} {
		if err := makeDirs(at(d)); err != nil {
			return err
		}
	}
	if err := buildDev(part); err != nil {
		return err
	}
	if err := buildRun(s, part); err != nil {
		return err
	}
	for _, l := range links {
		if err := makeLink(l.target, at(l.name)); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		fd     int
		target string
	}{{s.FDs.Home, workspace.Home}, {s.FDs.Tmp, "/tmp"}, {s.FDs.VarTmp, "/var/tmp"}} {
		if err := makeDirs(at(m.target)); err != nil {
			return err
		}
		// The broker made these nosuid,nodev; the self-check reads that back.
		if err := Attach(m.fd, at(m.target)); err != nil {
			return err
		}
	}
	return buildProjects(s)
}

func buildDev(tmpfsPart string) error {
	// No MOUNT_ATTR_NODEV here would not help: a tmpfs of a user namespace never
	// opens devices. The bound ones come from the host's own devtmpfs.
	if err := mountFresh("tmpfs", "/dev", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "size", "64k", "mode", "0755"); err != nil {
		return err
	}
	for _, d := range devices {
		fd, err := unix.Open("/dev/"+d.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot open /dev/%s: %w", d.name, err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != d.major || unix.Minor(st.Rdev) != d.minor {
			return fmt.Errorf("cannot use /dev/%s: it is not character device %d:%d", d.name, d.major, d.minor)
		}
		if err := makeFile(at("dev/"+d.name), nil, 0o666); err != nil {
			return err
		}
		tree, err := Clone(fd, "", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return err
		}
		if err := Attach(tree, at("dev/"+d.name)); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		fstype, target string
		options        []string
	}{
		{"devpts", "/dev/pts", []string{"newinstance", "", "ptmxmode", "0666", "mode", "0620", "max", strconv.Itoa(Terminals)}},
		{"tmpfs", "/dev/shm", []string{"size", tmpfsPart, "mode", "1777"}},
		{"mqueue", "/dev/mqueue", nil},
	} {
		if err := mountFresh(m.fstype, m.target, harmless&^unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, m.options...); err != nil {
			return err
		}
	}
	return nil
}

func buildRun(s *Spec, tmpfsPart string) error {
	if err := mountFresh("tmpfs", "/run", harmless, "size", tmpfsPart, "mode", "0755"); err != nil {
		return err
	}
	user := "run/user/" + strconv.FormatUint(uint64(s.IDs.Work), 10)
	for _, d := range []string{"run/lock", user} {
		if err := makeDirs(at(d)); err != nil {
			return err
		}
	}
	if err := unix.Chmod(at(user), 0o700); err != nil {
		return err
	}
	if err := unix.Chown(at(user), int(s.IDs.Work), int(s.IDs.Work)); err != nil {
		return err
	}
	if err := makeFile(at(canary), nil, 0o666); err != nil {
		return err
	}
	return unix.Chmod(at(canary), 0o666) // past the umask
}

// etcFiles are the synthesised files of /etc.
func etcFiles(s *Spec) map[string]string {
	sum := sha256.Sum256([]byte("carrel machine-id\x00" + string(s.Name)))
	w, home := s.IDs.Work, workspace.Home
	return map[string]string{
		"passwd": fmt.Sprintf("root:x:0:0:executor:/root:/usr/sbin/nologin\n"+
			"%s:x:%d:%d:carrel workspace:%s:%s\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
			s.User, w, w, home, s.Shell),
		"group":      fmt.Sprintf("root:x:0:\ntty:x:5:\n%s:x:%d:\nnogroup:x:65534:\n", s.User, w),
		"hosts":      fmt.Sprintf("127.0.0.1\tlocalhost %s\n::1\tlocalhost ip6-localhost ip6-loopback\n", s.Name),
		"hostname":   string(s.Name) + "\n",
		"machine-id": hex.EncodeToString(sum[:16]) + "\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n" +
			"protocols: files\nservices: files\nethers: files\nrpc: files\n",
		"resolv.conf": "nameserver " + s.nameserver().String() + "\noptions timeout:1 attempts:1\n",
	}
}

// mountProc mounts a fresh /proc for the new pid namespace, then masks and locks it.
// It must come after buildRoot, whose /dev/null it uses.
func mountProc() error {
	m, err := Fresh("proc", harmless|unix.MOUNT_ATTR_NOEXEC, "hidepid", "invisible")
	if err != nil {
		return fmt.Errorf("%w; the kernel refuses a fresh /proc where the host's own is masked, as in some containers", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(m, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("cannot use the new /proc: it is file system %#x: %w", st.Type, err)
	}
	return Attach(m, at("proc"))
}

func maskProc() error {
	null, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	for _, p := range maskedFiles {
		if !exists(p) {
			continue
		}
		tree, err := Clone(null, "", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return err
		}
		if err := Attach(tree, p); err != nil {
			return err
		}
	}
	for _, p := range maskedDirs {
		if !exists(p) {
			continue
		}
		m, err := Fresh("tmpfs", readOnly|unix.MOUNT_ATTR_NOEXEC, "size", "4k", "nr_inodes", "1", "mode", "0755")
		if err != nil {
			return err
		}
		if err := Attach(m, p); err != nil {
			return err
		}
	}
	for _, p := range readOnlyDirs {
		if !exists(p) {
			continue
		}
		tree, err := Clone(unix.AT_FDCWD, p, readOnly|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return err
		}
		if err := Attach(tree, p); err != nil {
			return err
		}
	}
	return nil
}
