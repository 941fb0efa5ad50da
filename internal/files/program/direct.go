package program

import (
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// tellEvery is how often it is said that data moves, which the daemon does not see.
const tellEvery = time.Second

// directly carries out a request whose data go over the third descriptor.
func (s *served) directly(f func(*served) error) error {
	var reads bool
	switch s.req.Op {
	case fileapi.Read, fileapi.Pack:
		reads = true
	case fileapi.Write, fileapi.Unpack:
	default:
		return fmt.Errorf("cannot do %q over a socket: nothing is sent or taken: %w", s.req.Op, errdefs.ErrInvalidArgument)
	}
	if s.direct == nil {
		return fmt.Errorf("cannot %s over a socket: there is none: %w", s.req.Op, errdefs.ErrInvalidArgument)
	}
	m := &moving{ReadWriter: s.direct, s: s, told: time.Now()}
	data := &fileapi.Writer{W: m}
	s.frames, s.data = &fileapi.Reader{R: m}, data
	err := f(s)
	if err == nil && reads {
		err = data.Send(fileapi.End, nil)
	}
	return err
}

// moving says now and then that something moves.
type moving struct {
	io.ReadWriter
	s     *served
	bytes int64
	told  time.Time
}

func (m *moving) Read(p []byte) (int, error) {
	n, err := m.ReadWriter.Read(p)
	m.moved(n)
	return n, err
}

func (m *moving) Write(p []byte) (int, error) {
	n, err := m.ReadWriter.Write(p)
	m.moved(n)
	return n, err
}

func (m *moving) moved(n int) {
	if m.bytes += int64(n); n > 0 && time.Since(m.told) >= tellEvery {
		m.told = time.Now()
		_ = m.s.out.JSON(fileapi.Moved, fileapi.Progress{Entries: m.s.res.Entries, Bytes: m.bytes}) // who does not hear it hears the end
	}
}
