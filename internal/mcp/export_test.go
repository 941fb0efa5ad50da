package mcp

// Kept is the output of a command on one stream.
type Kept = kept

// At is what is kept from an offset on.
func At(k *Kept, offset int64, length int) (b []byte, from int64) { return k.at(offset, length) }

// Bounds of what is kept.
const KeptHead, KeptTail = keptHead, keptTail

// Whole drops an incomplete character, and Quoted shows a command.
var (
	Whole  = whole
	Quoted = quoted
)
