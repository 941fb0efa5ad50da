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

	"github.com/carrel-dev/carrel/internal/archive/tarfmt"
)

const (
	// pieceBytes is what is read before it goes to the compressor, and pieces is how
	// many of them there are: reading is that far ahead at most.
	pieceBytes = 512 << 10
	pieces     = 6
	// window is how far back the compressor looks, and bounds what a reader needs.
	window = 1 << 20
)

// Write packs the tree below dir, which belongs to the owner of dir, into w. It returns when everything was
// written, and what it wrote before an error is no archive. What changes meanwhile is
// packed as it is met, and counted. A w that blocks holds Write up also when ctx ends:
// whoever ends ctx closes w.
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
		return Summary{}, fmt.Errorf("cannot set the compressor up: %w: %w", err, errdefs.ErrInternal)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := newSpool(ctx)
	done := make(chan error, 1)
	go func() {
		err := s.drain(enc)
		if err != nil {
			cancel(err)
			// Its goroutines end by Close only, which must not make this look whole.
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
		cancel(err) // so that what stands there is not brought to an end like an archive
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

// counting counts and sums what goes through it, until it is stopped.
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

// spool hands what is read to the compressor, a piece at a time.
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

// room returns where the next bytes go, which advance then takes. It is never empty.
func (s *spool) room() ([]byte, error) {
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
		room, err := s.room()
		if err != nil {
			return err
		}
		n := copy(room, b)
		if err := s.advance(n); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// zeros writes n of them.
func (s *spool) zeros(n int64) error {
	for n > 0 {
		room, err := s.room()
		if err != nil {
			return err
		}
		room = room[:min(int64(len(room)), n)]
		clear(room)
		if err := s.advance(len(room)); err != nil {
			return err
		}
		n -= int64(len(room))
	}
	return nil
}

// file writes n bytes of fd from offset at on. A file that has become shorter is
// filled up, for the header has been written; short says so.
func (s *spool) file(fd int, at, n int64, tick func(n int)) (short bool, err error) {
	for n > 0 {
		room, err := s.room()
		if err != nil {
			return false, err
		}
		room = room[:min(int64(len(room)), n)]
		got, err := again(func() (int, error) { return unix.Pread(fd, room, at) })
		if err != nil {
			return false, os.NewSyscallError("read", err)
		}
		if got == 0 {
			return true, s.zeros(n)
		}
		if err := s.advance(got); err != nil {
			return false, err
		}
		at, n = at+int64(got), n-int64(got)
		tick(got)
	}
	return false, nil
}

// drain compresses until full is closed, and keeps nobody waiting after an error.
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
	return fmt.Errorf("cannot write the archive: %w: see whether its place is full or its reader gone, and pack again: %w", err, errdefs.ErrUnavailable)
}
