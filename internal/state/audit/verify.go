package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Harm names a kind of damage to a log.
type Harm string

// The harms that Verify tells apart.
const (
	// Edited: the bytes of a record do not give its hash.
	Edited Harm = "edited"
	// Replaced: a record was exchanged for another with a valid hash.
	Replaced Harm = "replaced"
	// Deleted: records are missing in the middle.
	Deleted Harm = "deleted"
	// Reordered: records are not in their order.
	Reordered Harm = "reordered"
	// Inserted: a record was added, or occurs twice.
	Inserted Harm = "inserted"
	// TruncatedFront and Truncated: the first or last records are missing.
	TruncatedFront Harm = "truncated at the front"
	Truncated      Harm = "truncated"
	// Torn: the last line has no newline, as after a crash.
	Torn Harm = "torn"
	// Appended: records follow the last that was written.
	Appended Harm = "forged append"
	// Replayed: the log and its checkpoints are an older copy.
	Replayed Harm = "replayed"
	// Forged: a checkpoint is not signed by the log's key.
	Forged Harm = "forged checkpoint"
	// NotJSON and NotRecord: a line is no JSON, or JSON but no record.
	NotJSON   Harm = "not JSON"
	NotRecord Harm = "not a record"
)

// Verdict is the result of a verification.
type Verdict struct {
	// Records and Bytes count the good records before the first bad one, and Head
	// is the last of them.
	Records, Bytes int64
	Head           Head
	// Bad is the first bad record, nil if the chain holds.
	Bad *Bad
	// Checkpoints counts the valid ones of the file. Signed, Countersigned and Anchored are
	// the sizes of the largest trees that the log's key signed, the broker's key signed and
	// the anchor has. Only the chain protects later records.
	Checkpoints, Signed, Countersigned, Anchored int64
	// Removed counts the records that carrel removed from the front, as a signed record
	// says; Records does not count them.
	Removed int64
	// Late are records behind the end of a daemon that are taken for its own, nil if there are none.
	Late *Late
}

// Bad locates the first bad record and says what is wrong with it.
type Bad struct {
	// Seq is the number in the record, or the expected one if the record cannot be
	// read or is missing.
	Seq int64
	// File is the file of the log with the record, "" if it was not read from a file. Line
	// counts from 1 in that file, Offset in bytes from 0.
	File         string
	Line, Offset int64
	Harm         Harm
	// Detail is one sentence for a person.
	Detail string
}

// Finding is a flat Verdict, as surfaces show it.
type Finding struct {
	OK             bool
	Records, Bytes int64
	Head           string
	// The first bad record, if not OK.
	BadSeq, BadLine int64
	Harm, Detail    string
	File            string
	// As in Verdict, and the public keys of the signers.
	Checkpoints, Signed, Countersigned, Anchored int64
	LogKey, BrokerKey                            string
	// Note tells a person what could not be checked.
	Note string
}

// Finding flattens v.
func (v Verdict) Finding() Finding {
	f := Finding{
		OK: v.Bad == nil, Records: v.Records, Bytes: v.Bytes, Head: v.Head.Hash,
		Checkpoints: v.Checkpoints, Signed: v.Signed, Countersigned: v.Countersigned, Anchored: v.Anchored,
	}
	if v.Bad != nil {
		f.BadSeq, f.BadLine, f.Harm, f.Detail, f.File = v.Bad.Seq, v.Bad.Line, string(v.Bad.Harm), v.Bad.Detail, v.Bad.File
	}
	return f
}

// Verify checks the whole chain of r, on all processors. A chain whose last lines
// were cut off looks like a shorter one: expect is a record that it is known to
// contain, or the zero Head. The error is about reading; what is wrong with the
// chain is in the verdict.
func Verify(ctx context.Context, r io.Reader, expect Head) (Verdict, error) {
	c := chain{next: 1, prev: []byte(Genesis), known: knownOf(expect)}
	more, err := c.walk(ctx, r)
	if more && err == nil {
		c.finish()
	}
	return c.verdict(), err
}

// walk checks the lines of r. It returns false if a bad record ended the walk.
func (c *chain) walk(ctx context.Context, r io.Reader) (more bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ordered, free := blocks(ctx, r, c.marks != nil, c.gone > 0)
	for b := range ordered {
		<-b.checked
		if b.err != nil {
			return false, fmt.Errorf("cannot read the audit log: %w", b.err)
		}
		for i := range b.lines {
			if !c.add(&b.lines[i]) {
				return false, ctx.Err()
			}
		}
		select {
		case free <- b:
		default:
		}
	}
	return true, ctx.Err()
}

// blockSize is how much is read at once. It fits the processor's cache, as each line is read several
// times.
const blockSize = 256 << 10

// block is a run of whole lines that is checked independently of others. It is filled again after
// use, which BenchmarkVerifySigned is a fifth slower without.
type block struct {
	buf    []byte // data with a byte before it
	data   []byte
	lines  []checkedLine
	leaves bool // compute the leaves
	// removals: decode removed records; with leaves only.
	removals bool
	err      error
	checked  chan struct{} // takes one value
}

