package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

// readChunk is how much Read takes from the file at once.
const readChunk = 256 << 10

// Read calls emit with lines in order, newlines left out: from sequence number
// from on, or the last n if n > 0. With follow it goes on with new ones, told by
// the log and not by looking, until ctx ends or the log is closed; both end it
// with an error. Without, it ends with what was on disk when it began. The lines
// are valid until emit returns; an error of emit ends Read.
func (l *Log) Read(ctx context.Context, from, n int64, follow bool, emit func(lines [][]byte) error) error {
	l.mu.Lock()
	head, end := l.durable, l.size
	l.mu.Unlock()
	if n > 0 {
		from = max(from, head.Seq-n+1)
	}
	off, err := l.seek(max(from, 1), end)
	if err != nil {
		return err
	}
	buf := make([]byte, readChunk)
	for {
		if off, err = l.emit(ctx, buf, off, end, emit); err != nil || !follow {
			return err
		}
		if end, err = l.grown(ctx, off); err != nil {
			return err
		}
	}
}

// emit passes the lines between two offsets on and returns where it ended.
func (l *Log) emit(ctx context.Context, buf []byte, off, end int64, emit func([][]byte) error) (int64, error) {
	var lines [][]byte
	for off < end {
		if err := ctx.Err(); err != nil {
			return off, err
		}
		chunk, err := l.chunk(buf, off, end)
		if err != nil {
			return off, err
		}
		lines = lines[:0]
		for rest := chunk; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			lines = append(lines, rest[:i])
			rest = rest[i+1:]
		}
		if err := emit(lines); err != nil {
			return off, err
		}
		off += int64(len(chunk))
	}
	return off, nil
}

// chunk reads whole lines at off, at least one.
func (l *Log) chunk(buf []byte, off, end int64) ([]byte, error) {
	buf = buf[:min(int64(len(buf)), end-off)]
	if _, err := l.f.ReadAt(buf, off); err != nil {
		return nil, l.errRead(off, err)
	}
	i := bytes.LastIndexByte(buf, '\n')
	if i < 0 {
		return nil, l.errRead(off, errors.New("a line longer than any record"))
	}
	return buf[:i+1], nil
}

// grown waits until the log reaches beyond off.
func (l *Log) grown(ctx context.Context, off int64) (int64, error) {
	for {
		l.mu.Lock()
		size, closed, err := l.size, l.closed, l.err
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		switch {
		case size > off:
			return size, nil
		case err != nil:
			return 0, err
		case closed:
			return 0, l.errClosed()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// seek returns the offset of the first record whose seq is at least want, by
// halving the file: seq grows along it and stands at a fixed place in a line.
func (l *Log) seek(want, end int64) (int64, error) {
	lo, hi := int64(0), end // lo begins a line; the answer is in [lo, hi]
	buf := make([]byte, 2*MaxRecord)
	for hi-lo > int64(len(buf)) {
		mid := lo + (hi-lo)/2
		chunk := buf[:min(int64(len(buf)), hi-mid)]
		if _, err := l.f.ReadAt(chunk, mid); err != nil {
			return 0, l.errRead(mid, err)
		}
		i := bytes.IndexByte(chunk, '\n') + 1
		n := bytes.IndexByte(chunk[i:], '\n')
		if i == 0 || n < 0 {
			break // the last lines of the range are found by the walk below
		}
		fr, ok := parseFrame(chunk[i : i+n])
		if !ok {
			return 0, l.errRead(mid+int64(i), errors.New("not a record"))
		}
		if fr.seq < want {
			lo = mid + int64(i)
		} else {
			hi = mid + int64(i)
		}
	}
	for lo < hi {
		chunk, err := l.chunk(buf, lo, hi)
		if err != nil {
			return 0, err
		}
		for len(chunk) > 0 {
			i := bytes.IndexByte(chunk, '\n')
			fr, ok := parseFrame(chunk[:i])
			if !ok {
				return 0, l.errRead(lo, errors.New("not a record"))
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

// line returns the record seq, which is on disk.
func (l *Log) line(seq int64) ([]byte, error) {
	l.mu.Lock()
	end := l.size
	l.mu.Unlock()
	return l.lineAt(seq, end)
}

// lineAt returns the line of the first record before end whose seq is at least
// seq, or none.
func (l *Log) lineAt(seq, end int64) ([]byte, error) {
	off, err := l.seek(seq, end)
	if err != nil || off == end {
		return nil, err
	}
	chunk, err := l.chunk(make([]byte, min(MaxRecord, end-off)), off, end)
	if err != nil {
		return nil, err
	}
	return chunk[:bytes.IndexByte(chunk, '\n')], nil
}

func (l *Log) errRead(off int64, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the file is shorter than what was written")
	}
	return fmt.Errorf("cannot read the audit log %s at byte %d: %w; run \"carrel audit verify\": %w", l.path, off, err, errdefs.ErrDataLoss)
}
