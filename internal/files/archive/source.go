package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

const (
	// chunkBytes is a multiple of a block, so that no block is in two chunks. There are enough
	// chunks for several files that wait to be created.
	chunkBytes = 256 << 10
	chunks     = 48
	// maxWindow bounds the window of a frame, and so the decoder's memory. zstd uses that much
	// up to level 19.
	maxWindow = 8 << 20
	// maxTail bounds the zeros after the end mark: the largest record of tar.
	maxTail = 1 << 20
)

// chunk is a part of the tar stream. It is filled again when nobody holds it.
type chunk struct {
	b    []byte
	held atomic.Int32
	free chan<- *chunk
}

func (c *chunk) release() {
	if c.held.Add(-1) == 0 {
		c.free <- c
	}
}

// source is the tar stream, decompressed ahead in a goroutine of its own.
type source struct {
	ctx   context.Context
	in    summing
	ratio int64
	free  chan *chunk
	full  chan *chunk
	end   error // why full was closed

	cur   *chunk
	rest  []byte // of cur
	bytes int64
}

// summing counts and hashes what it reads.
type summing struct {
	r   io.Reader
	n   int64
	sum hash.Hash
}

func (s *summing) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	s.sum.Write(b[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("cannot read the archive: %w: see whether its file can be read and its sender runs: %w", err, errdefs.ErrUnavailable)
	}
	return n, err
}

func newSource(ctx context.Context, r io.Reader, ratio int64) *source {
	s := &source{
		ctx: ctx, in: summing{r: r, sum: sha256.New()}, ratio: ratio,
		free: make(chan *chunk, chunks), full: make(chan *chunk, chunks),
	}
	for range chunks {
		s.free <- &chunk{free: s.free}
	}
	return s
}

// fill decompresses until the end, an error or the end of ctx.
func (s *source) fill() {
	defer close(s.full)
	s.end = s.decode()
}

func (s *source) decode() error {
	dec, err := zstd.NewReader(&s.in,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return fmt.Errorf("cannot set the decompressor up: %w: %w", err, errdefs.ErrInternal)
	}
	defer dec.Close()
	for total := int64(0); ; {
		var c *chunk
		select {
		case c = <-s.free:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if c.b == nil {
			c.b = make([]byte, chunkBytes)
		}
		n, err := io.ReadFull(dec, c.b[:chunkBytes])
		total += int64(n)
		if s.ratio > 0 && total > RatioFloor && total/s.ratio > s.in.n {
			return fmt.Errorf("each byte of the archive gives more than %d bytes: raise the limit of the ratio if it can be trusted: %w",
				s.ratio, errdefs.ErrResourceExhausted)
		}
		c.b = c.b[:n]
		c.held.Store(1)
		s.full <- c // never blocks: it has the capacity for all chunks
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && s.whole(dec):
			return io.EOF
		default:
			return decoded(err)
		}
	}
}

// whole reports whether io.ReadFull met the end of the stream, and not one inside a frame: the
// decoder returns its own error again.
func (s *source) whole(dec *zstd.Decoder) bool {
	_, err := dec.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func decoded(err error) error {
	switch {
	case errors.Is(err, errdefs.ErrUnavailable):
		return err
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("the archive needs a window of more than %d bytes: compress it again without --long and --ultra: %w",
			maxWindow, errdefs.ErrResourceExhausted)
	case errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("this is no zstd stream, or something follows its end: give a whole .tar.zst and nothing else: %w",
			errdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("the archive is cut short or damaged: %w: take another copy: %w", err, errdefs.ErrDataLoss)
	}
}

// block returns the next block, valid until the next call of block or piece.
func (s *source) block() ([]byte, error) {
	b, err := s.some()
	if err != nil {
		return nil, err
	}
	if len(b) < tarfmt.BlockSize {
		return nil, io.EOF // the stream ends inside a block
	}
	s.step(tarfmt.BlockSize)
	return b[:tarfmt.BlockSize], nil
}

// piece returns at most n of the next bytes and their chunk, which the caller must release.
func (s *source) piece(n int64) ([]byte, *chunk, error) {
	b, err := s.some()
	if err != nil {
		return nil, nil, err
	}
	b = b[:min(int64(len(b)), n)]
	s.step(len(b))
	s.cur.held.Add(1)
	return b, s.cur, nil
}

func (s *source) step(n int) {
	s.rest = s.rest[n:]
	s.bytes += int64(n)
}

// some returns the bytes left of the current chunk, and waits for the next chunk if there are
// none.
func (s *source) some() ([]byte, error) {
	for len(s.rest) == 0 {
		if s.cur != nil {
			s.cur.release()
			s.cur = nil
		}
		select {
		case c, ok := <-s.full:
			if !ok {
				return nil, s.end
			}
			s.cur, s.rest = c, c.b
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
	return s.rest, nil
}

// skip skips n bytes of padding.
func (s *source) skip(n int64) error {
	for n > 0 {
		b, c, err := s.piece(n)
		if err != nil {
			return short(err)
		}
		c.release()
		n -= int64(len(b))
	}
	return nil
}

// tail checks that only zeros follow the end mark, and returns the hash of the compressed
// stream.
func (s *source) tail() (string, error) {
	for total := 0; ; {
		b, err := s.some()
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(s.in.sum.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
		for _, c := range b {
			if c != 0 {
				return "", fmt.Errorf("something follows the archive's end mark: it is damaged or made to harm, take another copy: %w",
					errdefs.ErrInvalidArgument)
			}
		}
		if total += len(b); total > maxTail {
			return "", tooMany("bytes after the end mark", maxTail)
		}
		s.step(len(b))
	}
}

// short explains an end of the stream in the middle of an entry.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the archive ends before its end mark: it was cut short, take another copy: %w", errdefs.ErrDataLoss)
	}
	return err
}