// checkedLine is the result of checking a line without its neighbours.
type checkedLine struct {
	frame
	size int64
	harm Harm // "" if the line is valid by itself
	leaf tlog.Hash
	// line are its bytes without the newline, until its block is filled again.
	line []byte
	// removed is the number of the last record that a removed record lists, else 0.
	removed int64
}

// blocks divides r into blocks and checks them on all processors, a bounded number ahead
// of the caller. The caller gets them in order and returns them through free.
func blocks(ctx context.Context, r io.Reader, leaves, removals bool) (ordered <-chan *block, free chan<- *block) {
	workers := runtime.GOMAXPROCS(0)
	out, used := make(chan *block, workers), make(chan *block, 2*workers+2)
	work := make(chan *block)
	for range workers {
		go func() {
			for b := range work {
				b.check()
				b.checked <- struct{}{}
			}
		}()
	}
	go func() {
		defer close(out)
		defer close(work)
		var rest []byte
		for {
			var b *block
			select {
			case b = <-used:
			default:
				b = &block{checked: make(chan struct{}, 1), leaves: leaves, removals: removals}
			}
			var end bool
			// rest may be a part of the block that is filled now: fill moves it first.
			rest, end = b.fill(r, rest)
			select {
			case work <- b:
			case <-ctx.Done():
				return
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
			if end {
				return
			}
		}
	}()
	return out, used
}

// fill reads into the block behind the carried bytes, and returns what follows the last newline. At
// the end of r, data includes an incomplete line.
func (b *block) fill(r io.Reader, carried []byte) (rest []byte, end bool) {
	if need := 1 + len(carried) + blockSize; cap(b.buf) < need {
		buf := make([]byte, need+MaxRecord)
		copy(buf[1:], carried)
		b.buf = buf
	} else {
		copy(b.buf[1:], carried)
	}
	buf := b.buf[:1+len(carried)+blockSize]
	n, err := io.ReadFull(r, buf[1+len(carried):])
	buf = buf[1 : 1+len(carried)+n]
	b.data, b.err = buf, nil
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, true
	case err != nil:
		b.data, b.err = nil, err
		return nil, true
	}
	// Without a newline the whole block is one line that is too long, and so is
	// bad: nothing needs to be carried over.
	if i := bytes.LastIndexByte(buf, '\n') + 1; i > 0 {
		b.data = buf[:i]
		return buf[i:], false
	}
	return nil, false
}

func (b *block) check() {
	b.lines = b.lines[:0]
	for at := 0; at < len(b.data); {
		line, whole := b.data[at:], false
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line, whole = line[:i], true
		}
		c := checkedLine{size: int64(len(line)), line: line}
		if whole {
			c.size++
		}
		c.frame, c.harm = checkLine(line, whole)
		if b.leaves && c.harm == "" {
			// tlog.RecordHash hashes a zero and the line. The zero overwrites the newline before,
			// which is not needed any more.
			b.buf[at] = 0
			c.leaf = sha256.Sum256(b.buf[at : at+1+len(line)])
			if b.removals {
				c.removed = removedTo(line)
			}
		}
		b.lines = append(b.lines, c)
		at += int(c.size)
	}
}

// checkLine checks a line by itself. For a line as the log writes it, asWritten is fast; for any
// other line checkJSON is slower and tells what is wrong.
func checkLine(line []byte, whole bool) (frame, Harm) {
	f, ok := parseFrame(line)
	switch {
	case !whole && len(line) < MaxRecord:
		return f, Torn
	case len(line) >= MaxRecord:
		return f, NotRecord
	}
	if ok && hashHolds(line, f) && asWritten(line) {
		return f, ""
	}
	valid, plain := checkJSON(line)
	switch {
	case !valid:
		return f, NotJSON
	case !ok:
		return f, NotRecord
	case !hashHolds(line, f):
		return f, Edited
	case !plain:
		return f, NotRecord
	}
	return f, ""
}

// chain checks the links from line to line.
type chain struct {
	v    Verdict
	next int64  // seq expected
	prev []byte // hash that the next record must name
	line int64
	// known are records that were written, the first one first, as far as the walk has not met them.
	known []Head
	// end is where a daemon said that it ended, nil if none did; see end.go.
	end *end
	// gap is set when records are missing, to find out whether they come later.
	gap bool
	// file is the file being read, and start counts the bytes of the files before it.
	file  string
	start int64

	// marks are signed trees that are not reached yet, the smallest first; nil if none are
	// checked. tree is the tree of the records so far, and recent are the records since the
	// last valid mark that counts.
	marks    []mark
	tree     frontier
	recent   []position
	good     int64 // the size of that mark
	byBroker bool  // the broker signed some, so marks that only the log's key signed do not count
	treePath string

	// gone counts the records that were removed before the first, removable how many of them
	// signed records say that carrel removed; declared are from records not known to be signed.
	gone, removable int64
	declared        [][2]int64
}

// position is the position of a record in the log, and its leaf.
type position struct {
	leaf         tlog.Hash
	line, offset int64
	file         string
}

// maxRecent bounds the records that are kept to name the first changed one.
const maxRecent = 1 << 20

