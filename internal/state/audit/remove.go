package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

// How full files of the log are removed. The log holds after each step, also if the next one never
// happens:
//
//	the base is written to `removed` ─► a record lists the files ─► the record is signed,
//	countersigned and anchored ─► the files are removed, the oldest first
//
// A base has the hash of the last removed record, which the next record names, and the roots of the
// largest whole subtrees over the removed records. It needs no trust of its own: with other roots
// the tree of the following records is not the one that was signed.

const (
	removedName = "removed"
	// keepAtLeast is the least age of a removed file's last record, whatever the settings.
	keepAtLeast = time.Hour
)

// Keep says how long full files are kept; 0 means no bound.
type Keep struct {
	// Age bounds the age of a file's last record, Size the bytes of all files together.
	Age  time.Duration
	Size int64
}

// Removal lists the files to remove. It is the Data of a removed record.
type Removal struct {
	Event string   `json:"event"`
	Files []string `json:"files"`
	// From and To are the first and the last record in them.
	From  int64 `json:"from"`
	To    int64 `json:"to"`
	Bytes int64 `json:"bytes"`
	// Age and Size are the configured bounds, as in "2160h0m0s".
	Age  string `json:"age,omitempty"`
	Size int64  `json:"size,omitempty"`
}

// RemovalEvent is Removal.Event.
const RemovalEvent = "audit.removed"

// base is the state from which a log goes on whose first To records were removed: a line of
// `removed`.
type base struct {
	To   int64  `json:"to"`
	Hash string `json:"hash"`
	// Edges are the roots of the largest whole subtrees, the largest first.
	Edges []tlog.Hash `json:"edges"`
}

// bases reads `removed` beside the log at path. It ignores a line that a crash left incomplete.
func bases(path string) (map[int64]base, error) {
	found := map[int64]base{}
	b, err := untrustedfile.Read(filepath.Join(filepath.Dir(path), removedName), maxNotes)
	if errors.Is(err, os.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what the audit log goes on from: %w", err)
	}
	for line := range bytes.Lines(b) {
		var one base
		if json.Unmarshal(line, &one) == nil && one.To > 0 && len(one.Hash) == hashLen && len(one.Edges) == bits.OnesCount64(uint64(one.To)) {
			found[one.To] = one
		}
	}
	return found, nil
}

// frontier returns the tree over the removed records.
func (b *base) frontier() (f frontier) {
	f.n = b.To
	edges := b.Edges
	for i := len(f.edge) - 1; i >= 0; i-- {
		if f.n>>i&1 == 1 {
			f.edge[i], edges = edges[0], edges[1:]
		}
	}
	return f
}

// restart makes the tree start with a base, and stores the base's hashes.
func (t *tree) restart(b *base) error {
	if _, err := t.cut(0); err != nil {
		return err
	}
	t.frontier, t.written = b.frontier(), tlog.StoredHashCount(b.To)
	if err := t.f.Truncate(t.written * tlog.HashSize); err != nil {
		return fmt.Errorf("cannot write the hash tree of the audit log: %w", err)
	}
	for i := range t.edge {
		if t.n>>i&1 == 0 {
			continue
		}
		if _, err := t.f.WriteAt(t.edge[i][:], tlog.StoredHashIndex(i, t.n>>i-1)*tlog.HashSize); err != nil {
			return fmt.Errorf("cannot write the hash tree of the audit log: %w", err)
		}
	}
	return nil
}

// kept returns the number of the first record that the log has or will have.
func (l *Log) kept() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.full) > 0 {
		return l.full[0].first
	}
	return l.first
}

// gone reports whether a full file was removed from the log.
func (l *Log) gone(f fullFile) bool { return l.kept() > f.last }

