package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

// Trust is the evidence against which a log is verified. All fields are optional.
type Trust struct {
	// Expect is a record that the log is known to have reached.
	Expect Head
	// Since and Known are what the daemon's database has of the log; see Options.
	Since Mark
	Known Head
	// Keys are the public keys whose signatures count. Without the log's key its checkpoints
	// are ignored, which the verdict shows.
	Keys checkpoint.Keys
	// Countersigned is the last checkpoint that the broker signed, as it says.
	Countersigned checkpoint.Checkpoint
	// Anchor is the path of the anchor.
	Anchor string
}

// mark is a tree that somebody signed.
type mark struct {
	checkpoint.Signed
	from source
}

// source is the origin of a mark.
type source string

const (
	fromFile   source = "the checkpoint"
	fromAnchor source = "the anchor's checkpoint"
	fromBroker source = "what the broker signed last,"
)

// VerifyFile verifies the log at path by its chain only. In the log of a running daemon a record
// that is being written may be reported as torn; Log.Verify avoids that.
func VerifyFile(ctx context.Context, path string, expect Head) (Verdict, error) {
	return VerifyLog(ctx, path, Trust{Expect: expect})
}

// VerifyLog verifies all files of the log at path and compares it with t. See VerifyFile.
func VerifyLog(ctx context.Context, path string, t Trust) (Verdict, error) {
	files, err := filesOf(path)
	if err != nil {
		return Verdict{}, err
	}
	return verifyFiles(ctx, path, files, t)
}

// span is a file of the log, of which the first size bytes count; negative means all.
type span struct {
	path string
	size int64
	open io.ReaderAt // if it is open already; then size counts
	skip int64       // so many bytes at its beginning do not count
}

// behind is the part of a file from a record on.
func (s span) behind(seq int64) (span, error) {
	p := part{path: s.path, f: s.open, end: s.size}
	if s.open == nil {
		f, err := untrustedfile.Open(s.path)
		if err != nil {
			return s, err
		}
		defer f.Close()
		p.f = f
		if p.end, err = endOf(f); err != nil {
			return s, err
		}
	}
	at, err := p.seek(seq, p.end)
	s.skip = at
	return s, err
}

// filesOf lists the files of the log at path in order: the full ones and the current one.
func filesOf(path string) ([]span, error) {
	full, err := fullFiles(path)
	if err != nil {
		return nil, err
	}
	files := make([]span, 0, len(full)+1)
	live, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the audit log: %w", err)
	}
	for _, f := range full {
		if fi, err := os.Stat(f.path); err == nil && os.SameFile(fi, live) {
			continue // a rotation that was killed left a second name of the current file
		}
		files = append(files, span{path: f.path, size: -1})
	}
	return append(files, span{path: path, size: -1}), nil
}

// verifyFiles is what every verdict on a log comes from: that of a start too, which reads from the record on that
// its mark names (see Log.judge).
func verifyFiles(ctx context.Context, path string, files []span, t Trust) (Verdict, error) {
	marks, forged, err := t.marks(path)
	if err != nil {
		return Verdict{}, err
	}
	c := chain{next: 1, prev: []byte(Genesis), marks: marks, treePath: filepath.Join(filepath.Dir(path), treeName)}
	c.byBroker = slices.ContainsFunc(marks, func(m mark) bool { return m.Broker })
	if err := c.knows(path, t); err != nil {
		return Verdict{}, err
	}
	if err := c.begin(path, files[0]); err != nil {
		return Verdict{}, err
	}
	return c.walkFiles(ctx, files, forged)
}

// knows has the chain hold to what is known of it beside its checkpoints.
func (c *chain) knows(path string, t Trust) error {
	c.known = knownOf(t.Since.Head, t.Known, t.Expect)
	if !t.Since.Ended {
		return nil
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("cannot open the audit log: %w", err)
	}
	c.end = endOfMark(t.Since, t.Known, changedAt(fi))
	return nil
}

// walkFiles checks the lines of files up to the end. forged is the first bad checkpoint.
func (c *chain) walkFiles(ctx context.Context, files []span, forged *Bad) (_ Verdict, err error) {
	more := c.v.Bad == nil
	for i, s := range files {
		if !more {
			break
		}
		if more, err = c.walkFile(ctx, s, i == len(files)-1); !more || err != nil {
			break
		}
	}
	if more && err == nil {
		c.finish()
	}
	if c.v.Bad == nil && err == nil {
		c.v.Bad = forged
	}
	return c.verdict(), err
}

