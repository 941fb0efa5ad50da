package staged

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// exchange gives a name what is new, by one rename. What was there is looked at before and again afterwards, because in
// between another process could have put something else there: that is put back.
func (t *txn) exchange(o *op, what string) error {
	conflict := func(why string) error { return &ConflictError{what, []Conflict{{string(o.Path), why}}} }
	if o.Do == chmod {
		d, is, err := t.dirOf(o)
		if errdefs.IsFailedPrecondition(err) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return conflict("another process changed it meanwhile")
		}
		if err != nil {
			return err
		}
		d.close()
		if is.Mode&0o7777 != o.Open {
			return conflict("another process changed its mode meanwhile")
		}
		return nil
	}
	if err := t.still(o, what); err != nil {
		return err
	}
	d, base, err := t.b.parent(string(o.Path))
	if err != nil {
		return err
	}
	if err := step("exchange " + string(o.Path)); err != nil {
		return err
	}
	switch err := rename(d, base, o); {
	case errors.Is(err, unix.EEXIST):
		return conflict("something is there already")
	case errors.Is(err, unix.ENOENT):
		return conflict("another process removed it, or moved its directory")
	case err != nil:
		return err
	}
	why, err := t.seen(d, o)
	if why == "" && err == nil {
		return nil
	}
	if err := step("put back " + string(o.Path)); err != nil {
		return err
	}
	if rerr := renameBack(d, base, o); rerr != nil {
		return fmt.Errorf("%q changed meanwhile, and what it is now is called %q: %w", o.Path, o.Temp, errors.Join(rerr, err))
	}
	if err != nil {
		return err
	}
	return conflict(why)
}

// still is a conflict if a name is not what it was when the change was planned.
func (t *txn) still(o *op, what string) error {
	if o.Do == chmod {
		return nil
	}
	conflict := func(why string) error { return &ConflictError{what, []Conflict{{string(o.Path), why}}} }
	d, base, err := t.b.parent(string(o.Path))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return conflict("the directory that it is in is gone")
	}
	if err != nil || o.Do == create {
		return err
	}
	s, there, err := d.stat(base)
	if err != nil {
		return err
	}
	if !there || !o.Old[0].Stamp.unchanged(s, false) {
		return conflict("another process changed it meanwhile")
	}
	return nil
}

// seen says how what was there differs from what was to be there, after the exchange.
func (t *txn) seen(d folder, o *op) (why string, err error) {
	if o.Do == create {
		return "", nil
	}
	if why, err = matches(d, string(o.Temp), o.Old, true); why != "" || err != nil {
		return why, err
	}
	if want := o.Old[0].Digest; want != "" {
		is, err := fileDigest(d, string(o.Temp))
		if err != nil {
			return "", err
		}
		if is != want {
			return "another process changed it meanwhile", nil
		}
	}
	return "", nil
}

func fileDigest(d folder, name string) (string, error) {
	f, err := d.file(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// rename does the operation.
func rename(d folder, base string, o *op) error {
	switch temp := string(o.Temp); o.Do {
	case create:
		return renameError(unix.Renameat2(d.fd, temp, d.fd, base, unix.RENAME_NOREPLACE))
	case replace:
		return renameError(unix.Renameat2(d.fd, temp, d.fd, base, unix.RENAME_EXCHANGE))
	case remove:
		return renameError(unix.Renameat2(d.fd, base, d.fd, temp, unix.RENAME_NOREPLACE))
	default: // a mode is changed after the exchange
		return nil
	}
}

// renameBack undoes the operation.
func renameBack(d folder, base string, o *op) error {
	switch temp := string(o.Temp); o.Do {
	case create:
		return renameError(unix.Renameat2(d.fd, base, d.fd, temp, unix.RENAME_NOREPLACE))
	case replace:
		return renameError(unix.Renameat2(d.fd, temp, d.fd, base, unix.RENAME_EXCHANGE))
	case remove:
		return renameError(unix.Renameat2(d.fd, temp, d.fd, base, unix.RENAME_NOREPLACE))
	default:
		return nil
	}
}

func renameError(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("its file system cannot exchange two names at once, which a safe change needs: %w: %w", err,
			errdefs.ErrNotImplemented)
	}
	return err
}
