package hostrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

const (
	harmless = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	readOnly = harmless | unix.MOUNT_ATTR_RDONLY
	// unchanged are the host's own mounts, whose devices are held by Landlock.
	unchanged = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_RDONLY
)

// tmpSize bounds each private directory, which is in memory.
const tmpSize = "256m"

// private are the command's own directories, empty and writable. Who looks at the host sees its temporary files.
func (r *row) private() []string {
	if r.host {
		return []string{"/dev/shm"}
	}
	return []string{"/tmp", "/var/tmp", "/dev/shm"}
}

func (s *stage) propagation() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

func (s *stage) noNestedNamespaces() error {
	const path = "/proc/sys/user/max_user_namespaces"
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("0")); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// takeDirectories copies the mounts of the command's directories. Of one that it may change only the top mount stays
// writable: what is mounted below may be anything.
func (s *stage) takeDirectories() error {
	tree, err := take(s.spec.place, false)
	if err != nil {
		return err
	}
	s.tree = tree
	for _, w := range s.spec.Writes {
		if tree, err = take(w, true); err != nil {
			return err
		}
		s.writes = append(s.writes, tree)
	}
	return nil
}

// take copies the mount of a directory.
func take(p place, writes bool) (tree int, err error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, p.Dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("cannot open %s: %w", p.Dir, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Dev != p.Device || st.Ino != p.Inode {
		return -1, fmt.Errorf("cannot use %s: another directory has taken its place", p.Dir)
	}
	if tree, err = sandbox.Clone(fd, "", unchanged); err != nil || !writes {
		return tree, err
	}
	return tree, unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: harmless, Attr_clr: unix.MOUNT_ATTR_RDONLY,
	})
}

func (s *stage) readOnly() error {
	return unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unchanged})
}

// proc shows the processes of the command alone.
func (s *stage) proc() (err error) {
	if s.row.host {
		if s.host, err = sandbox.Clone(unix.AT_FDCWD, "/proc", unchanged); err != nil {
			return err
		}
	}
	m, err := sandbox.Fresh("proc", readOnly|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("%w; the kernel refuses a new /proc where the host's own is masked, as in some containers", err)
	}
	return sandbox.Attach(m, "/proc")
}

// view shows the host's /proc, where that is to be seen, on this thread and what it starts. The other threads keep
// their own.
func (s *stage) view() error {
	if !s.row.host {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot take a mount namespace for the command: %w", err)
	}
	return sandbox.Attach(s.host, "/proc")
}

// device is a detached mount of one of the host's.
type device struct {
	name string
	tree int
}

// devices are those that every program may have, by their numbers, so that a tampered /dev lends no disk.
var devices = []struct {
	name         string
	major, minor uint32
	written      bool
}{
	{"null", 1, 3, true}, {"zero", 1, 5, true}, {"full", 1, 7, true}, {"random", 1, 8, false}, {"urandom", 1, 9, false},
}

// dev makes a small /dev. Where the host's devices are to be seen they stay, unless Landlock cannot forbid to control
// them (before ABI 5).
func (s *stage) dev() error {
	abi, err := landlockABI()
	if err != nil {
		return err
	}
	s.abi = abi
	if s.row.host && abi >= ioctlABI {
		return s.pts()
	}
	for _, d := range devices {
		tree, err := cloneDevice("/dev/"+d.name, d.major, d.minor)
		if err != nil {
			return err
		}
		s.devices = append(s.devices, device{d.name, tree})
	}
	if err := mountFresh("tmpfs", "/dev", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "size", "64k", "mode", "0755"); err != nil {
		return err
	}
	for _, d := range s.devices {
		fd, err := unix.Open("/dev/"+d.name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		unix.Close(fd)
		if err := sandbox.Attach(d.tree, "/dev/"+d.name); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := unix.Symlink(to, "/dev/"+name); err != nil {
			return err
		}
	}
	if err := errors.Join(unix.Mkdir("/dev/pts", 0o755), unix.Mkdir("/dev/shm", 0o755)); err != nil {
		return err
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return err
	}
	return s.pts()
}

// pts gives the command terminals of its own, and covers those of the caller.
func (s *stage) pts() error {
	return mountFresh("devpts", "/dev/pts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		"newinstance", "", "ptmxmode", "0666", "mode", "0620", "max", "16")
}

func cloneDevice(path string, major, minor uint32) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != major || unix.Minor(st.Rdev) != minor {
		return -1, fmt.Errorf("cannot use %s: it is not character device %d:%d", path, major, minor)
	}
	return sandbox.Clone(fd, "", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
}

// private covers the directories that the command gets for itself.
func (s *stage) private() error {
	for _, d := range privateIn(s.row) {
		if err := mountFresh("tmpfs", d, harmless, "size", tmpSize, "nr_inodes", "65536", "mode", "1777"); err != nil {
			return err
		}
	}
	return nil
}

// privateIn are the private directories by their paths without links, each once. Those that the host lacks are left out.
func privateIn(r *row) (dirs []string) {
	for _, d := range r.private() {
		real, err := filepath.EvalSymlinks(d)
		if err != nil || real == "/" {
			continue
		}
		taken := false
		for _, other := range dirs {
			taken = taken || within(real, other)
		}
		if !taken {
			dirs = append(dirs, real)
		}
	}
	return dirs
}

// placeDirectories puts the command's directories where they were: the one in which it begins if that was covered, and then
// those that may be changed, in which it locks names. One that is or holds a private directory stays as it is by now.
func (s *stage) placeDirectories() error {
	dir := s.spec.Dir
	if s.covered(dir) && !slices.Contains(privateIn(s.row), dir) && !s.changes(dir) {
		if err := attach(s.tree, dir); err != nil {
			return err
		}
	} else {
		unix.Close(s.tree)
	}
	for i, w := range s.spec.Writes {
		if err := attach(s.writes[i], w.Dir); err != nil {
			return err
		}
		for _, name := range w.Locked {
			if err := sandbox.Lock(unix.AT_FDCWD, w.Dir+"/"+name, "/dev/null"); err != nil {
				return fmt.Errorf("cannot make %s in %s read-only: %w", name, w.Dir, err)
			}
		}
	}
	return nil
}

// covered reports whether a directory is a private one, or in one.
func (s *stage) covered(dir string) bool {
	return slices.ContainsFunc(privateIn(s.row), func(d string) bool { return within(dir, d) })
}

// changes reports whether a directory is one that the command may change, or in one.
func (s *stage) changes(dir string) bool {
	return slices.ContainsFunc(s.spec.Writes, func(w place) bool { return within(dir, w.Dir) })
}

func attach(tree int, dir string) error {
	if err := makeDirs(dir); err != nil {
		return err
	}
	return sandbox.Attach(tree, dir)
}

// makeDirs makes what is missing of a path. That is so below a private directory alone.
func makeDirs(dir string) error {
	if err := unix.Access(dir, unix.F_OK); err == nil || dir == "/" {
		return nil
	}
	if err := makeDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return nil
}

func mountFresh(fstype, path string, attr int, options ...string) error {
	m, err := sandbox.Fresh(fstype, attr, options...)
	if err != nil {
		return fmt.Errorf("cannot mount %s: %w", path, err)
	}
	return sandbox.Attach(m, path)
}

// mount is a line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	point   string
	options []string
}

func readMounts(path string) (all []mount, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 {
			return nil, fmt.Errorf("cannot understand %q in %s", line, path)
		}
		all = append(all, mount{plain.Replace(f[4]), strings.Split(f[5], ",")})
	}
	return all, nil
}