// walkFile checks the lines of a file; last: it is the one that is written.
func (c *chain) walkFile(ctx context.Context, s span, last bool) (bool, error) {
	c.file, c.line, c.start = filepath.Base(s.path), 0, c.v.Bytes
	if s.open != nil {
		return c.walk(ctx, io.NewSectionReader(s.open, s.skip, s.size-s.skip))
	}
	f, err := untrustedfile.Open(s.path)
	if err != nil {
		return false, fmt.Errorf("cannot open the audit log: %w", err)
	}
	defer f.Close()
	data, err := endOf(f)
	if err != nil {
		return false, err
	}
	whole := data
	if last {
		if whole, err = firstZero(f, data); err != nil {
			return false, err
		}
	}
	if whole == data {
		return c.walk(ctx, io.NewSectionReader(f, s.skip, data-s.skip))
	}
	if whole, err = endOfLines(f, whole); err != nil {
		return false, err
	}
	more, err := c.walk(ctx, io.NewSectionReader(f, s.skip, max(0, whole-s.skip)))
	switch {
	case !more || err != nil:
		return more, err
	case len(c.known) > 0 || len(c.marks) > 0: // a record that was written follows, or should
		return c.walk(ctx, io.NewSectionReader(f, whole, data-whole))
	case c.beyond(): // what is torn was not left by a daemon that ended
		c.line++
		return c.forged(""), nil
	}
	c.line++ // a page of what was written last did not reach the disk
	return c.broken(&checkedLine{size: data - whole, harm: Torn}), nil
}

// marks reads the checkpoints beside the log at path and in the anchor. forged is the first one
// with a wrong signature or order.
func (t Trust) marks(path string) (marks []mark, forged *Bad, err error) {
	marks = []mark{}
	if t.Keys.Log != nil {
		file := filepath.Join(filepath.Dir(path), checkpointsName)
		b, err := untrustedfile.Read(file, maxNotes)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, fmt.Errorf("cannot read the checkpoints of the audit log: %w", err)
		}
		marks, forged = t.notes(b)
	}
	if t.Anchor != "" && t.Keys.Log != nil {
		b, err := untrustedfile.Read(t.Anchor, maxNotes)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, fmt.Errorf("cannot read the anchor of the audit log: %w", err)
		}
		for _, n := range scanNotes(b) {
			// Other text is no error: a full disk leaves half a note, and others may write there.
			if s, err := checkpoint.Open(n, t.Keys); err == nil && s.Log {
				marks = append(marks, mark{s, fromAnchor})
			}
		}
	}
	if t.Countersigned.Size > 0 {
		marks = append(marks, mark{checkpoint.Signed{Checkpoint: t.Countersigned, Broker: true}, fromBroker})
	}
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.Size, b.Size) })
	if len(marks) == 0 {
		marks = nil
	}
	return marks, forged, nil
}

// notes reads the log's own checkpoints.
func (t Trust) notes(b []byte) (marks []mark, forged *Bad) {
	notes, whole := checkpoint.Split(b)
	bad := func(i int, harm Harm, format string, args ...any) *Bad {
		return &Bad{File: checkpointsName, Line: int64(i + 1), Harm: harm, Detail: fmt.Sprintf(format, args...)}
	}
	var last int64
	for i, n := range notes {
		s, err := checkpoint.Open(n, t.Keys)
		switch {
		case err != nil || !s.Log || s.Origin != t.Keys.Log.Name():
			if forged == nil {
				forged = bad(i, Forged, "checkpoint %d of the file is not one that the log's key signed", i+1)
			}
			continue
		case s.Size < last && forged == nil:
			forged = bad(i, Reordered, "checkpoint %d of the file, of record %d, follows one of record %d", i+1, s.Size, last)
		}
		last = max(last, s.Size)
		marks = append(marks, mark{s, fromFile})
	}
	if len(b)-whole > checkpoint.MaxNote && forged == nil {
		forged = bad(len(notes), Forged, "the file of checkpoints ends with something else")
	}
	return marks, forged
}

