package broker

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// The broker keeps these files of the audit log beside the ledger, under its lock. The state
// has its own file because each checkpoint replaces it, and no trouble with it may keep a
// workspace from being ended.
const (
	auditKeyName   = "audit.key"      // the secret key, for root only
	auditPubName   = "audit.pub"      // its public half, for root to give away
	auditStateName = "audit.json"     // the last checkpoint countersigned
	maxAuditFile   = 4 << 10          // of each of them
	brokerKeyStem  = "carrel-broker-" // and 16 hexadecimal digits
)

// Countersigner signs a checkpoint of the audit log if the log begins with everything that it has
// signed before. So a daemon cannot change or remove what was countersigned.
type Countersigner struct {
	dir    *os.File
	signer note.Signer
	public string

	mu   sync.Mutex
	last checkpoint.Checkpoint // Size 0: none yet
}

// auditState is the form of auditStateName.
type auditState struct {
	Origin string    `json:"origin"`
	Size   int64     `json:"size"`
	Root   tlog.Hash `json:"root"`
}

// OpenCountersigner reads key and state in dir, which stays the caller's, and makes the key
// if there is none.
func OpenCountersigner(dir *os.File) (*Countersigner, error) {
	c := &Countersigner{dir: dir}
	for _, name := range []string{auditKeyName, auditPubName, auditStateName} { // what a crash left
		if err := removeAt(dir, name+unfinished); err != nil {
			return nil, err
		}
	}
	if err := c.openKey(); err != nil {
		return nil, fmt.Errorf("cannot open the broker's key for the audit log: %w", err)
	}
	spareAt(dir, auditStateName, maxAuditFile)
	b, err := readAt(dir, auditStateName, maxAuditFile)
	if errors.Is(err, unix.ENOENT) {
		return c, nil
	}
	if err == nil {
		var s auditState
		if err = strictjson.Unmarshal(b, &s); err == nil && (!checkpoint.IsName(s.Origin) || s.Size < 1) {
			err = fmt.Errorf("it names %d records of %q: %w", s.Size, s.Origin, errdefs.ErrDataLoss)
		}
		c.last = checkpoint.Checkpoint(s)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which checkpoint was countersigned last: %w; restore %s/%s from a backup, "+
			"or remove it to begin anew with the log as it is", err, dir.Name(), auditStateName)
	}
	return c, nil
}

func (c *Countersigner) openKey() error {
	secret, err := readAt(c.dir, auditKeyName, maxAuditFile)
	if errors.Is(err, unix.ENOENT) {
		var tag [8]byte
		if _, err := rand.Read(tag[:]); err != nil {
			return err
		}
		text, _, err := checkpoint.NewKey(rand.Reader, brokerKeyStem+hex.EncodeToString(tag[:]))
		if err != nil {
			return err
		}
		secret = []byte(text)
		if err := replaceAt(c.dir, auditKeyName, secret); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	text := strings.TrimSpace(string(secret))
	if c.signer, err = note.NewSigner(text); err != nil {
		return fmt.Errorf("%s/%s: %w: %w", c.dir.Name(), auditKeyName, err, errdefs.ErrDataLoss)
	}
	if c.public, err = checkpoint.Public(text); err != nil {
		return err
	}
	if have, err := readAt(c.dir, auditPubName, maxAuditFile); err == nil && string(have) == c.public+"\n" {
		return nil
	}
	return replaceAt(c.dir, auditPubName, []byte(c.public+"\n"))
}

// Public is the key that verifiers are given.
func (c *Countersigner) Public() string { return c.public }

// Last is the checkpoint countersigned last; its Size is 0 if there is none.
func (c *Countersigner) Last() checkpoint.Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Sign signs next if proof shows that its tree begins with the tree of the last checkpoint, once next
// is on disk as the last one. known is false if the proof is about another size than the last
// checkpoint, which is returned.
func (c *Countersigner) Sign(
	next checkpoint.Checkpoint, old int64, proof tlog.TreeProof,
) (signed []byte, last checkpoint.Checkpoint, known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last = c.last
	inconsistent := func(err error) ([]byte, checkpoint.Checkpoint, bool, error) {
		return nil, last, true, fmt.Errorf("cannot countersign record %d of the audit log: record %d of %s was countersigned before, and %w; "+
			"keep the log as it is and see docs/operations.md: %w",
			next.Size, last.Size, last.Origin, err, errdefs.ErrFailedPrecondition)
	}
	if last.Size > 0 && next.Origin != last.Origin {
		return inconsistent(fmt.Errorf("%s is another log: %w", next.Origin, errdefs.ErrDataLoss))
	}
	if last.Size > 0 && next.Size < last.Size {
		return inconsistent(checkpoint.Consistent(nil, next, last))
	}
	if old != last.Size {
		return nil, last, false, nil
	}
	if err := checkpoint.Consistent(proof, next, last); err != nil {
		return inconsistent(err)
	}
	signed, err = checkpoint.Sign(next, c.signer)
	if err != nil {
		return nil, last, true, err
	}
	if next != last {
		b, err := json.Marshal(auditState(next))
		if err == nil {
			err = exchangeAt(c.dir, auditStateName, append(b, '\n'))
			if last.Size == 0 { // there was nothing to be kept for the next time
				spareAt(c.dir, auditStateName, maxAuditFile)
			}
		}
		if err != nil {
			return nil, last, true, fmt.Errorf("cannot keep which checkpoint is countersigned, so it is not: %w: %w",
				full(err, c.dir.Name()), errdefs.ErrUnavailable)
		}
		c.last = next
	}
	crashpoint.Here("broker.countersign.kept")
	return signed, next, true, nil
}
