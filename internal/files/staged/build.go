package staged

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// builder makes trees from nodes. It keeps the directory open that it made something in last.
type builder struct {
	in   folder // the directory that paths begin at
	at   folder
	path string // of at
	ok   bool   // at is open
	buf  []byte
}

func (b *builder) close() {
	if b.ok {
		b.at.close()
	}
	b.ok = false
}

// parent opens the directory of a path and returns the last name.
func (b *builder) parent(p string) (d folder, base string, err error) {
	dir, base := split(p)
	if b.ok && b.path == dir {
		return b.at, base, nil
	}
	b.close()
	if b.at, err = b.in.via(dir); err != nil {
		return folder{-1}, base, err
	}
	b.path, b.ok = dir, true
	return b.at, base, nil
}

// build makes a tree of which the top is called top, a path that is not there yet. Nodes come after the directories that they
// are in. old, if not "", is the path of the file that it replaces. It returns what was made.
func (b *builder) build(top string, nodes []node, from source, old string) ([]item, error) {
	items := make([]item, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		items[i].Rel, items[i].Target = name(n.rel), name(n.target)
		if err := b.make(join(top, n.rel), n, source{from.in, join(from.path, n.rel)}, old); err != nil {
			return nil, fmt.Errorf("%q: %w", join(top, n.rel), err)
		}
	}
	// Directories get their modes when all is in them, the innermost first.
	for i := len(nodes) - 1; i >= 0; i-- {
		if err := b.settle(join(top, nodes[i].rel), &nodes[i], &items[i]); err != nil {
			return nil, fmt.Errorf("%q: %w", join(top, nodes[i].rel), err)
		}
	}
	return items, nil
}

// make makes one node.
func (b *builder) make(p string, n *node, from source, old string) error {
	d, base, err := b.parent(p)
	if err != nil {
		return err
	}
	if err := step("make " + base); err != nil {
		return err
	}
	switch n.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return unix.Mkdirat(d.fd, base, 0o700)
	case unix.S_IFLNK:
		return b.link(d, base, n)
	case unix.S_IFREG:
		return b.file(d, base, n, from, old)
	}
	return errIrregular
}

