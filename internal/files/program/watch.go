package program

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const (
	// maxWatched bounds the directories that one watch has.
	maxWatched = 8192
	// Events are gathered before they are sent, so that several on one name are one: settle long after a pause, as whoever
	// writes a file makes, writes and closes it in one go, and else until gather has passed since the last were sent.
	// maxPending is how many may wait: more are an overflow.
	settle     = 2 * time.Millisecond
	gather     = 50 * time.Millisecond
	maxPending = 2048

	watchMask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
		unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

type watcher struct {
	s     *served
	fd    int
	in    *os.File
	top   *filetree.Dir
	depth int
	paths map[int32]string
	wds   map[string]int32

	pending  []fileapi.Event
	index    map[string]int
	overflow bool
	gone     atomic.Bool
}

// watch tells what happens below a directory, until whoever asked is gone. The first message has no event: what
// happens from then on is told.
func (s *served) watch() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	d, err := s.dir(p, p.name)
	if err != nil {
		return s.explain("watch", p.shown, err)
	}
	defer d.Close()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return s.explain("watch", p.shown, fmt.Errorf("too many watches are open: %w: %w", err, errdefs.ErrResourceExhausted))
	}
	w := &watcher{
		s: s, fd: fd, in: os.NewFile(uintptr(fd), "inotify"), top: d, depth: fileapi.MaxDepth, paths: map[int32]string{}, wds: map[string]int32{},
		index: map[string]int{},
	}
	if s.req.Depth > 0 {
		w.depth = s.req.Depth
	}
	defer w.in.Close()
	go func() {
		_, _ = io.Copy(io.Discard, s.frames.R)
		w.gone.Store(true) // who asked is; the descriptor stays open, as it is used by its number
		_ = w.in.SetReadDeadline(time.Unix(1, 0))
	}()
	if err := w.add(d, "", 1, false); err != nil {
		return s.explain("watch", p.shown, err)
	}
	if err := s.out.JSON(fileapi.Changed, []fileapi.Event{}); err != nil {
		return err
	}
	return w.follow()
}

// add watches a directory and those in it. told: what is in them is new.
func (w *watcher) add(d *filetree.Dir, at string, level int, told bool) error {
	if len(w.paths) >= maxWatched {
		return fmt.Errorf("cannot watch more than %d directories: watch one of them, or less deep: %w", maxWatched, errdefs.ErrResourceExhausted)
	}
	wd, err := d.Watch(w.fd, watchMask)
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("cannot watch %d directories: the host allows no more; have fs.inotify.max_user_watches raised, or watch less: %w",
			len(w.paths)+1, errdefs.ErrResourceExhausted)
	}
	if err != nil {
		return err
	}
	w.paths[wd], w.wds[at] = at, wd
	if level >= w.depth && !told {
		return nil
	}
	names, cut, err := d.Names(1 << 30)
	if err != nil || cut {
		w.overflow = w.overflow || told || cut
		return nil
	}
	for _, name := range names {
		i, err := d.Stat(name)
		if err != nil {
			continue // it has gone, and that is told
		}
		in := path.Join(at, name)
		if told {
			w.note(fileapi.Event{Path: []byte(in), What: "create", Dir: i.Mode.IsDir()})
		}
		if !i.Mode.IsDir() || level >= w.depth {
			continue
		}
		sub, err := d.Sub(name)
		if err != nil {
			continue
		}
		err = w.add(sub, in, level+1, told)
		sub.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// drop forgets a directory that has gone, and those that were in it.
func (w *watcher) drop(at string) {
	for p, wd := range w.wds {
		if p == at || strings.HasPrefix(p, at+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
			delete(w.wds, p)
			delete(w.paths, wd)
		}
	}
}

// note keeps an event until it is sent. Several on one name are one: the last, except that what was made stays
// made when it is written to.
func (w *watcher) note(e fileapi.Event) {
	key := string(e.Path)
	if n, ok := w.index[key]; ok {
		if was := w.pending[n].What; was != "create" || e.What == "remove" {
			w.pending[n].What = e.What
		}
		return
	}
	if len(w.pending) >= maxPending {
		w.overflow = true
		return
	}
	w.index[key] = len(w.pending)
	w.pending = append(w.pending, e)
}

func (w *watcher) follow() error {
	buf := make([]byte, 64<<10)
	var sent time.Time
	for !w.gone.Load() { // looked at after each change of the deadline
		n, err := w.in.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil // nobody listens
		}
		if err != nil {
			return err
		}
		if err := w.take(buf[:n]); err != nil {
			return err
		}
		end := time.Now().Add(settle)
		if next := sent.Add(gather); next.After(end) {
			end = next
		}
		for {
			_ = w.in.SetReadDeadline(end)
			n, err := w.in.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			if err := w.take(buf[:n]); err != nil {
				return err
			}
		}
		_ = w.in.SetReadDeadline(time.Time{})
		if err := w.send(); err != nil {
			return err
		}
		sent = time.Now()
	}
	return nil
}

