package staged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// step is called before each operation that changes something on disk. Tests end the process there, or have it fail.
var step = func(string) error { return nil }

// A transaction is a directory in the caller's, named by its number. What it has says how far it is; each file is whole or
// not there:
//
//	plan    new files are made beside the old ones                       a crash: they are removed
//	made    names are exchanged, one after the other                     a crash: they are exchanged back
//	commit  the old files go to the directory "old"                      a crash: the rest follows
//	done    it can be undone                                             a crash: plan, made and commit are removed
//	conflict  it was taken back, but for what other processes changed    it is for a person to look at
const (
	planFile     = "plan"
	madeFile     = "made"
	commitFile   = "commit"
	doneFile     = "done"
	conflictFile = "conflict"
	oldDir       = "old"
	newSuffix    = ".new"
	idPrefix     = "t-"
	// dropPrefix begins the names of transactions that are being removed, and ownFile has what Apply and Undo did themselves.
	dropPrefix = "x-"
	ownFile    = "own"
	maxJournal = 1 << 30
)

// store is the directory of transactions, locked.
type store struct {
	dir folder
	f   *os.File
}

// lockWait is how long a change waits for another one.
var lockWait = 10 * time.Second

// openStore opens and locks a directory of transactions, for which it waits. It must belong to the caller alone.
func openStore(path string, wait time.Duration) (*store, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory %q for journals: %w; make it with mode 0700", path, err)
	}
	s := &store{folder{fd}, os.NewFile(uintptr(fd), path)}
	if err := s.claim(path, wait); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// claim checks that the directory is the caller's alone, and locks it.
func (s *store) claim(path string, wait time.Duration) error {
	st, err := s.dir.self()
	if err != nil {
		return fmt.Errorf("cannot look at the directory %q: %w", path, err)
	}
	if st.Mode&0o077 != 0 || int(st.UID) != os.Geteuid() {
		return fmt.Errorf("cannot keep journals in %q: it must belong to you alone, and has mode %04o and the owner %d; "+
			"use a directory with mode 0700: %w", path, st.Mode&0o7777, st.UID, errdefs.ErrPermissionDenied)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(s.dir.fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Since(began) >= wait {
			return fmt.Errorf("cannot work with the journals in %q: another change is under way; try again: %w", path,
				errors.Join(err, errdefs.ErrUnavailable))
		}
	}
}

func (s *store) close() { s.f.Close() }

// number is that of a transaction's directory, 0 for any other name.
func number(name, prefix string) int {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n <= 0 || idOf(n) != idPrefix+digits {
		return 0
	}
	return n
}

func idOf(n int) string { return fmt.Sprintf("%s%06d", idPrefix, n) }

// ids lists the transactions, the oldest first, and removes the rest of those that were being removed.
func (s *store) ids(ctx context.Context) (ids []string, next string, err error) {
	last := 0
	var dropped []string
	err = s.dir.each(func(name string) error {
		if n := number(name, idPrefix); n > 0 {
			ids, last = append(ids, name), max(last, n)
		} else if n := number(name, dropPrefix); n > 0 {
			dropped, last = append(dropped, name), max(last, n)
		}
		return nil
	})
	for _, name := range dropped {
		err = errors.Join(err, removal.Remove(ctx, s.f, name))
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot list the journals: %w", err)
	}
	slices.Sort(ids)
	return ids, idOf(last + 1), nil
}

// has reports whether a transaction has a file.
func (s *store) has(id, name string) bool {
	d, err := s.dir.via(id)
	if err != nil {
		return false
	}
	defer d.close()
	_, there, err := d.stat(name)
	return err == nil && there
}

// put writes a file of a transaction, or of the store itself if id is "", so that after a crash there is the one before or this.
func (s *store) put(id, name string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = s.write(id, name, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal %s/%s: %w", id, name, err)
	}
	return nil
}

func (s *store) write(id, name string, b []byte) error {
	d, err := s.dir.sub(id)
	if err != nil {
		return err
	}
	defer d.close()
	if err := step("write " + name); err != nil {
		return err
	}
	fd, err := d.open(name+newSuffix, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := step("rename " + name); err != nil {
		return err
	}
	if err := unix.Renameat(d.fd, name+newSuffix, d.fd, name); err != nil {
		return err
	}
	if err := step("sync " + name); err != nil {
		return err
	}
	return unix.Fsync(d.fd)
}

// load reads a file that put wrote.
func (s *store) load(id, name string, v any) error {
	f, err := s.dir.file(join(id, name))
	if err != nil {
		return fmt.Errorf("cannot read the journal %s/%s: %w", id, name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxJournal))
	if err != nil {
		return fmt.Errorf("cannot read the journal %s/%s: %w", id, name, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("cannot read the journal %s/%s: %w: %w", id, name, err, errdefs.ErrDataLoss)
	}
	return nil
}

// make makes the directory of a transaction.
func (s *store) make(id string) error {
	if err := step("make the transaction"); err != nil {
		return err
	}
	if err := unix.Mkdirat(s.dir.fd, id, 0o700); err != nil {
		return fmt.Errorf("cannot begin a journal: %w", err)
	}
	d, err := s.dir.via(id)
	if err != nil {
		return err
	}
	defer d.close()
	if err := unix.Mkdirat(d.fd, oldDir, 0o700); err != nil {
		return err
	}
	return unix.Fsync(s.dir.fd)
}

// unlink removes a file of a transaction.
func (s *store) unlink(id string, names ...string) error {
	d, err := s.dir.sub(id)
	if err != nil {
		return err
	}
	defer d.close()
	for _, name := range names {
		if err := step("unlink " + name); err != nil {
			return err
		}
		if err := unix.Unlinkat(d.fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return unix.Fsync(d.fd)
}

// drop removes a transaction. It gets another name first, so that half of it is never taken for a whole one.
func (s *store) drop(ctx context.Context, id string) error {
	if err := step("drop " + id); err != nil {
		return err
	}
	name := dropPrefix + strings.TrimPrefix(id, idPrefix)
	err := unix.Renameat2(s.dir.fd, id, s.dir.fd, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = unix.Fsync(s.dir.fd)
	}
	if err == nil {
		err = step("remove " + id)
	}
	if err != nil {
		return err
	}
	return removal.Remove(ctx, s.f, name)
}

// mark tells a state of a file that Apply or Undo made and that counts as older than the run.
type mark struct {
	Ino   uint64   `json:"ino"`
	CTime [2]int64 `json:"ctime"`
}

// inodes has the last mark of each inode, so that they hold for all names of a file.
type inodes map[uint64][2]int64

func (in inodes) note(s stamp) { in[s.Ino] = s.CTime }

func (in inodes) has(s stamp) bool {
	t, ok := in[s.Ino]
	return ok && t == s.CTime
}

// own reads what Apply and Undo did themselves.
func (s *store) own() (inodes, error) {
	all := inodes{}
	if _, there, err := s.dir.stat(ownFile); err != nil || !there {
		return all, err
	}
	var list []mark
	err := s.load("", ownFile, &list)
	for _, m := range list {
		all[m.Ino] = m.CTime
	}
	return all, err
}

// putOwn writes what own reads.
func (s *store) putOwn(all inodes) error {
	list := make([]mark, 0, len(all))
	for ino, t := range all {
		list = append(list, mark{ino, t})
	}
	return s.put("", ownFile, list)
}