func (b *builder) link(d folder, base string, n *node) error {
	if err := unix.Symlinkat(n.target, d.fd, base); err != nil {
		return err
	}
	if err := own(n, func(uid, gid int) error { return unix.Fchownat(d.fd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return err
	}
	return touch(d, base, n)
}

// own gives what was made its owner. Without root it has the only one that it can have.
func own(n *node, chown func(uid, gid int) error) error {
	if n.uid < 0 || os.Geteuid() != 0 && n.uid == os.Geteuid() && n.gid == os.Getegid() {
		return nil
	}
	if err := chown(n.uid, n.gid); err != nil {
		return fmt.Errorf("its owner %d and group %d cannot be kept; have its owner change it: %w", n.uid, n.gid, err)
	}
	return nil
}

// touch gives what was made its time.
func touch(d folder, base string, n *node) error {
	if n.mtime == nil {
		return nil
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(n.mtime[0]*1e9 + n.mtime[1])}
	return unix.UtimesNanoAt(d.fd, base, times, unix.AT_SYMLINK_NOFOLLOW)
}

// file makes a regular file. It is open to nobody else until it has its owner.
func (b *builder) file(d folder, base string, n *node, from source, old string) error {
	fd, err := d.open(base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if err := b.fill(f, n, from); err != nil {
		return err
	}
	if err := own(n, func(uid, gid int) error { return unix.Fchown(fd, uid, gid) }); err != nil {
		return err
	}
	switch {
	case n.attrs == sourceAttrs:
		err = keepAttrs(from, fd)
	case n.attrs == oldAttrs && old != "":
		err = keepAttrs(source{b.in, old}, fd)
	}
	if err != nil {
		return err
	}
	// After the owner and the access list, which both change it.
	if err := unix.Fchmod(fd, n.mode&0o7777); err != nil {
		return err
	}
	return touch(d, base, n)
}

// fill writes the content of a file.
func (b *builder) fill(f *os.File, n *node, from source) error {
	if n.content != nil {
		_, err := f.Write(n.content)
		return err
	}
	src, err := from.in.file(from.path)
	if err != nil {
		return err
	}
	defer src.Close()
	// A small file takes one read and one write. To have the kernel copy it, or to reserve memory, takes longer.
	if b.buf == nil {
		b.buf = make([]byte, 64<<10)
	}
	got, err := io.ReadFull(src, b.buf)
	if got > 0 {
		if _, err := f.Write(b.buf[:got]); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	if err == nil {
		_, err = io.Copy(f, io.LimitReader(src, maxApply))
	}
	return err
}

// keepAttrs gives an open file the extended attributes of another one.
func keepAttrs(from source, fd int) error {
	src, err := from.in.file(from.path)
	if err != nil {
		return err
	}
	defer src.Close()
	rc, err := src.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(s uintptr) { err = patch.KeepAttrs(int(s), fd) })
	return errors.Join(cerr, err)
}

// settle gives a directory its owner and mode, and notes what was made. Set-group-id, which a new directory gets from the one
// that it is in, stays.
func (b *builder) settle(p string, n *node, i *item) error {
	d, base, err := b.parent(p)
	if err != nil {
		return err
	}
	if n.mode&unix.S_IFMT == unix.S_IFDIR {
		sub, err := d.sub(base)
		if err != nil {
			return err
		}
		defer sub.close()
		st, err := sub.self()
		if err != nil {
			return err
		}
		if err := own(n, func(uid, gid int) error { return unix.Fchown(sub.fd, uid, gid) }); err != nil {
			return err
		}
		if err := unix.Fchmod(sub.fd, n.mode&0o7777|st.Mode&unix.S_ISGID); err != nil {
			return err
		}
	}
	var there bool
	if i.Stamp, there, err = d.stat(base); err == nil && !there {
		err = stale("another process removed it while it was made")
	}
	return err
}

// matches says how a tree differs from what it was, "" if it does not. renamed: its top was renamed since.
func matches(d folder, base string, items []item, renamed bool) (why string, err error) {
	inDirs := map[string]int{}
	for _, i := range items {
		if i.Rel != "" {
			inDirs[path.Dir(string(i.Rel))]++
		}
	}
	for _, i := range items {
		rel := join(base, string(i.Rel))
		if why, err := i.matches(d, rel, renamed && i.Rel == ""); why != "" || err != nil {
			return why, err
		}
		if !i.Stamp.isDir() {
			continue
		}
		key := string(i.Rel)
		if key == "" {
			key = "."
		}
		n, err := count(d, rel, inDirs[key])
		if err != nil {
			return "", err
		}
		if n != inDirs[key] {
			return "another process made or removed something in it", nil
		}
	}
	return "", nil
}

// matches says how one file differs from what it was.
func (i *item) matches(d folder, rel string, renamed bool) (why string, err error) {
	dir, base := split(rel)
	at := d
	if dir != "" {
		at, err = d.via(dir)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return "another process removed it", nil
		}
		if err != nil {
			return "", err
		}
		defer at.close()
	}
	s, there, err := at.stat(base)
	switch {
	case err != nil:
		return "", err
	case !there:
		return "another process removed it", nil
	case !i.Stamp.unchanged(s, renamed):
		return "another process changed it", nil
	}
	return "", nil
}

// count counts the names in a directory, up to one more than expected.
func count(d folder, rel string, most int) (n int, err error) {
	sub, err := d.sub(rel)
	if err != nil {
		return 0, err
	}
	defer sub.close()
	err = sub.each(func(string) error {
		if n++; n > most {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return n, err
}

var errEnough = errors.New("enough")
