package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
)

// openAnchor reads the last checkpoint of the anchor. If this log does not contain it, the log is
// an older copy or another one. An anchor that cannot be read is no damage.
func (c *Checkpoints) openAnchor(ctx context.Context) error {
	if c.o.Anchor == "" {
		return nil
	}
	f, err := os.OpenFile(c.o.Anchor, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was anchored yet. If the file was removed, the broker's own state still protects the log
	}
	if err != nil {
		c.anchorFailed(err)
		return nil
	}
	defer f.Close()
	last, _, err := lastNote(f)
	if err != nil {
		c.anchorFailed(err)
	}
	if err != nil || last == nil {
		return nil
	}
	s, err := checkpoint.Open(last, c.keys)
	if err != nil || s.Origin != c.signer.Name() {
		// This happens after accepted damage. The broker does not sign a log that was exchanged.
		c.anchorFailed(errors.New("its last checkpoint is of another log: name another file, unless you know why"))
		return nil
	}
	if s.Size > c.last.Size {
		return damaged(c.log.path, fmt.Sprintf("its last checkpoint is of record %d, and the last in its anchor %s of record %d: "+
			"it is an older copy", c.last.Size, c.o.Anchor, s.Size))
	}
	root, err := tlog.TreeHash(s.Size, c.tree)
	if err != nil || root != s.Root { // the stored hashes may be wrong
		if err := c.rebuild(ctx); err != nil {
			return err
		}
		root, err = tlog.TreeHash(s.Size, c.tree)
	}
	if err != nil || root != s.Root {
		return damaged(c.log.path, fmt.Sprintf("the first %d records are not those that its anchor %s has", s.Size, c.o.Anchor))
	}
	c.anchored = s.Size
	return nil
}

// anchor appends a note to the anchor. If signed is nil it repeats an attempt that failed.
func (c *Checkpoints) anchor(signed []byte) error {
	if c.o.Anchor == "" || c.last.Size == c.anchored || !c.last.Broker && c.o.Countersign != nil {
		return nil
	}
	if signed == nil {
		var err error
		if signed, _, err = lastNote(c.file); err != nil {
			return err
		}
	}
	c.anchorFailed(c.append(signed))
	if c.anchorErr == nil {
		c.anchored = c.last.Size
	}
	return c.anchorErr
}

// anchorFailed stores the result of the last attempt.
func (c *Checkpoints) anchorFailed(err error) {
	c.anchorErr = nil
	if err != nil {
		c.anchorErr = fmt.Errorf("cannot append to the anchor of the audit log: %w; check its mount and permissions (audit.anchor): %w",
			err, errdefs.ErrUnavailable)
	}
	if c.o.AnchorRequired && err != nil {
		why := c.anchorErr
		c.blocked.Store(&why)
	} else {
		c.blocked.Store(nil)
	}
}

func (c *Checkpoints) append(signed []byte) error {
	// O_NONBLOCK: if it is a pipe, the daemon must not wait for a reader.
	f, err := os.OpenFile(c.o.Anchor, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	if c.anchorErr != nil { // the failed attempt may have written half a note
		signed = append([]byte("\n\n"), signed...)
	}
	_, err = f.Write(append(slices.Clip(signed), '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(c.o.Anchor))
}

// Blocked returns an error of kind unavailable while a required anchor lacks a checkpoint. No
// action may be carried out then.
func (c *Checkpoints) Blocked() error {
	if err := c.blocked.Load(); err != nil {
		return *err
	}
	return nil
}
