package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// The files beside the log.
const (
	checkpointsName = "checkpoints"    // signed notes, each followed by an empty line
	treeName        = "audit.tree"     // the stored hashes; may be removed at any time
	secretName      = "checkpoint.key" // the key that signs the notes
	publicName      = "checkpoint.pub" // its public half
	brokerName      = "broker.pub"     // the broker's public key, as first seen
	logKeyStem      = "carrel-audit-"  // with 16 hexadecimal digits the name of the log and of its key
	maxKeyFile      = 1 << 10
	maxNotes        = 1 << 30 // of a file that is read as a whole
	newSuffix       = ".new"  // of a file before it is renamed
)

// CheckpointOptions are the options of OpenCheckpoints. All are optional.
type CheckpointOptions struct {
	// Countersign asks the broker for its signature, with a proof that the tree of next begins
	// with the tree of the first old records. It is nil if there is no broker.
	Countersign func(ctx context.Context, next checkpoint.Checkpoint, old int64, proof tlog.TreeProof) (checkpoint.Countersigned, error)
	// Anchor is a second file, preferably on another mount or machine, to which each checkpoint
	// is appended; "" means none. AnchorRequired: no action is carried out while it lacks one.
	Anchor         string
	AnchorRequired bool
	// Room is how many bytes each of the files holds behind its end; see Options.Room.
	Room int64
}

// Checkpoints signs the contents of the log. Its methods may be called from any goroutine.
//
//	read new records, check their chain ─► tree ─► sign ─► broker countersigns ─► file ─► anchor
type Checkpoints struct {
	log    *Log
	o      CheckpointOptions
	dir    string
	signer note.Signer

	mu   sync.Mutex
	keys checkpoint.Keys
	tree *tree
	file *os.File
	// notes and hashes are the room behind the ends of file and tree.
	notes, hashes diskreserve.Ahead
	// last is the newest in the file, and countersigned the last that the broker is known to
	// have signed; Size 0 means none.
	last          checkpoint.Signed
	countersigned checkpoint.Checkpoint
	asked         bool  // the broker was asked since the start or the last call of Verify
	anchored      int64 // size of the last one that the anchor took
	anchorErr     error
	blocked       atomic.Pointer[error] // anchorErr, if the anchor is required
	madeAt        time.Time
	err           error // of the last attempt
}

// CheckpointState is the state of the log's checkpoints.
type CheckpointState struct {
	LogKey, BrokerKey string
	// Signed, Countersigned and Anchored are sizes of trees, in records.
	Signed, Countersigned, Anchored int64
	// At is when the last one was made by this process.
	At time.Time
	// Err is the error of the last attempt, AnchorErr the error of the anchor.
	Err, AnchorErr error
	// Anchor is the anchor's path, "" if there is none. Broker: there is a broker that signs.
	Anchor         string
	AnchorRequired bool
	Broker         bool
}

