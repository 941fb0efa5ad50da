// Package archivestore keeps archives as files of one directory. An archive is hashed while it
// is written under a temporary name, and gets its final name only when all of it is on disk.
// Open removes what a crash left half written.
//
// It must not read the contents of an archive, and it does not know who owns one.
package archivestore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	suffix  = ".tar.zst"
	partial = ".part"
)

// Store is the directory, opened. Its methods may be called from any goroutine.
type Store struct{ root *os.Root }

// Open opens or makes the directory, mode 0700, and removes drafts of an earlier run.
func Open(dir string) (*Store, error) {
	fail := func(err error) (*Store, error) {
		return nil, fmt.Errorf("cannot open the archives in %s: %w", dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fail(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fail(err)
	}
	s := &Store{root: root}
	names, err := s.names()
	for _, n := range names {
		if err == nil && strings.HasSuffix(n, partial) {
			err = root.Remove(n)
		}
	}
	if err != nil {
		root.Close()
		return fail(err)
	}
	return s, nil
}

// Close closes the directory.
func (s *Store) Close() error { return s.root.Close() }

func (s *Store) names() ([]string, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// IDs lists the complete archives.
func (s *Store) IDs() ([]string, error) {
	names, err := s.names()
	if err != nil {
		return nil, fmt.Errorf("cannot list the archives: %w", err)
	}
	var ids []string
	for _, n := range names {
		if id, ok := strings.CutSuffix(n, suffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Draft is an archive that is being written.
type Draft struct {
	s    *Store
	id   string
	file *os.File
	sum  hash.Hash
	size int64
}

// Space returns the size of the file system of the directory and what a user may still write to
// it, in bytes.
func (s *Store) Space() (size, free int64, err error) {
	fail := func(err error) (int64, int64, error) {
		return 0, 0, fmt.Errorf("cannot learn how much space archives have: %w", err)
	}
	f, err := s.root.Open(".")
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var st unix.Statfs_t
	if cerr := rc.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &st) }); cerr != nil || err != nil {
		return fail(errors.Join(cerr, err))
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// Create begins the archive id, which must be one path component. If the archive exists the
// error is already_exists.
func (s *Store) Create(id string) (*Draft, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' {
		return nil, fmt.Errorf("cannot write archive %q: it is not a file name: %w", id, errdefs.ErrInvalidArgument)
	}
	if _, err := s.root.Lstat(id + suffix); err == nil {
		return nil, fmt.Errorf("cannot write archive %s: it already exists: %w", id, errdefs.ErrAlreadyExists)
	}
	f, err := s.root.OpenFile(id+partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot write archive %s: %w", id, err)
	}
	return &Draft{s: s, id: id, file: f, sum: sha256.New()}, nil
}

// Write implements io.Writer.
func (d *Draft) Write(p []byte) (int, error) {
	n, err := d.file.Write(p)
	d.sum.Write(p[:n])
	d.size += int64(n)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("%w: make room on the file system of the daemon's data: %w", err, errdefs.ErrResourceExhausted)
	}
	return n, err
}

// Commit syncs the archive, gives it its final name, and returns its SHA-256 in hexadecimal
// and its size.
func (d *Draft) Commit() (sum string, size int64, err error) {
	err = d.file.Sync()
	if e := d.file.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = d.s.root.Rename(d.id+partial, d.id+suffix)
	}
	if err == nil {
		err = d.s.sync()
	}
	d.file = nil
	if err != nil {
		_ = d.s.root.Remove(d.id + partial) // else the next Open removes it
		return "", 0, fmt.Errorf("cannot finish archive %s: %w", d.id, err)
	}
	return hex.EncodeToString(d.sum.Sum(nil)), d.size, nil
}

// Discard removes a draft. After Commit it does nothing.
func (d *Draft) Discard() {
	if d.file == nil {
		return
	}
	d.file.Close()
	d.file = nil
	_ = d.s.root.Remove(d.id + partial) // else the next Open removes it
}

// sync makes changes of names durable.
func (s *Store) sync() error {
	d, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Open opens an archive for reading.
func (s *Store) Open(id string) (*os.File, error) {
	f, err := s.root.Open(filepath.Base(id) + suffix)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read archive %s: its file is gone: %w", id, errdefs.ErrDataLoss)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read archive %s: %w", id, err)
	}
	return f, nil
}

// OpenFromDisk is Open for a reader that has to see what is on the disk: what the system has of the
// file in memory is dropped. A file system that is nothing but memory has nothing else.
func (s *Store) OpenFromDisk(id string) (*os.File, error) {
	f, err := s.Open(id)
	if err != nil {
		return nil, err
	}
	rc, err := f.SyscallConn()
	if err == nil {
		cerr := rc.Control(func(fd uintptr) { err = drop(int(fd)) })
		err = errors.Join(cerr, err)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot read archive %s from the disk: %w", id, err)
	}
	return f, nil
}

// dropTries and dropPause bound drop.
const (
	dropTries = 5
	dropPause = 10 * time.Millisecond
)

// drop drops what the system has of a file in memory. Pages that another part of the kernel holds at that moment
// stay, and where the kernel tells of them (Linux 6.5) drop tries again.
func drop(fd int) error {
	for range dropTries {
		if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
		var left unix.Cachestat_t
		if unix.Cachestat(uint(fd), &unix.CachestatRange{}, &left, 0) != nil || left.Cache == 0 {
			return nil
		}
		<-time.After(dropPause)
	}
	return nil
}

// Remove removes an archive. It is no error if there is none.
func (s *Store) Remove(id string) error {
	err := s.root.Remove(filepath.Base(id) + suffix)
	if err == nil {
		err = s.sync()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove archive %s: %w", id, err)
	}
	return nil
}