// PlanRemoval selects the full files that are past their bounds and that nothing needs: they are
// signed, countersigned and, with an anchor, anchored, and no intent in them waits for its outcome.
// It writes the base of the log after them. It returns nil if there are none.
//
// The caller then records the Removal, has the log signed, and calls Remove.
func (c *Checkpoints) PlanRemoval(ctx context.Context, keep Keep, now time.Time) (*Removal, error) {
	if keep == (Keep{}) || c.o.Countersign == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.mu.Lock()
	full, total := c.log.full, c.log.size
	needed := c.log.durable.Seq
	for seq := range c.log.open {
		needed = min(needed, seq)
	}
	c.log.mu.Unlock()
	sizes := make([]int64, len(full))
	for i, f := range full {
		fi, err := os.Stat(f.path)
		if err != nil {
			return nil, fmt.Errorf("cannot look at the files of the audit log: %w", err)
		}
		sizes[i] = fi.Size()
		total += fi.Size()
	}
	r := &Removal{Event: RemovalEvent, Size: keep.Size}
	if keep.Age > 0 {
		r.Age = keep.Age.String()
	}
	var kept []base
	for i, f := range full {
		if f.last > c.vouched() || f.last >= needed {
			break
		}
		last, err := lastLine(f)
		if err != nil {
			return nil, err
		}
		rec, err := Decode(last)
		if err != nil {
			return nil, err
		}
		old := now.Sub(rec.Time)
		if old < keepAtLeast || !(keep.Age > 0 && old >= keep.Age || keep.Size > 0 && total > keep.Size) {
			break
		}
		b, err := c.baseAt(ctx, f.last, last)
		if err != nil {
			return nil, err
		}
		kept = append(kept, b)
		if r.From == 0 {
			r.From = f.first
		}
		r.Files, r.To, r.Bytes = append(r.Files, filepath.Base(f.path)), f.last, r.Bytes+sizes[i]
		total -= sizes[i]
	}
	if len(kept) == 0 {
		return nil, nil
	}
	return r, c.keepBases(kept)
}

// vouched returns how many records the log's key, the broker and the anchor all have. c.mu is held.
func (c *Checkpoints) vouched() int64 {
	if c.o.Anchor != "" {
		return min(c.countersigned.Size, c.anchored)
	}
	return c.countersigned.Size
}

// lastLine reads the last line of a full file.
func lastLine(f fullFile) ([]byte, error) {
	o, err := untrustedfile.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the audit log: %w", err)
	}
	defer o.Close()
	end, err := endOf(o)
	if err != nil {
		return nil, err
	}
	line, err := part{path: f.path, f: o, end: end}.line(f.last)
	if err != nil {
		return nil, err
	}
	if fr, ok := parseFrame(line); !ok || fr.seq != f.last || !hashHolds(line, fr) {
		return nil, damaged(f.path, fmt.Sprintf("record %d is not the one that was written", f.last))
	}
	return line, nil
}

// baseAt returns the base behind the record to, whose line is last. It takes the roots from the
// stored tree and compares that with what was signed.
func (c *Checkpoints) baseAt(ctx context.Context, to int64, last []byte) (b base, err error) {
	fr, _ := parseFrame(last)
	b = base{To: to, Hash: string(fr.hash)}
	for again := true; ; again = false {
		b.Edges = b.Edges[:0]
		for i := bits.Len64(uint64(to)) - 1; i >= 0 && err == nil; i-- {
			if to>>i&1 == 1 {
				var h []tlog.Hash
				if h, err = c.tree.ReadHashes([]int64{tlog.StoredHashIndex(i, to>>i-1)}); err == nil {
					b.Edges = append(b.Edges, h[0])
				}
			}
		}
		if err == nil {
			err = c.holds(b, last)
		}
		if err == nil || !again {
			return b, err
		}
		if err = c.rebuild(ctx); err != nil {
			return b, err
		}
	}
}

// holds checks that the signed tree begins with the tree of b, and that b ends with line.
func (c *Checkpoints) holds(b base, last []byte) error {
	f := b.frontier()
	var proof tlog.TreeProof
	var err error
	if b.To < c.last.Size {
		proof, err = tlog.ProveTree(c.last.Size, b.To, c.tree)
		if err == nil {
			err = tlog.CheckTree(proof, c.last.Size, c.last.Root, b.To, f.root())
		}
	} else if f.root() != c.last.Root {
		err = errors.New("the roots differ")
	}
	if err == nil {
		var in tlog.RecordProof
		if in, err = tlog.ProveRecord(b.To, b.To-1, c.tree); err == nil {
			err = tlog.CheckRecord(in, b.To, f.root(), b.To-1, tlog.RecordHash(last))
		}
	}
	if err != nil {
		return damaged(c.log.path, fmt.Sprintf("the first %d records are not those that were signed (%v)", b.To, err))
	}
	return nil
}

