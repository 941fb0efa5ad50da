package audit

import "crypto/sha256"

// digest is the hash of a line given without its newline.
func digest(line []byte) [sha256.Size]byte { return sha256.Sum256(line[coverAt:]) }

const lowerHex = "0123456789abcdef"

// hashHolds compares a line's stated hash with what its bytes give.
func hashHolds(line []byte, f frame) bool {
	sum := digest(line)
	for i, b := range sum {
		if f.hash[2*i] != lowerHex[b>>4] || f.hash[2*i+1] != lowerHex[b&15] {
			return false
		}
	}
	return true
}
