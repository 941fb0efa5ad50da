package patch

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// step is called before each operation that changes something on disk. Tests end the process there, or have it fail.
var step = func(string) error { return nil }

// A transaction is a directory in the caller's, named by its id. While it runs it has a journal. Afterwards it has a
// record, from which it can be undone, or nothing is left of it.
//
//	preparing   directories, backups and temporary files are made     a crash: they are removed
//	committing  names are exchanged, one file after the other         a crash: the rest follows, or all go back
//	undoing     names are exchanged back                              a crash: the rest follows
//	done        the old files are removed                             a crash: the rest follows
type state string

const (
	preparing  state = "preparing"
	committing state = "committing"
	undoing    state = "undoing"
	done       state = "done"
)

// Files of a transaction's directory. Backups are numbers.
const (
	journalFile  = "journal.json"
	recordFile   = "record.json"   // it is done and can be undone
	undoneFile   = "undone.json"   // the record of one that was undone
	conflictFile = "conflict.json" // a file changed meanwhile, and was left as it is
	newSuffix    = ".new"
	maxJournal   = 256 << 20
	version      = 1
)

// action is what is done to one name.
type action string

const (
	create  action = "create"
	replace action = "replace"
	remove  action = "remove"
)

// entry is one name of a transaction.
type entry struct {
	// Name is what the patch calls the file.
	Name   string `json:"name"`
	Place  place  `json:"place"`
	Action action `json:"action"`
	// Temp is a name beside the file: of the new content before the exchange, of the old one after it.
	Temp string `json:"temp"`
	// Old and New are digests of the content, "" without one.
	Old string `json:"old"`
	New string `json:"new"`
	// Before is the old file's, and After the new one's; its Attrs are not kept.
	Before *meta `json:"before,omitempty"`
	After  *meta `json:"after,omitempty"`
	// Backup is the file with the old content.
	Backup string `json:"backup"`
}

// journal is what is known of a transaction.
type journal struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	State   state  `json:"state"`
	// Undoes is the id of a transaction that this one undoes.
	Undoes string `json:"undoes,omitempty"`
	// Made are directories that it makes, the outermost first, and Unmade those that it removes if they are empty then.
	Made    []place `json:"made,omitempty"`
	Unmade  []place `json:"unmade,omitempty"`
	Entries []entry `json:"entries"`
}

func newID() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	return "p-" + hex.EncodeToString(b)
}

func isID(s string) bool {
	return len(s) == 18 && strings.HasPrefix(s, "p-") && strings.Trim(s[2:], "0123456789abcdef") == ""
}

// store is the caller's directory, locked.
type store struct {
	root *os.Root
	lock int
}

// lockWait is how long a change waits for another one, which takes its time for as long as files are written.
var lockWait = 10 * time.Second

// locked locks a directory, if need be once it is free.
func locked(fd int) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Since(began) >= lockWait {
			return err
		}
	}
}

// openStore opens and locks a directory of transactions. It must belong to the caller alone.
func openStore(dir string) (s *store, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory %q for journals: %w; make it with mode 0700", dir, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot look at the directory %q: %w", dir, err)
	}
	// The id by which the kernel judges what this process does with files: inside a workspace it is not the process's own.
	me, err := unix.SetfsuidRetUid(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot tell the id that files are made with: %w", err)
	}
	if st.Mode&0o077 != 0 || st.Uid != uint32(me) {
		return nil, fmt.Errorf("cannot keep journals in %q: it must belong to you alone, and has mode %04o and the owner %d; "+
			"use a directory with mode 0700: %w", dir, st.Mode&0o7777, st.Uid, errdefs.ErrPermissionDenied)
	}
	if err := locked(fd); err != nil {
		return nil, fmt.Errorf("cannot work with the journals in %q: another change is under way; try again: %w", dir,
			errors.Join(err, errdefs.ErrUnavailable))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory %q: %w", dir, err)
	}
	return &store{root, fd}, nil
}

func (s *store) close() {
	_ = s.root.Close()
	_ = unix.Close(s.lock)
}

// ids lists the transactions that are there.
func (s *store) ids() ([]string, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	var all []string
	for _, n := range names {
		if isID(n) {
			all = append(all, n)
		}
	}
	return all, err
}