// keepBases appends to `removed` the bases that it does not have.
func (c *Checkpoints) keepBases(list []base) (err error) {
	have, err := bases(c.log.path)
	if err != nil {
		return err
	}
	var text []byte
	for _, b := range list {
		if _, ok := have[b.To]; ok {
			continue
		}
		line, err := json.Marshal(b)
		if err != nil {
			return fmt.Errorf("cannot write down what the audit log goes on from: %w", err)
		}
		text = append(append(text, line...), '\n')
	}
	if len(text) == 0 {
		return nil
	}
	f, err := os.OpenFile(c.path(removedName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.Write(append([]byte("\n"), text...)) // a crash may have torn the last line
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot write down what the audit log goes on from: %w: %w", err, errdefs.ErrUnavailable)
	}
	return syncDir(c.dir)
}

// Remove removes the planned files. seq is the number of the removed record. Until that record is
// countersigned and anchored the error is unavailable and nothing is removed.
func (c *Checkpoints) Remove(r *Removal, seq int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.vouched(); v < seq || seq <= r.To {
		return fmt.Errorf("cannot remove files of the audit log: record %d lists them, and only records up to %d are countersigned "+
			"and anchored: %w", seq, v, errdefs.ErrUnavailable)
	}
	l := c.log
	l.mu.Lock()
	var gone []fullFile
	for len(l.full) > 0 && l.full[0].last <= r.To {
		gone, l.full = append(gone, l.full[0]), l.full[1:]
	}
	l.mu.Unlock()
	for _, f := range gone {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot remove a file of the audit log: %w", err)
		}
		crashpoint.Here("daemon.remove.file-gone")
		if err := syncDir(c.dir); err != nil { // no later file may be removed before this one
			return err
		}
	}
	return nil
}

// removedTo returns the number of the last record that a removed record lists, or 0 for any other
// line.
func removedTo(line []byte) int64 {
	if !bytes.Contains(line, []byte(`,"type":"`+string(Removed)+`",`)) {
		return 0
	}
	rec, err := Decode(line)
	var r Removal
	if err != nil || rec.Type != Removed || rec.Status != StatusOK || json.Unmarshal(rec.Data, &r) != nil {
		return 0
	}
	return r.To
}

// begin makes the chain start behind removed records, if the log does and its base is known. Whether
// carrel removed them is decided by a later record; see allowed.
func (c *chain) begin(path string, first span) error {
	seq, err := firstSeq(first)
	if err != nil || seq <= 1 {
		return err
	}
	known, err := bases(path)
	if err != nil {
		return err
	}
	b, ok := known[seq-1]
	if !ok {
		return nil // the walk reports it
	}
	c.next, c.prev, c.tree = seq, []byte(b.Hash), b.frontier()
	c.gone, c.good, c.v.Removed = b.To, b.To, b.To
	for len(c.known) > 0 && c.known[0].Seq <= b.To {
		c.known = c.known[1:]
	}
	for len(c.marks) > 0 && c.marks[0].Size < b.To {
		c.marks = c.marks[1:] // their records are not there to be checked
	}
	if len(c.marks) > 0 && c.marks[0].Size == b.To && c.marks[0].Root != c.tree.root() {
		c.bad(seq, Replaced, "what was kept of the records before it, which are removed, is not what was signed")
		return nil
	}
	c.meet()
	return nil
}

// firstSeq returns the number of the first record of a file, or 0.
func firstSeq(s span) (int64, error) {
	r := s.open
	if r == nil {
		f, err := untrustedfile.Open(s.path)
		if err != nil {
			return 0, fmt.Errorf("cannot open the audit log: %w", err)
		}
		defer f.Close()
		r = f
	}
	line, err := bufio.NewReaderSize(io.NewSectionReader(r, 0, MaxRecord), MaxRecord).ReadSlice('\n')
	if err != nil {
		return 0, nil //nolint:nilerr // the walk finds what is wrong with it
	}
	f, ok := parseFrame(line[:len(line)-1])
	if !ok {
		return 0, nil
	}
	return f.seq, nil
}

// allowed checks, at the end, that a signed record lists all removed records.
func (c *chain) allowed() {
	if c.v.Bad == nil && c.gone > c.removable {
		c.file, c.line = "", 0
		c.bad(1, TruncatedFront, "records 1 to %d are missing, and no record that is signed says that carrel removed them", c.gone)
	}
}

// declares stores a removed record until a signed tree contains it.
func (c *chain) declares(seq, to int64) {
	if to < seq {
		c.declared = append(c.declared, [2]int64{seq, to})
	}
}

// grant accepts the removed records among those up to seq, which are signed.
func (c *chain) grant(seq int64) {
	for _, d := range c.declared {
		if d[0] <= seq {
			c.removable = max(c.removable, d[1])
		}
	}
}
