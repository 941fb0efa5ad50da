package mcp

import (
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