// has reports whether a transaction has a file.
func (s *store) has(id, name string) bool {
	_, err := s.root.Lstat(path.Join(id, name))
	return err == nil
}

// load reads a journal or record, nil if there is none.
func (s *store) load(id, name string) (*journal, error) {
	f, err := s.open(path.Join(id, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the journal %s/%s: %w", id, name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxJournal))
	if err != nil {
		return nil, err
	}
	j := &journal{}
	if err := strictjson.Unmarshal(b, j); err != nil {
		return nil, fmt.Errorf("cannot read the journal %s/%s: %w: %w", id, name, err, errdefs.ErrDataLoss)
	}
	if j.Version != version || j.ID != id {
		return nil, fmt.Errorf("cannot use the journal %s/%s: it has version %d and id %.40q: %w", id, name, j.Version, j.ID,
			errdefs.ErrFailedPrecondition)
	}
	return j, nil
}

// save writes the journal so that after a crash there is the one before or this one.
func (s *store) save(j *journal) error {
	b, err := json.Marshal(j)
	if err == nil {
		err = s.write(path.Join(j.ID, journalFile+newSuffix), b)
	}
	if err == nil {
		err = s.rename(j.ID, journalFile+newSuffix, journalFile)
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal of %s: %w", j.ID, err)
	}
	return nil
}

// write writes a file and waits until it is on disk.
func (s *store) write(name string, b []byte) error {
	if err := step("write " + path.Base(name)); err != nil {
		return err
	}
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := step("sync " + path.Base(name)); err != nil {
		return err
	}
	return f.Sync()
}

// rename renames a file of a transaction, and waits until that is on disk.
func (s *store) rename(id, from, to string) error {
	if err := step("rename " + to); err != nil {
		return err
	}
	if err := s.root.Rename(path.Join(id, from), path.Join(id, to)); err != nil {
		return err
	}
	return s.sync(id)
}

// open opens a file to be read. In a workspace its directory is one in which others may write: what is a pipe, on which nobody is to wait,
// or a link is an error.
func (s *store) open(name string) (*os.File, error) { return openFile(s.root, name) }

func openFile(root *os.Root, name string) (*os.File, error) {
	named, err := root.Lstat(name) // a root follows the links inside it
	if err != nil {
		return nil, err
	}
	no := fmt.Errorf("%s is no regular file; remove it: %w", name, errdefs.ErrFailedPrecondition)
	if !named.Mode().IsRegular() {
		return nil, no
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	i, err := f.Stat()
	if err == nil && (!i.Mode().IsRegular() || !os.SameFile(named, i)) {
		err = no
	}
	if err != nil {
		_ = f.Close() // it was to be read
		return nil, err
	}
	return f, nil
}

// openDir opens a directory; what is none is an error at once.
func (s *store) openDir(name string) (*os.File, error) {
	return s.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// sync waits until the names of a directory are on disk.
func (s *store) sync(dir string) error {
	if err := step("sync " + dir); err != nil {
		return err
	}
	d, err := s.openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// make makes the directory of a transaction.
func (s *store) make(id string) error {
	if err := step("make the transaction"); err != nil {
		return err
	}
	if err := s.root.Mkdir(id, 0o700); err != nil {
		return err
	}
	return s.sync(".")
}

// drop removes a transaction: what says of it that it is there comes first or last, so that half of it is never taken
// for a whole one.
func (s *store) drop(id string) error {
	for _, name := range []string{recordFile, undoneFile, conflictFile} {
		if err := s.unlink(id, name); err != nil {
			return err
		}
	}
	d, err := s.openDir(id)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		if n != journalFile {
			if err := s.unlink(id, n); err != nil {
				return err
			}
		}
	}
	if err := s.unlink(id, journalFile); err != nil {
		return err
	}
	if err := step("remove the transaction"); err != nil {
		return err
	}
	if err := s.root.Remove(id); err != nil {
		return err
	}
	return s.sync(".")
}

func (s *store) unlink(id, name string) error {
	if !s.has(id, name) {
		return nil
	}
	if err := step("unlink " + name); err != nil {
		return err
	}
	return s.root.Remove(path.Join(id, name))
}
