package audit

import (
	"crypto/sha256"
	"encoding/binary"
)

// digest is the hash of a line given without its newline.
func digest(line []byte) [sha256.Size]byte { return sha256.Sum256(line[coverAt:]) }

const lowerHex = "0123456789abcdef"

// hexPairs are the two digits of each byte, as the first two bytes of a little-endian number.
var hexPairs = func() (t [256]uint16) {
	for i := range t {
		t[i] = uint16(lowerHex[i>>4]) | uint16(lowerHex[i&15])<<8
	}
	return t
}()

// hashHolds compares a line's stated hash with what its bytes give.
func hashHolds(line []byte, f frame) bool {
	sum := digest(line)
	stated := f.hash[:2*len(sum)]
	differs := uint16(0)
	for i, b := range sum {
		differs |= hexPairs[b] ^ binary.LittleEndian.Uint16(stated[2*i:])
	}
	return differs == 0
}
