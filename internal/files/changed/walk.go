// Package changed lists what was changed in a tree since a moment, by the time that the kernel keeps of each change of an inode
// (ctime), which no program can set. It knows nothing of git, and so sees what git ignores.
//
// It follows no link and opens nothing but directories. It must not change anything, or say what a change means.
package changed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is a file that was changed, or a link, a FIFO, a socket or a device. Directories are not among them.
type Entry struct {
	// Path is relative to the top, with slashes.
	Path string
	// Mode is that of stat(2), with the type.
	Mode uint32
	// Links is how many names it has, at any place of its file system.
	Links uint32
	// Size is in bytes.
	Size int64
	// Target is where a link leads, as it is written.
	Target string
}

// Bounds of a walk.
const (
	// MaxEntries is how many entries are listed; the others are counted.
	MaxEntries = 100_000
	// maxDepth is how deep directories are entered. A command can make deeper ones.
	maxDepth = 512
)

// Walk lists what was changed in an open directory since a moment, sorted by path, and how many more there are. skip says of a
// directory, by its path, that it is not to be entered. Directories that cannot be read are listed in unread: a command
// may have closed them. more counts what is over MaxEntries, or too deep.
func Walk(ctx context.Context, top *os.File, since time.Time, skip func(path string) bool) (
	list []Entry, unread []string, more int, err error,
) {
	w := &walk{since: since.UnixNano(), skip: skip}
	if err := w.begin(ctx, top); err != nil {
		return nil, nil, 0, fmt.Errorf("cannot look for changes in %s: %w", top.Name(), err)
	}
	slices.SortFunc(w.list, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(w.unread)
	return w.list, w.unread, w.more, nil
}

// Names lists the paths in an open directory that match, directories among them, sorted. No file is looked at but for its name, and
// what is in a directory that matches is not listed. more is as of Walk.
func Names(ctx context.Context, top *os.File, skip, match func(path string) bool) (paths []string, more int, err error) {
	w := &walk{skip: skip, match: match}
	if err := w.begin(ctx, top); err != nil {
		return nil, 0, fmt.Errorf("cannot look for names in %s: %w", top.Name(), err)
	}
	for _, e := range w.list {
		paths = append(paths, e.Path)
	}
	slices.Sort(paths)
	return paths, w.more + len(w.unread), nil
}

// dir is an open directory to look into.
type dir struct {
	fd    int
	path  string // with a slash at its end, but for the top
	depth int
}

// maxOpen is how many directories wait open; others are looked into at once, which takes a stack.
const maxOpen = 128

type walk struct {
	since int64
	skip  func(string) bool
	// match is for names, without their files.
	match func(string) bool

	mu      sync.Mutex
	idle    *sync.Cond
	todo    []dir
	working int
	list    []Entry
	unread  []string
	more    int
}

// begin looks into the top and all below it.
func (w *walk) begin(ctx context.Context, top *os.File) error {
	w.idle = sync.NewCond(&w.mu)
	rc, err := top.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) {
		var own int
		if own, err = unix.Openat(int(fd), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			w.todo = []dir{{fd: own}}
			w.run(ctx)
		}
	})
	return errors.Join(cerr, err, ctx.Err())
}

// run looks into directories until none is left.
func (w *walk) run(ctx context.Context) {
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			v := visitor{walk: w, buf: make([]byte, 64<<10)}
			for {
				d, ok := w.next(ctx)
				if !ok {
					return
				}
				v.visit(ctx, d)
				w.done(&v)
			}
		})
	}
	all.Wait()
}

func (w *walk) next(ctx context.Context) (dir, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.todo) == 0 && w.working > 0 && ctx.Err() == nil {
		w.idle.Wait()
	}
	if len(w.todo) == 0 || ctx.Err() != nil {
		for _, d := range w.todo {
			unix.Close(d.fd)
		}
		w.todo = nil
		w.idle.Broadcast()
		return dir{}, false
	}
	d := w.todo[len(w.todo)-1]
	w.todo = w.todo[:len(w.todo)-1]
	w.working++
	return d, true
}

func (w *walk) done(v *visitor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.working--
	room := MaxEntries - len(w.list)
	w.more += v.more + max(0, len(v.list)-room)
	w.list = append(w.list, v.list[:min(room, len(v.list))]...)
	w.unread = append(w.unread, v.unread...)
	v.list, v.unread, v.more = nil, nil, 0
	w.idle.Broadcast()
}

// offer leaves a directory to whoever is free, unless many wait.
func (w *walk) offer(d dir) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.todo) >= maxOpen {
		return false
	}
	w.todo = append(w.todo, d)
	w.idle.Signal()
	return true
}

// visitor is one goroutine's part.
type visitor struct {
	*walk

	buf    []byte
	list   []Entry
	unread []string
	more   int
}

// maxUnread is how many directories that cannot be read are named.
const maxUnread = 100

// visit looks at all that is in a directory, and closes it.
func (v *visitor) visit(ctx context.Context, d dir) {
	defer unix.Close(d.fd)
	var below []string
	for ctx.Err() == nil {
		n, err := unix.ReadDirent(d.fd, v.buf)
		if err != nil {
			v.closed(d.path)
			break
		}
		if n == 0 {
			break
		}
		for rest := v.buf[:n]; len(rest) > 0; {
			name, kind, next := dirent(rest)
			rest = rest[next:]
			if name == "." || name == ".." {
				continue
			}
			if v.match != nil && v.match(d.path+name) {
				v.list = append(v.list, Entry{Path: d.path + name})
				continue
			}
			if kind == unix.DT_DIR {
				below = append(below, name)
			} else if v.match != nil && kind != unix.DT_UNKNOWN {
				continue
			} else if kind = v.look(d, name); kind == unix.DT_DIR { // of a file system that names no types
				below = append(below, name)
			}
		}
	}
	for _, name := range below {
		v.enter(ctx, d, name)
	}
}

func (v *visitor) closed(path string) {
	if len(v.unread) < maxUnread {
		v.unread = append(v.unread, strings.TrimSuffix(path, "/"))
	} else {
		v.more++
	}
}

func (v *visitor) enter(ctx context.Context, d dir, name string) {
	path := d.path + name
	if v.skip != nil && v.skip(path) {
		return
	}
	if d.depth >= maxDepth {
		v.more++
		return
	}
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return // it has just gone
	case err != nil:
		v.closed(path)
		return
	}
	in := dir{fd, path + "/", d.depth + 1}
	if !v.offer(in) {
		v.visit(ctx, in)
	}
}

// look lists an entry that is new enough, and returns its type.
func (v *visitor) look(d dir, name string) (kind uint8) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unix.DT_UNKNOWN
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.DT_DIR
	}
	if v.match != nil || st.Ctim.Nano() < v.since {
		return unix.DT_UNKNOWN
	}
	e := Entry{Path: d.path + name, Mode: st.Mode, Links: uint32(st.Nlink), Size: st.Size}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		var to [unix.PathMax]byte
		if n, err := unix.Readlinkat(d.fd, name, to[:]); err == nil {
			e.Target = string(to[:n])
		}
	}
	v.list = append(v.list, e)
	return unix.DT_UNKNOWN
}

// dirent reads the first of a list of linux_dirent64: inode, offset, length, type and name (getdents(2)).
func dirent(b []byte) (name string, kind uint8, next int) {
	const header = 8 + 8 + 2 + 1
	next = int(binary.NativeEndian.Uint16(b[16:]))
	n := slices.Index(b[header:next], 0)
	return string(b[header : header+n]), b[18], next
}
