package audit

import (
	"crypto/sha256"
	"encoding/hex"
)

// digest is the hash of a line given without its newline.
func digest(line []byte) [sha256.Size]byte { return sha256.Sum256(line[coverAt:]) }

// hashHolds reports whether a line states the hash that its bytes give.
func hashHolds(line []byte, f frame) bool {
	var want [hashLen]byte
	sum := digest(line)
	hex.Encode(want[:], sum[:])
	return string(f.hash) == string(want[:])
}