// add checks the next line and reports whether to go on.
func (c *chain) add(l *checkedLine) bool {
	c.line++
	if c.gap {
		// Only a valid record proves that it was moved.
		if l.harm == "" && l.seq == c.v.Bad.Seq {
			c.v.Bad.Harm = Reordered
			c.v.Bad.Detail = fmt.Sprintf("record %d does not follow record %d but is at line %d", l.seq, l.seq-1, c.line)
			return false
		}
		return true
	}
	if c.beyond() && (l.harm != "" || l.seq != c.next || !c.follows(l)) {
		return c.forged("")
	}
	switch {
	case l.harm != "":
		return c.broken(l)
	case l.seq > c.next && c.v.Records == 0:
		return c.bad(c.next, TruncatedFront, "records %d to %d are missing: the log begins with record %d", c.next, l.seq-1, l.seq)
	case l.seq > c.next:
		c.bad(c.next, Deleted, "records %d to %d are missing: record %d follows record %d", c.next, l.seq-1, l.seq, c.next-1)
		c.gap = true
		return true
	case l.seq < c.next:
		return c.bad(l.seq, Inserted, "record %d occurs again after record %d: it was inserted or moved", l.seq, c.next-1)
	case !c.follows(l) && l.seq == 1:
		return c.bad(1, Replaced, "record 1 does not begin a chain: its prev_hash is not 64 zeros")
	case !c.follows(l):
		return c.bad(l.seq, Replaced, "record %d does not name the hash of record %d: one of them was replaced and hashed anew",
			l.seq, l.seq-1)
	case len(c.known) > 0 && l.seq == c.known[0].Seq && !c.meetKnown(l):
		return c.bad(l.seq, Replaced, "record %d is valid but not the one that was written: the log was rewritten up to it", l.seq)
	case c.end != nil && l.seq >= c.end.mark.Head.Seq && !c.atEnd(l):
		return false
	}
	if c.marks != nil {
		if l.removed > 0 {
			c.declares(l.seq, l.removed)
		}
		c.tree.add(l.leaf, nil)
		if len(c.recent) < maxRecent {
			c.recent = append(c.recent, position{l.leaf, c.line, c.v.Bytes - c.start, c.file})
		}
	}
	c.v.Records++
	c.v.Bytes += l.size
	c.next, c.prev = l.seq+1, append(c.prev[:0], l.hash...) // the block is filled again
	return c.marks == nil || c.meet()
}

// broken reports a line that is not valid by itself.
func (c *chain) broken(l *checkedLine) bool {
	switch l.harm {
	case Torn:
		return c.bad(c.next, Torn, "the last %d bytes are an incomplete line, as a crash leaves it: "+
			"the next start of the daemon cuts them off and writes a repair record", l.size)
	case NotJSON:
		return c.bad(c.next, NotJSON, "the line where record %d is expected is not JSON", c.next)
	case NotRecord:
		return c.bad(c.next, NotRecord, "the line where record %d is expected does not have the form of a record", c.next)
	default:
		return c.bad(l.seq, Edited, "record %d was changed after it was written: its bytes do not give its hash", l.seq)
	}
}

func (c *chain) bad(seq int64, harm Harm, format string, args ...any) bool {
	c.v.Bad = &Bad{
		Seq: seq, File: c.file, Line: c.line, Offset: c.v.Bytes - c.start, Harm: harm, Detail: fmt.Sprintf(format, args...),
	}
	return false
}

// knownOf lists the records that are known, in order.
func knownOf(heads ...Head) (known []Head) {
	for _, h := range heads {
		if h.Seq > 0 && !slices.Contains(known, h) {
			known = append(known, h)
		}
	}
	slices.SortStableFunc(known, func(a, b Head) int { return cmp.Compare(a.Seq, b.Seq) })
	return known
}

// follows reports whether a line names the hash of the one before, which is not known of the first of a walk that begins with
// a known record.
func (c *chain) follows(l *checkedLine) bool { return c.prev == nil || bytes.Equal(l.prev, c.prev) }

// meetKnown compares a line with what is known of it.
func (c *chain) meetKnown(l *checkedLine) bool {
	for len(c.known) > 0 && c.known[0].Seq == l.seq {
		if c.known[0].Hash != string(l.hash) {
			return false
		}
		c.known = c.known[1:]
	}
	return true
}

// finish checks whether the chain ends too early.
func (c *chain) finish() {
	defer c.allowed()
	if c.v.Bad == nil && len(c.known) > 0 {
		c.line++
		c.bad(c.next, Truncated, "the log ends with record %d, and record %d had been written: its end was cut off", c.next-1,
			c.known[len(c.known)-1].Seq)
	}
	if c.v.Bad == nil && len(c.marks) > 0 {
		c.line++
		c.short()
	}
}

func (c *chain) verdict() Verdict {
	if c.end != nil && c.v.Bad == nil {
		c.v.Late = c.end.late
	}
	if c.v.Records > 0 {
		c.v.Head = Head{Seq: c.next - 1, Hash: string(c.prev)}
	}
	return c.v
}
