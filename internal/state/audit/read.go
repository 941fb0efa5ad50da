package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

// lookAt is how much is read at first to see one line: more than almost every record has.
const lookAt = 4 << 10

// readChunk is how much Read takes from the file at once.
const readChunk = 256 << 10

// Read calls emit with lines in order, without newlines: from sequence number from
// on, or the last n if n > 0. With follow it goes on with new records, which the log
// announces, until ctx ends or the log is closed; both are errors. Otherwise it ends
// with the records that were on disk when it began. The lines are valid until emit
// returns; an error of emit ends Read.
func (l *Log) Read(ctx context.Context, from, n int64, follow bool, emit func(lines [][]byte) error) error {
	if n > 0 {
		from = max(from, l.Head().Seq-n+1)
	}
	next := max(from, 1)
	buf := make([]byte, readChunk)
	counted := func(lines [][]byte) error {
		err := emit(lines)
		if fr, ok := parseFrame(lines[len(lines)-1]); ok && err == nil {
			next = fr.seq + 1 // not next+len(lines): records before the first may have been removed
		}
		return err
	}
	for {
		for _, open := range l.parts(next) {
			p, err := open()
			if err != nil {
				return err
			}
			off, err := p.seek(next, p.end)
			if err == nil {
				err = p.emit(ctx, buf, off, counted)
			}
			if err = errors.Join(err, p.close()); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		if err := l.grown(ctx, next); err != nil {
			return err
		}
	}
}

// part is one file of the log up to the offset end.
type part struct {
	path  string
	f     io.ReaderAt
	end   int64
	close func() error
}

// parts returns functions that open the files with the record seq and later ones.
func (l *Log) parts(seq int64) (open []func() (part, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.full {
		if f.last < seq {
			continue
		}
		open = append(open, func() (part, error) {
			o, err := untrustedfile.Open(f.path)
			if errors.Is(err, os.ErrNotExist) && l.gone(f) {
				return part{path: f.path, f: bytes.NewReader(nil), close: func() error { return nil }}, nil
			}
			if err != nil {
				return part{}, fmt.Errorf("cannot read the audit log: %w; run \"carrel audit verify\": %w", err, errdefs.ErrDataLoss)
			}
			end, err := endOf(o)
			if err != nil {
				return part{}, errors.Join(err, o.Close())
			}
			return part{f.path, o, end, o.Close}, nil
		})
	}
	// The file stays open for its readers, also when it becomes full meanwhile.
	live := part{l.path, l.f, l.size, func() error { return nil }}
	return append(open, func() (part, error) { return live, nil })
}

// emit calls emit with the lines from an offset on.
func (p part) emit(ctx context.Context, buf []byte, off int64, emit func([][]byte) error) error {
	var lines [][]byte
	for off < p.end {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := p.chunk(buf, off, p.end)
		if err != nil {
			return err
		}
		lines = lines[:0]
		for rest := chunk; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			lines = append(lines, rest[:i])
			rest = rest[i+1:]
		}
		if err := emit(lines); err != nil {
			return err
		}
		off += int64(len(chunk))
	}
	return nil
}

// chunk reads whole lines at off, at least one.
func (p part) chunk(buf []byte, off, end int64) ([]byte, error) {
	buf = buf[:min(int64(len(buf)), end-off)]
	if _, err := p.f.ReadAt(buf, off); err != nil {
		return nil, p.errRead(off, err)
	}
	i := bytes.LastIndexByte(buf, '\n')
	if i < 0 {
		return nil, p.errRead(off, errors.New("a line longer than any record"))
	}
	return buf[:i+1], nil
}

// grown waits until the record seq is on disk.
func (l *Log) grown(ctx context.Context, seq int64) error {
	for {
		l.mu.Lock()
		durable, closed, err := l.durable.Seq, l.closed, l.err
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		switch {
		case durable >= seq:
			return nil
		case err != nil:
			return err
		case closed:
			return l.errClosed()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// seek returns the offset of the first record whose seq is at least want, by binary
// search: seq grows along the file and is at a fixed offset of a line.
func (p part) seek(want, end int64) (int64, error) {
	lo, hi := int64(0), end // lo begins a line; the answer is in [lo, hi]
	buf := make([]byte, 2*MaxRecord)
	for hi-lo > int64(len(buf)) {
		mid := lo + (hi-lo)/2
		chunk := buf[:min(int64(len(buf)), hi-mid)]
		if _, err := p.f.ReadAt(chunk, mid); err != nil {
			return 0, p.errRead(mid, err)
		}
		i := bytes.IndexByte(chunk, '\n') + 1
		n := bytes.IndexByte(chunk[i:], '\n')
		if i == 0 || n < 0 {
			break // the loop below finds the last lines of the range
		}
		fr, ok := parseFrame(chunk[i : i+n])
		if !ok {
			return 0, p.errRead(mid+int64(i), errors.New("not a record"))
		}
		if fr.seq < want {
			lo = mid + int64(i)
		} else {
			hi = mid + int64(i)
		}
	}
	for lo < hi {
		chunk, err := p.chunk(buf, lo, hi)
		if err != nil {
			return 0, err
		}
		for len(chunk) > 0 {
			i := bytes.IndexByte(chunk, '\n')
			fr, ok := parseFrame(chunk[:i])
			if !ok {
				return 0, p.errRead(lo, errors.New("not a record"))
			}
			if fr.seq >= want {
				return lo, nil
			}
			lo += int64(i) + 1
			chunk = chunk[i+1:]
		}
	}
	return lo, nil
}

// line returns the line of the first record on disk whose number is at least seq, or nil.
func (l *Log) line(seq int64) ([]byte, error) {
	for _, open := range l.parts(seq) {
		p, err := open()
		if err != nil {
			return nil, err
		}
		line, err := p.line(seq)
		if err = errors.Join(err, p.close()); err != nil || line != nil {
			return line, err
		}
	}
	return nil, nil
}

func (p part) line(seq int64) ([]byte, error) {
	off, err := p.seek(seq, p.end)
	if err != nil || off == p.end {
		return nil, err
	}
	chunk, err := p.chunk(make([]byte, min(MaxRecord, p.end-off)), off, p.end)
	if err != nil {
		return nil, err
	}
	return chunk[:bytes.IndexByte(chunk, '\n')], nil
}

// firstLine returns the first line. It reads little, however long the file is.
func (p part) firstLine() ([]byte, error) {
	chunk, err := p.chunk(make([]byte, lookAt), 0, p.end)
	if err != nil {
		chunk, err = p.chunk(make([]byte, MaxRecord), 0, p.end)
	}
	if err != nil {
		return nil, err
	}
	return chunk[:bytes.IndexByte(chunk, '\n')], nil
}

func (p part) errRead(off int64, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the file is shorter than what was written")
	}
	return fmt.Errorf("cannot read the audit log %s at byte %d: %w; run \"carrel audit verify\": %w",
		p.path, off, err, errdefs.ErrDataLoss)
}
