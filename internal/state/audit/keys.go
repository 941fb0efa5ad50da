package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

// openKeys reads or makes the log's key, and reads the broker's public key if it is known.
func (c *Checkpoints) openKeys() error {
	secret, err := readSmall(c.path(secretName))
	if errors.Is(err, os.ErrNotExist) {
		var tag [8]byte
		if _, err := rand.Read(tag[:]); err != nil {
			return fmt.Errorf("cannot make a key for checkpoints: %w", err)
		}
		if secret, _, err = checkpoint.NewKey(rand.Reader, logKeyStem+hex.EncodeToString(tag[:])); err != nil {
			return err
		}
		err = writeSmall(c.dir, secretName, secret)
	}
	if err != nil {
		return err
	}
	if c.signer, err = note.NewSigner(secret); err != nil {
		return fmt.Errorf("cannot read the key for checkpoints %s: %w: %w", c.path(secretName), err, errdefs.ErrDataLoss)
	}
	public, err := checkpoint.Public(secret)
	if err != nil {
		return err
	}
	if have, err := readSmall(c.path(publicName)); err != nil || have != public {
		if err := writeSmall(c.dir, publicName, public); err != nil {
			return err
		}
	}
	broker, err := readSmall(c.path(brokerName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	c.keys, err = checkpoint.ParseKeys(public, broker)
	return err
}

// readSmall reads a file of one line.
func readSmall(path string) (string, error) {
	b, err := untrustedfile.Read(path, maxKeyFile)
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", path, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// writeSmall writes a file of one line atomically, for this user only.
func writeSmall(dir, name, line string) error {
	err := func() error {
		f, err := os.OpenFile(filepath.Join(dir, name+newSuffix), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(line + "\n")
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
		return os.Rename(f.Name(), filepath.Join(dir, name))
	}()
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", filepath.Join(dir, name), err)
	}
	return syncDir(dir)
}

// openLast cuts off a note that a crash left incomplete, and reads the last complete one.
func (c *Checkpoints) openLast() error {
	last, whole, err := lastNote(c.file)
	if err != nil {
		return err
	}
	if err := c.file.Truncate(whole); err != nil {
		return fmt.Errorf("cannot cut the torn end off the checkpoints: %w", err)
	}
	if last == nil {
		return nil
	}
	if c.last, err = checkpoint.Open(last, c.keys); err == nil && (!c.last.Log || c.last.Origin != c.signer.Name()) {
		err = errors.New("the log's own key did not sign it")
	}
	if err != nil {
		return damaged(c.log.path, fmt.Sprintf("the last of its checkpoints is forged (%v)", err))
	}
	if c.last.Broker {
		c.countersigned = c.last.Checkpoint
	}
	return nil
}

// lastNote returns the last complete note of a file, and the offset after the empty line behind
// it. Other text between notes is ignored.
func lastNote(f *os.File) (last []byte, whole int64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("cannot read checkpoints: %w", err)
	}
	// Enough for a torn note, a complete one before it, and the end of the one before that.
	from := max(0, fi.Size()-4*checkpoint.MaxNote)
	b := make([]byte, fi.Size()-from)
	if _, err := f.ReadAt(b, from); err != nil {
		return nil, 0, fmt.Errorf("cannot read checkpoints: %w", err)
	}
	gap := []byte("\n\n")
	for end := len(b); ; {
		end = bytes.LastIndex(b[:end], gap) // of the signatures
		if end < 0 {
			break
		}
		mid := bytes.LastIndex(b[:end], gap) // of the text
		if mid < 0 || !bytes.HasPrefix(b[mid+len(gap):], []byte("— ")) {
			continue
		}
		start := bytes.LastIndex(b[:mid], gap)
		if start < 0 && from > 0 {
			break
		}
		if start >= 0 {
			start += len(gap)
		}
		return b[max(start, 0) : end+1], from + int64(end+len(gap)), nil
	}
	if from > 0 {
		return nil, 0, fmt.Errorf("cannot read checkpoints: %s ends in something else: %w", f.Name(), errdefs.ErrDataLoss)
	}
	return nil, 0, nil
}
