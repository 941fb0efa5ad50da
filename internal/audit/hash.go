package audit

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

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

// plainNames reports whether the names of the object in line, which is valid JSON, are
// lower-case letters, digits and underscores, each used once. Otherwise two readers could
// take different values from one line, and Verify could look at another "seq"
// than the reader of a report.
func plainNames(line []byte) bool {
	var room [24][]byte
	names := room[:0]
	depth := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			begin := i + 1
			i = endOfString(line, begin)
			if depth != 1 || !beforeColon(line[i+1:]) {
				continue
			}
			name := line[begin:i]
			if !isPlain(name) || slices.ContainsFunc(names, func(n []byte) bool { return bytes.Equal(n, name) }) {
				return false
			}
			names = append(names, name)
		}
	}
	return true
}

func beforeColon(rest []byte) bool {
	for _, c := range rest {
		if c != ' ' && c != '\t' && c != '\r' {
			return c == ':'
		}
	}
	return false
}

// endOfString returns where the string that begins at i has its closing quote.
func endOfString(line []byte, i int) int {
	for {
		i += bytes.IndexByte(line[i:], '"')
		slashes := i
		for line[slashes-1] == '\\' {
			slashes--
		}
		if (i-slashes)%2 == 0 {
			return i
		}
		i++
	}
}

func isPlain(name []byte) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) > 0
}
