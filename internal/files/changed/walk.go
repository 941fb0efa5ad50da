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

// Options say what a walk looks for. Both functions are called by several goroutines.
type Options struct {
	// Since is the moment since which changes are listed. The zero time is for names alone: no file is looked at.
	Since time.Time
	// Skip says of a directory, by its path, that it is not to be entered. nil enters all.
	Skip func(path string) bool
	// Match says of a path that its name is to be listed, whenever it was changed. What is in a directory that matches is not asked
	// about. A directory that was moved has old files in it, so that names are found by names alone.
	Match func(path string) bool
}

// Found is what a walk found, each list sorted.
type Found struct {
	Changed []Entry
	// Names are the paths that match, directories among them.
	Names []string
	// Unread are directories that cannot be read: a command may have closed them.
	Unread []string
	// More counts what is over MaxEntries of a list, or too deep.
	More int
}

// Walk looks into an open directory and all below it.
func Walk(ctx context.Context, top *os.File, o Options) (Found, error) {
	w := &walk{Options: o}
	if err := w.begin(ctx, top); err != nil {
		return Found{}, fmt.Errorf("cannot look for changes in %s: %w", top.Name(), err)
	}
	slices.SortFunc(w.found.Changed, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(w.found.Names)
	slices.Sort(w.found.Unread)
	return w.found, nil
}

// dir is an open directory to look into.
type dir struct {
	fd    int
	path  string // with a slash at its end, but for the top
	depth int
	named bool // it matches, or lies in one that does
}

// maxOpen is how many directories wait open; others are looked into at once, which takes a stack.
const maxOpen = 128

type walk struct {
	Options

	mu      sync.Mutex
	idle    *sync.Cond
	todo    []dir
	working int
	found   Found
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
	w.found.More += v.found.More + take(&w.found.Changed, v.found.Changed) + take(&w.found.Names, v.found.Names) +
		take(&w.found.Unread, v.found.Unread)
	v.found = Found{}
	w.idle.Broadcast()
}

// take adds to a list as much as it may have, and returns how much is left out.
func take[T any](list *[]T, more []T) int {
	n := min(MaxEntries-len(*list), len(more))
	*list = append(*list, more[:n]...)
	return len(more) - n
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

	buf   []byte
	found Found
}

// visit looks at all that is in a directory, and closes it.
func (v *visitor) visit(ctx context.Context, d dir) {
	defer unix.Close(d.fd)
	var below []dir // that are to be entered, with names for paths
	for ctx.Err() == nil {
		n, err := unix.ReadDirent(d.fd, v.buf)
		if err != nil {
			v.found.More += take(&v.found.Unread, []string{strings.TrimSuffix(d.path, "/")})
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
			named := d.named
			if !named && v.Match != nil && v.Match(d.path+name) {
				named = true
				v.found.More += take(&v.found.Names, []string{d.path + name})
			}
			if kind != unix.DT_DIR && (kind == unix.DT_UNKNOWN || !v.Since.IsZero()) {
				kind = v.look(d, name) // also for its type, which some file systems do not name
			}
			if kind == unix.DT_DIR && (!named || !v.Since.IsZero()) {
				below = append(below, dir{path: name, named: named})
			}
		}
	}
	for _, b := range below {
		v.enter(ctx, d, b.path, b.named)
	}
}

func (v *visitor) enter(ctx context.Context, d dir, name string, named bool) {
	path := d.path + name
	if v.Skip != nil && v.Skip(path) {
		return
	}
	if d.depth >= maxDepth {
		v.found.More++
		return
	}
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return // it has just gone
	case err != nil:
		v.found.More += take(&v.found.Unread, []string{path})
		return
	}
	in := dir{fd, path + "/", d.depth + 1, named}
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
	if v.Since.IsZero() || st.Ctim.Nano() < v.Since.UnixNano() {
		return unix.DT_UNKNOWN
	}
	e := Entry{Path: d.path + name, Mode: st.Mode, Links: uint32(st.Nlink), Size: st.Size}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		var to [unix.PathMax]byte
		if n, err := unix.Readlinkat(d.fd, name, to[:]); err == nil {
			e.Target = string(to[:n])
		}
	}
	v.found.More += take(&v.found.Changed, []Entry{e})
	return unix.DT_UNKNOWN
}

// dirent reads the first of a list of linux_dirent64: inode, offset, length, type and name (getdents(2)).
func dirent(b []byte) (name string, kind uint8, next int) {
	const header = 8 + 8 + 2 + 1
	next = int(binary.NativeEndian.Uint16(b[16:]))
	n := slices.Index(b[header:next], 0)
	return string(b[header : header+n]), b[18], next
}