// OpenCheckpoints opens the files beside the log and makes the key if there is none. If the last
// checkpoint, or the anchor's, is not one of this log, the error is data_loss and ErrDamaged.
// Close does not close the log.
func OpenCheckpoints(ctx context.Context, l *Log, o CheckpointOptions) (*Checkpoints, error) {
	c := &Checkpoints{log: l, o: o, dir: filepath.Dir(l.path)}
	c.notes, c.hashes = diskreserve.Ahead{Least: o.Room, Step: o.Room / 2}, diskreserve.Ahead{Least: o.Room, Step: o.Room / 2}
	err := c.open(ctx)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Checkpoints) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Checkpoints) open(ctx context.Context) (err error) {
	for _, name := range []string{secretName, publicName, brokerName} { // a crash may have left one
		if err := os.Remove(c.path(name + newSuffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot remove what was left beside the audit log: %w", err)
		}
	}
	if err := c.openKeys(); err != nil {
		return err
	}
	if c.file, err = os.OpenFile(c.path(checkpointsName), os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600); err != nil {
		return fmt.Errorf("cannot open the checkpoints of the audit log: %w", err)
	}
	if err := c.openLast(); err != nil {
		return err
	}
	if c.tree, err = openTree(c.path(treeName)); err != nil {
		return err
	}
	c.tree.reserve = c.log.reserve
	if err := c.takeUp(ctx); err != nil {
		return err
	}
	if err := c.openAnchor(ctx); err != nil {
		return err
	}
	c.hold()
	return syncDir(c.dir)
}

// hold has the files hold their room. On a full disk they may not; the log's own room says that it is
// full, and without theirs a checkpoint is made later.
func (c *Checkpoints) hold() {
	if fi, err := c.file.Stat(); err == nil {
		_ = c.notes.Keep(diskreserve.Of(c.file), fi.Size())
	}
	_ = c.hashes.Keep(diskreserve.Of(c.tree.f), c.tree.written*tlog.HashSize)
}

// takeUp makes c.tree the tree of the last checkpoint, from the stored hashes or from the log. It
// compares the last record that was signed: each record names the hash of the one before, so a log
// that was hashed anew before it has another one there.
func (c *Checkpoints) takeUp(ctx context.Context) error {
	if c.last.Size == 0 {
		_, err := c.tree.cut(0)
		return err
	}
	if head := c.log.Head(); head.Seq < c.last.Size {
		return damaged(c.log.path, fmt.Sprintf("it ends at record %d, and record %d was signed: its end was cut off", head.Seq, c.last.Size))
	}
	have, err := c.tree.cut(c.last.Size)
	if err != nil {
		return err
	}
	if have && c.tree.root() == c.last.Root {
		line, err := c.log.line(c.last.Size)
		if err != nil {
			return err
		}
		proof, err := tlog.ProveRecord(c.last.Size, c.last.Size-1, c.tree)
		if err == nil && tlog.CheckRecord(proof, c.last.Size, c.last.Root, c.last.Size-1, tlog.RecordHash(line)) == nil {
			return nil
		}
	}
	return c.rebuild(ctx)
}

// rebuild makes the tree anew from the log up to the last checkpoint, and compares their roots.
func (c *Checkpoints) rebuild(ctx context.Context) error {
	if first := c.log.kept(); first > 1 {
		known, err := bases(c.log.path)
		if err != nil {
			return err
		}
		b, ok := known[first-1]
		if !ok {
			return damaged(c.log.path, fmt.Sprintf("it begins with record %d, and nothing says that those before it were removed", first))
		}
		if err := c.tree.restart(&b); err != nil {
			return err
		}
	} else if _, err := c.tree.cut(0); err != nil {
		return err
	}
	if err := c.extend(ctx, Head{Seq: c.last.Size}); err != nil {
		return err
	}
	if c.last.Size > 0 && c.tree.root() != c.last.Root {
		return damaged(c.log.path, fmt.Sprintf("the first %d records are not those that were signed: some were changed", c.last.Size))
	}
	return nil
}

// errEnough ends Read.
var errEnough = errors.New("enough")

// extend reads the log up to the record to, checks the chain, and adds each record to the tree. If
// somebody else wrote a record in between, the chain does not end with the hash of to.
func (c *Checkpoints) extend(ctx context.Context, to Head) error {
	if c.tree.n >= to.Seq {
		return nil
	}
	var prev []byte
	err := c.log.Read(ctx, c.tree.n+1, 0, false, func(lines [][]byte) error {
		for _, line := range lines {
			fr, ok := parseFrame(line)
			if !ok || !hashHolds(line, fr) || fr.seq != c.tree.n+1 || prev != nil && !bytes.Equal(fr.prev, prev) {
				return damaged(c.log.path, fmt.Sprintf("record %d is not the one that was written", c.tree.n+1))
			}
			prev = append(prev[:0], fr.hash...)
			if err := c.tree.add(line); err != nil {
				return err
			}
			if c.tree.n == to.Seq {
				return errEnough
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
	case errdefs.IsDataLoss(err) && !errors.Is(err, ErrDamaged):
		return damaged(c.log.path, fmt.Sprintf("record %d cannot be found where it was written (%v)", c.tree.n+1, err))
	case err != nil:
		return err
	default:
		return damaged(c.log.path, fmt.Sprintf("it ends at record %d, and record %d had been written", c.tree.n, to.Seq))
	}
	if to.Hash != "" && string(prev) != to.Hash {
		return damaged(c.log.path, fmt.Sprintf("record %d is not the one that was written", to.Seq))
	}
	return c.tree.flush()
}

// Make signs the current contents of the log, and returns the last checkpoint if there is nothing
// new. The error is data_loss and ErrDamaged if the log is damaged, failed_precondition if the
// broker refuses, and unavailable if the broker or the anchor cannot be reached: then the
// checkpoint lacks the broker's signature.
func (c *Checkpoints) Make(ctx context.Context) (checkpoint.Signed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = c.make(ctx)
	return c.last, c.err
}

func (c *Checkpoints) make(ctx context.Context) error {
	if err := c.log.InPlace(); err != nil {
		return err
	}
	head := c.log.Head()
	if head.Seq == 0 {
		return nil
	}
	if head.Seq == c.last.Size && (c.last.Broker && c.asked || c.o.Countersign == nil) {
		return c.anchor(nil)
	}
	if c.log.longer(10) {
		return damaged(c.log.path, fmt.Sprintf("something follows record %d that this daemon did not write", c.log.Head().Seq))
	}
	c.hold()
	if err := c.extend(ctx, head); err != nil {
		// The stored hashes behind the last checkpoint may be wrong.
		c.hashes.Reset() // they are cut off
		if rerr := c.takeUp(ctx); rerr != nil {
			return rerr
		}
		if err := c.extend(ctx, head); err != nil {
			return err
		}
	}
	next, _, err := c.prove(ctx, c.last.Checkpoint)
	if err != nil {
		return err
	}
	signed, err := checkpoint.Sign(next, c.signer)
	if err != nil {
		return err
	}
	crashpoint.Here("daemon.checkpoint.signed")
	var later error
	byBroker := false
	if c.o.Countersign != nil {
		both, err := c.countersign(ctx, next, signed)
		switch {
		case err == nil:
			signed, byBroker = both, true
		case errors.Is(err, ErrDamaged), errdefs.IsFailedPrecondition(err), errdefs.IsDataLoss(err):
			return err
		default: // the log itself is not in doubt
			later = fmt.Errorf("the audit log is signed without the broker: %w: %w", err, errdefs.ErrUnavailable)
		}
	}
	crashpoint.Here("daemon.checkpoint.countersigned")
	if next.Size == c.last.Size && (c.last.Broker || !byBroker) {
		return errors.Join(later, c.anchor(nil)) // the note would be the same as the last
	}
	if err := c.keep(signed); err != nil {
		return err
	}
	c.last = checkpoint.Signed{Checkpoint: next, Log: true, Broker: byBroker}
	c.madeAt = time.Now()
	crashpoint.Here("daemon.checkpoint.kept")
	if !byBroker && c.o.Countersign != nil {
		signed = nil // the anchor waits for the broker
	}
	return errors.Join(later, c.anchor(signed))
}

// prove returns the current tree and a proof that it begins with the tree of old. A proof that does
// not hold means that the stored hashes or the log are wrong: prove makes the hashes anew once.
func (c *Checkpoints) prove(ctx context.Context, old checkpoint.Checkpoint) (next checkpoint.Checkpoint, proof tlog.TreeProof, err error) {
	for again := true; ; again = false {
		next = checkpoint.Checkpoint{Origin: c.signer.Name(), Size: c.tree.n, Root: c.tree.root()}
		if old.Size > 0 && old.Size < next.Size {
			proof, err = tlog.ProveTree(next.Size, old.Size, c.tree)
		}
		if err == nil {
			err = checkpoint.Consistent(proof, next, old)
		}
		if err == nil {
			return next, proof, nil
		}
		if !again {
			return next, nil, damaged(c.log.path, fmt.Sprintf("it has %d records, of which the first %d are not those that were signed: "+
				"it was rewritten, or is an older copy (%v)", next.Size, old.Size, err))
		}
		if err := c.rebuild(ctx); err != nil {
			return next, nil, err
		}
		if err := c.extend(ctx, Head{Seq: next.Size}); err != nil {
			return next, nil, err
		}
	}
}

// countersign gets the broker's signature and returns the note with both.
func (c *Checkpoints) countersign(ctx context.Context, next checkpoint.Checkpoint, signed []byte) ([]byte, error) {
	old := c.countersigned
	for range 3 {
		same, proof, err := c.prove(ctx, old)
		if err == nil && same != next {
			err = fmt.Errorf("cannot countersign record %d: the stored hashes were changed meanwhile: %w", next.Size, errdefs.ErrUnavailable)
		}
		if err != nil {
			return nil, err
		}
		res, err := c.o.Countersign(ctx, next, old.Size, proof)
		if err != nil {
			return nil, err
		}
		if res.Note == nil {
			// It signed a checkpoint that we did not keep, for example because of a crash.
			old = checkpoint.Checkpoint{Origin: next.Origin, Size: res.Size, Root: res.Root}
			continue
		}
		if err := c.pin(res.Key); err != nil {
			return nil, err
		}
		got, err := checkpoint.Open(res.Note, c.keys)
		if err != nil || got.Checkpoint != next || !got.Broker {
			return nil, fmt.Errorf("cannot take the broker's signature on record %d: it signs another checkpoint than the one sent (%w): %w",
				next.Size, err, errdefs.ErrDataLoss)
		}
		c.countersigned, c.asked = next, true
		return checkpoint.Join(signed, res.Note)
	}
	return nil, fmt.Errorf("cannot have record %d countersigned: the broker names another checkpoint each time: %w",
		next.Size, errdefs.ErrUnavailable)
}

// pin stores the first key of the broker. It refuses another one later.
func (c *Checkpoints) pin(public string) error {
	keys, err := checkpoint.ParseKeys("", public)
	if err != nil {
		return err
	}
	switch {
	case keys.Broker == nil:
		return fmt.Errorf("cannot take the broker's signature: it names no key: %w", errdefs.ErrDataLoss)
	case c.keys.Broker == nil:
		if err := writeSmall(c.dir, brokerName, public); err != nil {
			return err
		}
		c.keys.Broker = keys.Broker
	case c.keys.Broker.Name() != keys.Broker.Name() || c.keys.Broker.KeyHash() != keys.Broker.KeyHash():
		return fmt.Errorf("cannot take the broker's signature: its key is %s and was %s; if it was made anew on purpose, remove %s: %w",
			keys.Broker.Name(), c.keys.Broker.Name(), c.path(brokerName), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// keep appends a note to the file, and returns when it is on disk.
func (c *Checkpoints) keep(signed []byte) error {
	f := c.file
	fi, err := f.Stat()
	if err == nil {
		_, err = f.Write(append(bytes.Clone(signed), '\n'))
	}
	if err == nil {
		crashpoint.Here("daemon.checkpoint.written")
		err = f.Sync()
	}
	if err != nil {
		if fi != nil {
			_ = f.Truncate(fi.Size()) // the next note must not follow half a note
			c.notes.Reset()
		}
		return fmt.Errorf("cannot keep a checkpoint in %s: %w: %w", f.Name(), err, errdefs.ErrUnavailable)
	}
	return nil
}

// State returns how far the log is signed.
func (c *Checkpoints) State() CheckpointState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := CheckpointState{
		Signed: c.last.Size, Countersigned: c.countersigned.Size, Anchored: c.anchored, At: c.madeAt, Err: c.err, AnchorErr: c.anchorErr,
		Anchor: c.o.Anchor, AnchorRequired: c.o.AnchorRequired, Broker: c.o.Countersign != nil,
	}
	s.LogKey, _ = readSmall(c.path(publicName))
	s.BrokerKey, _ = readSmall(c.path(brokerName))
	return s
}

// Close closes the files. It signs nothing.
func (c *Checkpoints) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	if c.tree != nil {
		errs = append(errs, c.tree.close())
	}
	if c.file != nil {
		errs = append(errs, c.file.Close())
	}
	return errors.Join(errs...)
}
