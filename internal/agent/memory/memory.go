// Package memory keeps what a person wants their agent to know in later sessions: a few notes, in a file of the person's own.
//
// Only a person writes them: nothing here is for an agent to call. Secrets that have a known shape are taken out before a note is
// kept. The notes are data to whoever reads them, and unlock nothing.
package memory

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/linux/wholefile"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// maxFile bounds the file, with every character escaped, in bytes.
const maxFile = workspace.MaxNotes * (6*workspace.MaxNote*utf8.UTFMax + 100)

// Note is one note. Its number is never given to another one.
type Note struct {
	Number int64  `json:"number"`
	Text   string `json:"text"`
}

// kept is the form of the file.
type kept struct {
	Last  int64  `json:"last"`
	Notes []Note `json:"notes"`
}

// List returns the notes in a file, the oldest first; none if there is no such file.
func List(file string) ([]Note, error) {
	k, err := read(file)
	return k.Notes, err
}

// Texts are the texts of the notes in a file.
func Texts(file string) ([]string, error) {
	all, err := List(file)
	var texts []string
	for _, n := range all {
		texts = append(texts, n.Text)
	}
	return texts, err
}

// Add keeps a note without the secrets that can be seen in it, and returns what was kept.
func Add(file, text string) (n Note, err error) {
	text = strings.TrimSpace(text)
	if err := workspace.CheckNote(text); err != nil {
		return n, err
	}
	if cut := redactor().Text(text); cut != text {
		// What stands for a secret may be longer than it.
		if text = cut; workspace.CheckNote(text) != nil {
			return n, fmt.Errorf("cannot keep the note: there is a secret in it; write it without: %w", errdefs.ErrInvalidArgument)
		}
	}
	return n, change(file, func(k *kept) error {
		if len(k.Notes) >= workspace.MaxNotes {
			return fmt.Errorf("cannot keep more than %d notes: remove one first: %w", workspace.MaxNotes, errdefs.ErrResourceExhausted)
		}
		if i := slices.IndexFunc(k.Notes, func(n Note) bool { return n.Text == text }); i >= 0 {
			n = k.Notes[i]
			return nil
		}
		k.Last++
		n = Note{k.Last, text}
		k.Notes = append(k.Notes, n)
		return nil
	})
}

// Remove forgets notes; all of them or none.
func Remove(file string, numbers ...int64) error {
	return change(file, func(k *kept) error {
		for _, number := range numbers {
			i := slices.IndexFunc(k.Notes, func(n Note) bool { return n.Number == number })
			if i < 0 {
				return fmt.Errorf("cannot forget note %d: there is none: %w", number, errdefs.ErrNotFound)
			}
			k.Notes = slices.Delete(k.Notes, i, i+1)
		}
		return nil
	})
}

// redactor knows secrets by their shape. The digests in its masks tell nobody anything.
func redactor() *redact.Redactor {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return redact.New(key)
}

// read reads the notes. A file that others may write is not read: what is in it would be told to a model as the person's word.
func read(file string) (k kept, err error) {
	fail := func(format string, args ...any) (kept, error) {
		return kept{}, fmt.Errorf("cannot read the notes in %s: %w", file, fmt.Errorf(format, args...))
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return fail("%w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fail("%w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	owned := ok && int(st.Uid) == os.Geteuid()
	switch {
	case !fi.Mode().IsRegular():
		return fail("it is no regular file; remove it: %w", errdefs.ErrFailedPrecondition)
	case !owned || fi.Mode().Perm()&0o077 != 0:
		return fail("others may read or write it; look at it, then make it yours with mode 0600: %w", errdefs.ErrFailedPrecondition)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fail("%w", err)
	}
	if err := json.Unmarshal(b, &k); err != nil || len(b) > maxFile {
		return fail("it is of another form; remove it, and add the notes anew: %w", errdefs.ErrFailedPrecondition)
	}
	seen := map[int64]bool{}
	for _, n := range k.Notes {
		if workspace.CheckNote(n.Text) != nil || n.Number < 1 || n.Number > k.Last || seen[n.Number] || len(k.Notes) > workspace.MaxNotes {
			return fail("a note in it is of another form, or there are more than %d; remove it, and add the notes anew: %w", workspace.MaxNotes,
				errdefs.ErrFailedPrecondition)
		}
		seen[n.Number] = true
	}
	return k, nil
}

// change changes the notes, as a whole or not at all, while nobody else does.
func change(file string, f func(*kept) error) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot keep notes: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot keep notes: %w", err)
	}
	defer d.Close()
	raw, err := d.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot keep notes: %w", err)
	}
	locked := errors.New("never")
	if err := raw.Control(func(fd uintptr) { locked = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return fmt.Errorf("cannot keep notes: %w", err)
	}
	if locked != nil {
		return fmt.Errorf("cannot keep notes: another carrel changes them; try again: %w: %w", locked, errdefs.ErrUnavailable)
	}
	k, err := read(file)
	if err != nil {
		return err
	}
	if err := f(&k); err != nil {
		return err
	}
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := wholefile.Put(file, append(b, '\n')); err != nil {
		return fmt.Errorf("cannot keep notes: %w", err)
	}
	return d.Sync()
}