func (w *watcher) send() error {
	list := w.pending
	if w.overflow {
		list = append(list, fileapi.Event{What: "overflow"})
	}
	w.pending, w.overflow = nil, false
	clear(w.index)
	for len(list) > 0 {
		n, size := 0, 0
		for n < len(list) && size < batch {
			size += 2*len(list[n].Path) + 64
			n++
		}
		if err := w.s.out.JSON(fileapi.Changed, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// words are what masks mean, the first that fits.
var words = []struct {
	mask uint32
	word string
}{
	{unix.IN_DELETE | unix.IN_MOVED_FROM, "remove"},
	{unix.IN_CREATE | unix.IN_MOVED_TO, "create"},
	{unix.IN_MODIFY | unix.IN_CLOSE_WRITE, "write"},
	{unix.IN_ATTRIB, "attributes"},
}

// isUnnamed reports whether the kernel calls a file so that was opened without a name (O_TMPFILE), as new content is.
func isUnnamed(name string) bool {
	digits, ok := strings.CutPrefix(name, "#")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// take notes the events of one read: see inotify(7) for their form.
func (w *watcher) take(b []byte) error {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b[0:]))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		b = b[unix.SizeofInotifyEvent+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.overflow = true
			continue
		}
		at, known := w.paths[wd]
		if !known {
			continue
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(w.paths, wd)
			delete(w.wds, at)
			if at == "" {
				return fmt.Errorf("cannot watch any longer: the directory was removed: %w", errdefs.ErrNotFound)
			}
			continue
		}
		if name == "" || strings.HasPrefix(name, filetree.Part) ||
			mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_ATTRIB) != 0 && isUnnamed(name) {
			continue
		}
		if err := w.happened(path.Join(at, name), mask); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) happened(p string, mask uint32) error {
	dir := mask&unix.IN_ISDIR != 0
	for _, x := range words {
		if mask&x.mask == 0 {
			continue
		}
		w.note(fileapi.Event{Path: []byte(p), What: x.word, Dir: dir})
		if !dir {
			return nil
		}
		if x.word == "remove" {
			w.drop(p)
		}
		if x.word == "create" {
			return w.grown(p)
		}
		return nil
	}
	return nil
}

// grown watches a directory that is new.
func (w *watcher) grown(p string) error {
	level := 1
	d := w.top
	for name := range strings.SplitSeq(p, "/") {
		level++
		next, err := d.Sub(name)
		if d != w.top {
			d.Close()
		}
		if err != nil {
			return nil // it has gone again
		}
		d = next
	}
	defer d.Close()
	if level > w.depth {
		return nil
	}
	w.drop(p)
	err := w.add(d, p, level, true)
	if errdefs.IsResourceExhausted(err) {
		return err
	}
	return nil
}