// scanNotes finds the notes in a text.
func scanNotes(b []byte) (notes [][]byte) {
	parts := bytes.Split(b, []byte("\n\n"))
	for i := 1; i < len(parts)-1; i++ {
		if bytes.HasPrefix(parts[i], []byte("— ")) {
			notes = append(notes, slices.Concat(parts[i-1], []byte("\n\n"), parts[i], []byte("\n")))
		}
	}
	return notes
}

// meet compares the tree with the marks of its size, and reports whether to go on.
func (c *chain) meet() bool {
	for len(c.marks) > 0 && c.marks[0].Size == c.tree.n {
		m := c.marks[0]
		if m.Root != c.tree.root() {
			c.changed(m)
			return false
		}
		c.marks = c.marks[1:]
		c.vouched(m)
		if m.Broker || !c.byBroker {
			c.grant(m.Size)
			c.recent, c.good = c.recent[:0], m.Size
		}
	}
	return true
}

func (c *chain) vouched(m mark) {
	switch m.from {
	case fromFile:
		c.v.Checkpoints++
	case fromAnchor:
		c.v.Anchored = m.Size
	case fromBroker: // by its key, below
	}
	if m.Log {
		c.v.Signed = m.Size
	}
	if m.Broker {
		c.v.Countersigned = m.Size
	}
}

// changed reports that the tree is not the one that was signed. It names the first record that
// differs if the stored hashes are those of the signed tree.
func (c *chain) changed(m mark) {
	first := c.good
	by := "the log's key"
	if m.Broker {
		by = "the broker's key"
	}
	stored := storedLeaves(c.treePath, m.Checkpoint, first)
	for i, leaf := range stored[:min(len(stored), len(c.recent))] {
		if p := c.recent[i]; p.leaf != leaf {
			c.v.Bad = &Bad{
				Seq: first + int64(i) + 1, File: p.file, Line: p.line, Offset: p.offset, Harm: Replaced,
				Detail: fmt.Sprintf("record %d is not the one that was signed: %s of record %d, by %s, is of another",
					first+int64(i)+1, m.from, m.Size, by),
			}
			return
		}
	}
	p := c.recent[0]
	c.v.Bad = &Bad{
		Seq: first + 1, File: p.file, Line: p.line, Offset: p.offset, Harm: Replaced,
		Detail: fmt.Sprintf("one of the records %d to %d is not the one that was signed: %s of record %d, by %s, has another tree",
			first+1, m.Size, m.from, m.Size, by),
	}
}

// storedLeaves returns the leaves behind the first ones from the file of hashes, if that is the
// file of the signed tree, or nil.
func storedLeaves(path string, c checkpoint.Checkpoint, first int64) []tlog.Hash {
	f, err := untrustedfile.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || c.Size > maxRecent || fi.Size() < tlog.StoredHashCount(c.Size)*tlog.HashSize {
		return nil
	}
	stored := &tree{f: f, written: fi.Size() / tlog.HashSize}
	at := make([]int64, 0, c.Size)
	for n := range c.Size {
		at = append(at, tlog.StoredHashIndex(0, n))
	}
	leaves, err := stored.ReadHashes(at)
	if err != nil {
		return nil
	}
	var whole frontier
	for _, l := range leaves {
		whole.add(l, nil)
	}
	if whole.root() != c.Root {
		return nil
	}
	return leaves[first:]
}

// short reports that the log ends before a signed record.
func (c *chain) short() {
	last := c.marks[len(c.marks)-1]
	own := slices.ContainsFunc(c.marks, func(m mark) bool { return m.from == fromFile })
	harm, why := Truncated, "its end was cut off"
	if !own {
		harm, why = Replayed, "log and checkpoints are an older copy, or their ends were cut off together"
	}
	c.bad(c.next, harm, "the log ends with record %d, and %s is of record %d: %s", c.next-1, last.from, last.Size, why)
}

// BrokerState reads the last checkpoint that the broker signed from the broker's own file. Only
// root can.
func BrokerState(path string) (checkpoint.Checkpoint, error) {
	var s struct {
		Origin string    `json:"origin"`
		Size   int64     `json:"size"`
		Root   tlog.Hash `json:"root"`
	}
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return checkpoint.Checkpoint{}, fmt.Errorf("cannot read what the broker signed last: %w", err)
	}
	return checkpoint.Checkpoint(s), nil
}

