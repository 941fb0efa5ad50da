package proxy_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// script is a client that has sent everything at once, or in pieces, and what it was answered.
type script struct {
	in    io.Reader
	reply bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) { return s.reply.Write(p) }

// dribble returns one byte for each read.
type dribble struct{ r io.Reader }

func (d dribble) Read(p []byte) (int, error) { return d.r.Read(p[:min(len(p), 1)]) }
