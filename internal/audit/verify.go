package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Harm is what happened to a log, in a word.
type Harm string

// The harms that Verify tells apart.
const (
	// Edited: the bytes of a record do not give its hash.
	Edited Harm = "edited"
	// Replaced: a record was exchanged for another that is consistent in itself.
	Replaced Harm = "replaced"
	// Deleted: records are missing in the middle.
	Deleted Harm = "deleted"
	// Reordered: records are there, but not in their order.
	Reordered Harm = "reordered"
	// Inserted: a record stands where none was, or stands twice.
	Inserted Harm = "inserted"
	// TruncatedFront and Truncated: the first or last records are missing.
	TruncatedFront Harm = "truncated at the front"
	Truncated      Harm = "truncated"
	// Torn: the last line has no end, as after a crash.
	Torn Harm = "torn"
	// NotJSON and NotRecord: a line is no JSON, or JSON but no record.
	NotJSON   Harm = "not JSON"
	NotRecord Harm = "not a record"
)

// Verdict is what walking a chain found.
type Verdict struct {
	// Records and Bytes count the good ones before the first bad record, and Head
	// is the last of them.
	Records, Bytes int64
	Head           Head
	// Bad is the first bad record, nil if the chain holds.
	Bad *Bad
}

// Bad locates the first bad record and says what is wrong with it.
type Bad struct {
	// Seq is what the record calls itself, or the one expected in its place if it
	// cannot be read or is missing.
	Seq int64
	// Line counts from 1, Offset in bytes from 0.
	Line, Offset int64
	Harm         Harm
	// Detail is one sentence for a person.
	Detail string
}

// Finding is a Verdict in one piece, as surfaces show it.
type Finding struct {
	OK             bool
	Records, Bytes int64
	Head           string
	// Of the first bad record, if not OK.
	BadSeq, BadLine int64
	Harm, Detail    string
}

// Finding flattens v.
func (v Verdict) Finding() Finding {
	f := Finding{OK: v.Bad == nil, Records: v.Records, Bytes: v.Bytes, Head: v.Head.Hash}
	if v.Bad != nil {
		f.BadSeq, f.BadLine, f.Harm, f.Detail = v.Bad.Seq, v.Bad.Line, string(v.Bad.Harm), v.Bad.Detail
	}
	return f
}

// Verify walks the whole chain of r, hashing on every processor. A chain whose
// end was cut off at a line cannot be told from a shorter one: give expect, a
// record that it is known to have reached, or the zero Head. The error is
// about reading; what is wrong with the chain is in the verdict.
func Verify(ctx context.Context, r io.Reader, expect Head) (Verdict, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := chain{next: 1, prev: []byte(Genesis), expect: expect}
	for b := range blocks(ctx, r) {
		<-b.checked
		if b.err != nil {
			return c.verdict(), fmt.Errorf("cannot read the audit log: %w", b.err)
		}
		for i := range b.lines {
			if !c.add(&b.lines[i]) {
				return c.verdict(), ctx.Err()
			}
		}
	}
	c.finish()
	return c.verdict(), ctx.Err()
}

// VerifyFile verifies the log at path. On the log of a running daemon, a record
// that is being written may show as torn; Log.Verify does not have that.
func VerifyFile(ctx context.Context, path string, expect Head) (Verdict, error) {
	f, err := os.Open(path)
	if err != nil {
		return Verdict{}, fmt.Errorf("cannot open the audit log: %w", err)
	}
	defer f.Close()
	return Verify(ctx, f, expect)
}

// Verify verifies what is on disk at this moment, and that it reaches as far as
// this process has written.
func (l *Log) Verify(ctx context.Context) (Verdict, error) {
	l.mu.Lock()
	head, size, closed := l.durable, l.size, l.closed
	l.mu.Unlock()
	if closed {
		return Verdict{}, l.errClosed()
	}
	return Verify(ctx, io.NewSectionReader(l.f, 0, size), head)
}

const blockSize = 1 << 20

// block is a run of whole lines, checked apart from all others.
type block struct {
	data    []byte
	lines   []checkedLine
	err     error
	checked chan struct{}
}

// checkedLine is what can be said of a line without its neighbours.
type checkedLine struct {
	frame
	size int64
	harm Harm // "" if it holds by itself
}

// blocks cuts r into blocks and checks them on every processor, ahead of the
// caller by a bounded number, which get them in order.
func blocks(ctx context.Context, r io.Reader) <-chan *block {
	workers := runtime.GOMAXPROCS(0)
	ordered := make(chan *block, workers)
	work := make(chan *block)
	for range workers {
		go func() {
			for b := range work {
				b.check()
				close(b.checked)
			}
		}()
	}
	go func() {
		defer close(ordered)
		defer close(work)
		var rest []byte
		for {
			b := &block{checked: make(chan struct{})}
			var end bool
			b.data, rest, end, b.err = nextBlock(r, rest)
			select {
			case work <- b:
			case <-ctx.Done():
				return
			}
			select {
			case ordered <- b:
			case <-ctx.Done():
				return
			}
			if end || b.err != nil {
				return
			}
		}
	}()
	return ordered
}

