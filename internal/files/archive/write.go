package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

const (
	// pieceBytes is the unit in which files are read and compressed. There are as many as
	// pieces, which bounds how far reading is ahead of compression.
	pieceBytes = 512 << 10
	pieces     = 6
	// window is the compressor's window, and so the memory that a reader needs.
	window = 1 << 20
)

// Write packs the tree below dir, which belongs to the owner of dir, into w. It returns when
// everything is written; after an error w has no archive. What changes meanwhile is packed in the
// state in which it is read, and counted. If w blocks, Write waits also after the end of ctx:
// whoever ends ctx must close w.
func Write(ctx context.Context, w io.Writer, dir *os.File, l Limits, o Options) (Summary, error) {
	l, err := l.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	out := &counting{w: w, sum: sha256.New()}
	enc, err := zstd.NewWriter(out,
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithConcurrentBlocks(true),
		zstd.WithWindowSize(window), zstd.WithEncoderCRC(true), zstd.WithZeroFrames(true))
	if err != nil {
		return Summary{}, fmt.Errorf("cannot set up the compressor: %w: %w", err, errdefs.ErrInternal)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := newSpool(ctx)
	done := make(chan error, 1)
	go func() {
		err := s.drain(enc)
		if err != nil {
			cancel(err)
			// Only Close ends its goroutines. It must not end the stream like a whole archive.
			out.stopped.Store(true)
			_ = enc.Close()
		}
		done <- err
	}()
	p := packer{spool: s, limits: l, options: o, links: map[inode]link{}, progress: progress{tell: o.Progress}}
	err = withFD(dir, p.tree)
	if err == nil {
		err = s.write(tarfmt.AppendEnd(nil))
	}
	if err == nil {
		err = s.flush()
	}
	if err != nil {
		cancel(err) // so that drain does not end the stream like a whole archive
	}
	close(s.full)
	if e := <-done; err == nil {
		err = e
	}
	p.Stream, p.Archive = s.bytes, out.n
	if err != nil {
		return p.Summary, cause(ctx, err)
	}
	p.SHA256 = hex.EncodeToString(out.sum.Sum(nil))
	return p.Summary, nil
}

// counting counts and hashes what it writes, until it is stopped.
type counting struct {
	w       io.Writer
	n       int64
	sum     hash.Hash
	stopped atomic.Bool
}

func (c *counting) Write(b []byte) (int, error) {
	if c.stopped.Load() {
		return 0, io.ErrClosedPipe
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.sum.Write(b[:n])
	return n, err
}

// spool passes data to the compressor, a piece at a time.
type spool struct {
	ctx        context.Context
	free, full chan []byte
	piece      []byte
	bytes      int64
}

func newSpool(ctx context.Context) *spool {
	s := &spool{ctx: ctx, free: make(chan []byte, pieces), full: make(chan []byte, pieces)}
	for range pieces {
		s.free <- make([]byte, 0, pieceBytes)
	}
	return s
}

// space returns the free part of the current piece, which is never empty. advance then takes what
// was written there.
func (s *spool) space() ([]byte, error) {
	if s.piece == nil {
		select {
		case s.piece = <-s.free:
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
	return s.piece[len(s.piece):cap(s.piece)], nil
}

func (s *spool) advance(n int) error {
	s.piece = s.piece[:len(s.piece)+n]
	s.bytes += int64(n)
	if len(s.piece) < cap(s.piece) {
		return nil
	}
	return s.flush()
}

func (s *spool) flush() error {
	if s.piece == nil {
		return nil
	}
	select {
	case s.full <- s.piece:
		s.piece = nil
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *spool) write(b []byte) error {
	for len(b) > 0 {
		buf, err := s.space()
		if err != nil {
			return err
		}
		n := copy(buf, b)
		if err := s.advance(n); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// zeros writes n zeros.
func (s *spool) zeros(n int64) error {
	for n > 0 {
		buf, err := s.space()
		if err != nil {
			return err
		}
		buf = buf[:min(int64(len(buf)), n)]
		clear(buf)
		if err := s.advance(len(buf)); err != nil {
			return err
		}
		n -= int64(len(buf))
	}
	return nil
}

// file writes n bytes of fd from offset at on. Because the header is already written, it fills up
// a file that has become shorter with zeros, and returns short.
func (s *spool) file(fd int, at, n int64, tick func(n int64)) (short bool, err error) {
	for n > 0 {
		buf, err := s.space()
		if err != nil {
			return false, err
		}
		buf = buf[:min(int64(len(buf)), n)]
		got, err := again(func() (int, error) { return unix.Pread(fd, buf, at) })
		if err != nil {
			return false, os.NewSyscallError("read", err)
		}
		if got == 0 {
			tick(n)
			return true, s.zeros(n)
		}
		if err := s.advance(got); err != nil {
			return false, err
		}
		at, n = at+int64(got), n-int64(got)
		tick(int64(got))
	}
	return false, nil
}

// drain compresses until full is closed. After an error it still takes pieces, so that nobody
// waits for it.
func (s *spool) drain(enc *zstd.Encoder) (err error) {
	for piece := range s.full {
		if err == nil && s.ctx.Err() == nil {
			if _, err = enc.Write(piece); err != nil {
				return written(err)
			}
		}
		s.free <- piece[:0]
	}
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	return written(enc.Close())
}

func written(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot write the archive: %w: see whether its disk is full or its reader has ended, and pack again: %w",
		err, errdefs.ErrUnavailable)
}
