// Package shelf keeps archives as files: each is written under a name of its own, summed
// as it is written, and put in its place only when it is whole and on disk. What a crash
// left half written is removed at the next start.
//
// It must not look into an archive, and it does not know whose it is.
package shelf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	suffix = ".tar.zst"
	draft  = ".part"
)

// Shelf is the open directory. Its methods may be called from any goroutine.
type Shelf struct{ root *os.Root }

// Open opens or makes the directory, mode 0700, and removes drafts of an earlier run.
func Open(dir string) (*Shelf, error) {
	fail := func(err error) (*Shelf, error) {
		return nil, fmt.Errorf("cannot open the archives in %s: %w", dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fail(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fail(err)
	}
	s := &Shelf{root: root}
	names, err := s.names()
	for _, n := range names {
		if err == nil && strings.HasSuffix(n, draft) {
			err = root.Remove(n)
		}
	}
	if err != nil {
		root.Close()
		return fail(err)
	}
	return s, nil
}

// Close lets go of the directory.
func (s *Shelf) Close() error { return s.root.Close() }

func (s *Shelf) names() ([]string, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// IDs lists what is in its place.
func (s *Shelf) IDs() ([]string, error) {
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
	s    *Shelf
	id   string
	file *os.File
	sum  hash.Hash
	size int64
}

// Create begins the archive with that id, one path component. already_exists: there is
// one.
func (s *Shelf) Create(id string) (*Draft, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' {
		return nil, fmt.Errorf("cannot write archive %q: that is no name: %w", id, errdefs.ErrInvalidArgument)
	}
	if _, err := s.root.Lstat(id + suffix); err == nil {
		return nil, fmt.Errorf("cannot write archive %s: it is there: %w", id, errdefs.ErrAlreadyExists)
	}
	f, err := s.root.OpenFile(id+draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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

// Commit puts the archive in its place once it is on disk, and returns its SHA-256 in
// hexadecimal and its size.
func (d *Draft) Commit() (sum string, size int64, err error) {
	err = d.file.Sync()
	if e := d.file.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = d.s.root.Rename(d.id+draft, d.id+suffix)
	}
	if err == nil {
		err = d.s.sync()
	}
	d.file = nil
	if err != nil {
		_ = d.s.root.Remove(d.id + draft) // what is left of it goes at the next start
		return "", 0, fmt.Errorf("cannot put archive %s in its place: %w", d.id, err)
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
	_ = d.s.root.Remove(d.id + draft) // or at the next start
}

// sync makes names durable.
func (s *Shelf) sync() error {
	d, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Open opens an archive for reading.
func (s *Shelf) Open(id string) (*os.File, error) {
	f, err := s.root.Open(filepath.Base(id) + suffix)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read archive %s: its file is gone: %w", id, errdefs.ErrDataLoss)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read archive %s: %w", id, err)
	}
	return f, nil
}

// Remove removes an archive; one that is not there is no error.
func (s *Shelf) Remove(id string) error {
	err := s.root.Remove(filepath.Base(id) + suffix)
	if err == nil {
		err = s.sync()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove archive %s: %w", id, err)
	}
	return nil
}