// Verify verifies what is on disk at this moment, and that it ends where this process ended
// writing.
func (l *Log) Verify(ctx context.Context) (Verdict, error) { return l.verify(ctx, Trust{}) }

func (l *Log) verify(ctx context.Context, t Trust) (Verdict, error) {
	for {
		first := l.kept()
		v, err := l.verifyNow(ctx, t)
		if errors.Is(err, os.ErrNotExist) && l.kept() > first {
			continue // a full file was removed meanwhile
		}
		return v, err
	}
}

func (l *Log) verifyNow(ctx context.Context, t Trust) (Verdict, error) {
	if err := l.InPlace(); err != nil {
		return Verdict{}, err
	}
	l.mu.Lock()
	head, size, closed := l.durable, l.size, l.closed
	var files []span
	for _, f := range l.full {
		files = append(files, span{path: f.path, size: -1})
	}
	// A rotation may soon give its name to the next file.
	files = append(files, span{path: l.path, size: size, open: l.f})
	l.mu.Unlock()
	if closed {
		return Verdict{}, l.errClosed()
	}
	t.Expect = head
	v, err := verifyFiles(ctx, l.path, files, t)
	if err == nil && v.Bad == nil && l.longer(100) {
		v.Bad = &Bad{
			Seq: head.Seq + 1, File: filepath.Base(l.path), Line: v.Records + 1, Offset: size, Harm: Appended,
			Detail: fmt.Sprintf("something follows record %d that this daemon did not write", l.Head().Seq),
		}
	}
	return v, err
}

// longer reports whether the file has more than this process wrote. It looks only while nothing is
// being written, and tries so many times: in a log that is always being written the next line is put there.
func (l *Log) longer(times int) bool {
	for range times {
		if _, err := l.Mark(); err != nil {
			return false
		}
		l.mu.Lock()
		idle, size, f := !l.writing && len(l.pending) == 0, l.size, l.f
		var fi os.FileInfo
		var err error
		if idle {
			fi, err = os.Stat(l.path)
		}
		l.mu.Unlock()
		if idle {
			if err != nil {
				return false
			}
			if end, err := dataEnd(f, fi.Size()); err != nil || end <= size {
				return false
			}
			l.mu.Lock()
			same := !l.writing && len(l.pending) == 0 && l.size == size && l.f == f
			l.mu.Unlock()
			if same {
				return true
			} // else it may be a line that was written while the file was looked at
		}
	}
	return false
}

// Verify makes a checkpoint, for which it asks the broker, and verifies the whole log against all
// checkpoints, the broker and the anchor.
func (c *Checkpoints) Verify(ctx context.Context) (Finding, error) {
	c.mu.Lock()
	c.asked = false
	c.mu.Unlock()
	_, merr := c.Make(ctx)
	c.mu.Lock()
	t := Trust{Keys: c.keys, Countersigned: c.countersigned, Anchor: c.o.Anchor}
	c.mu.Unlock()
	if t.Anchor != "" {
		if f, err := untrustedfile.Open(t.Anchor); err != nil { // reported below
			t.Anchor = ""
		} else {
			_ = f.Close()
		}
	}
	v, err := c.log.verify(ctx, t)
	if err != nil {
		return Finding{}, err
	}
	if v.Bad == nil && merr != nil && (errors.Is(merr, ErrDamaged) || errdefs.IsFailedPrecondition(merr)) {
		v.Bad = &Bad{Seq: v.Head.Seq, Harm: Replayed, Detail: merr.Error()}
	}
	f := v.Finding()
	s := c.State()
	f.LogKey, f.BrokerKey = s.LogKey, s.BrokerKey
	var notes []string
	if v.Removed > 0 && f.OK {
		notes = append(notes, fmt.Sprintf("it begins with record %d: carrel removed records 1 to %d by audit.retention, as a signed record says",
			v.Removed+1, v.Removed))
	}
	switch {
	case !s.Broker:
		notes = append(notes, "there is no broker here to countersign: anybody with the log's key can sign another log")
	case merr != nil && f.OK:
		notes = append(notes, merr.Error())
	}
	if s.Anchor != "" && f.Anchored < f.Countersigned {
		notes = append(notes, fmt.Sprintf("the anchor %s reaches to record %d only", s.Anchor, f.Anchored))
	}
	f.Note = strings.Join(notes, "; ")
	return f, nil
}
