package mcp

import (
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Kept is the output of a command on one stream.
type Kept = kept

// At is what is kept from an offset on.
func At(k *Kept, offset int64, length int) (b []byte, from int64) { return k.at(offset, length) }

// WriteWithin sets how long a client may take to read, and returns what it was.
func WriteWithin(d time.Duration) (was time.Duration) {
	was, writeWithin = writeWithin, d
	return was
}

// Bounds of what is kept.
const KeptHead, KeptTail = keptHead, keptTail

// Whole drops an incomplete character, and Quoted shows a command.
var (
	Whole  = whole
	Quoted = quoted
)

// Inner is the server of the SDK below, so that a test can add tools.
func Inner(s *Server) *sdk.Server { return s.mcp }

// InsideWithin sets how long a client inside may take, and returns what it was.
func InsideWithin(first, read time.Duration) (wasFirst, wasRead time.Duration) {
	wasFirst, wasRead = insidePatience.first, insidePatience.read
	insidePatience.first, insidePatience.read = first, read
	return wasFirst, wasRead
}

// AsInside is the same server for programs in its workspace.
func AsInside(t testing.TB, s *Server) *Server {
	t.Helper()
	cfg := s.cfg
	cfg.Inside = true
	inside, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return inside
}