// nextBlock returns carried and what follows it in r up to a newline, and what
// lies behind that. At the end of r, data is all there is.
func nextBlock(r io.Reader, carried []byte) (data, rest []byte, end bool, err error) {
	buf := make([]byte, len(carried)+blockSize)
	copy(buf, carried)
	n, err := io.ReadFull(r, buf[len(carried):])
	buf = buf[:len(carried)+n]
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return buf, nil, true, nil
	case err != nil:
		return nil, nil, true, err
	}
	// Without a newline the whole block is one line that is too long, and is
	// found bad: nothing needs to be carried on.
	if i := bytes.LastIndexByte(buf, '\n') + 1; i > 0 {
		return buf[:i], buf[i:], false, nil
	}
	return buf, nil, false, nil
}

func (b *block) check() {
	b.lines = make([]checkedLine, 0, len(b.data)/512)
	for rest := b.data; len(rest) > 0; {
		line, whole := rest, false
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line, whole = rest[:i], true
		}
		c := checkedLine{size: int64(len(line))}
		if whole {
			c.size++
		}
		c.frame, c.harm = checkLine(line, whole)
		b.lines = append(b.lines, c)
		rest = rest[c.size:]
	}
}

func checkLine(line []byte, whole bool) (frame, Harm) {
	f, ok := parseFrame(line)
	switch {
	case !whole && len(line) < MaxRecord:
		return f, Torn
	case len(line) >= MaxRecord:
		return f, NotRecord
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

// chain follows the links from line to line.
type chain struct {
	v      Verdict
	next   int64  // seq expected
	prev   []byte // hash that the next record must name
	line   int64
	expect Head
	// gap is set when records are missing, to look whether they stand further on.
	gap bool
}

// add takes the next line and reports whether to go on.
func (c *chain) add(l *checkedLine) bool {
	c.line++
	if c.gap {
		// Only a record that holds by itself proves that it was moved.
		if l.harm == "" && l.seq == c.v.Bad.Seq {
			c.v.Bad.Harm = Reordered
			c.v.Bad.Detail = fmt.Sprintf("record %d does not stand behind record %d but at line %d", l.seq, l.seq-1, c.line)
			return false
		}
		return true
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
		return c.bad(l.seq, Inserted, "record %d stands again behind record %d: it was inserted or moved", l.seq, c.next-1)
	case !bytes.Equal(l.prev, c.prev) && l.seq == 1:
		return c.bad(1, Replaced, "record 1 does not begin a chain: its prev_hash is not 64 zeros")
	case !bytes.Equal(l.prev, c.prev):
		return c.bad(l.seq, Replaced, "record %d does not name the hash of record %d as that stands: one of them was replaced and hashed anew", l.seq, l.seq-1)
	case l.seq == c.expect.Seq && string(l.hash) != c.expect.Hash:
		return c.bad(l.seq, Replaced, "record %d is consistent but not the one that was written: the log was rewritten up to it", l.seq)
	}
	c.v.Records++
	c.v.Bytes += l.size
	c.next, c.prev = l.seq+1, l.hash
	return true
}

// broken reports a line that is bad by itself.
func (c *chain) broken(l *checkedLine) bool {
	switch l.harm {
	case Torn:
		return c.bad(c.next, Torn, "the last %d bytes are a line without end, as a crash leaves it: the next start of the daemon cuts them off and says so in a repair record", l.size)
	case NotJSON:
		return c.bad(c.next, NotJSON, "the line in the place of record %d is not JSON", c.next)
	case NotRecord:
		return c.bad(c.next, NotRecord, "the line in the place of record %d does not have the form of a record", c.next)
	default:
		return c.bad(l.seq, Edited, "record %d was changed after it was written: its bytes do not give its hash", l.seq)
	}
}

func (c *chain) bad(seq int64, harm Harm, format string, args ...any) bool {
	c.v.Bad = &Bad{Seq: seq, Line: c.line, Offset: c.v.Bytes, Harm: harm, Detail: fmt.Sprintf(format, args...)}
	return false
}

// finish looks at what only the end shows.
func (c *chain) finish() {
	if c.v.Bad == nil && c.next <= c.expect.Seq {
		c.line++
		c.bad(c.next, Truncated, "the log ends with record %d, and record %d had been written: its end was cut off", c.next-1, c.expect.Seq)
	}
}

func (c *chain) verdict() Verdict {
	if c.v.Records > 0 {
		c.v.Head = Head{Seq: c.next - 1, Hash: string(c.prev)}
	}
	return c.v
}
