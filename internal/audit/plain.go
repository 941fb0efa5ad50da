package audit

import (
	"encoding/binary"
	"math/bits"
)

// fields are the names that a record may have, in the order in which they stand in a line.
var fields = [...]string{
	"hash", "prev_hash", "seq", "time", "trace", "type", "principal", "owner", "workspace", "intent", "action", "action_digest", "policy",
	"decision", "approval", "isolation", "status", "error", "error_kind", "data",
}

// frameFields is how many of them parseFrame takes.
const frameFields = 3

// asWritten reports whether line, whose start parseFrame has taken and whose hash hashHolds,
// has the form in which this version writes one: JSON without blanks, known names in their
// order. So it is valid and plain, as checkJSON says it. Of any other line it says no more
// than that, and checkJSON looks at it: it knows no blanks, fractions, exponents or -0, and no
// nesting beyond 63.
func asWritten(line []byte) bool {
	marks := uint64(0)
	for i := prevAt; i < prevAt+hashLen; i += 8 {
		marks |= specials(binary.LittleEndian.Uint64(line[i:]))
	}
	if marks != 0 {
		return false
	}
	i := seqAt
	for isDigit(line[i]) { // as parseFrame has seen, a comma follows
		i++
	}
	// objects has a bit for each open level that is an object. A value ends before i.
	depth, objects, field := 1, uint64(1<<1), frameFields
	for i < len(line) {
		object := objects>>depth&1 != 0
		switch c := line[i]; {
		case c == ',':
			i++
		case c == '}' && object, c == ']' && !object:
			i++
			if depth--; depth == 0 {
				return i == len(line)
			}
			continue
		default:
			return false
		}
		for begun := false; !begun; {
			if objects>>depth&1 != 0 {
				if i >= len(line) || line[i] != '"' {
					return false
				}
				from := i + 1
				if i = textEnd(line, from); i < 0 || i >= len(line) || line[i] != ':' {
					return false
				}
				if depth == 1 {
					name := line[from : i-1]
					for field < len(fields) && string(name) != fields[field] {
						field++
					}
					if field == len(fields) {
						return false
					}
					field++
				}
				i++
			}
			if i >= len(line) {
				return false
			}
			begun = true
			switch c := line[i]; c {
			case '"':
				i = textEnd(line, i+1)
			case '{', '[':
				if depth++; depth > 63 {
					return false
				}
				closing := c + 2 // in ASCII, of both
				objects &^= 1 << depth
				if c == '{' {
					objects |= 1 << depth
				}
				if i++; i < len(line) && line[i] == closing {
					i++
					depth--
				} else {
					begun = false
				}
			case '0':
				i++
			case '-', '1', '2', '3', '4', '5', '6', '7', '8', '9':
				if i++; c == '-' && (i >= len(line) || line[i] < '1' || line[i] > '9') {
					return false
				}
				for i < len(line) && isDigit(line[i]) {
					i++
				}
			case 't':
				i = wordEnd(line, i, "true")
			case 'f':
				i = wordEnd(line, i, "false")
			case 'n':
				i = wordEnd(line, i, "null")
			default:
				return false
			}
			if i < 0 {
				return false
			}
		}
	}
	return false
}

// wordEnd is where word ends that begins at i, -1 if another does.
func wordEnd(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// textEnd is what lies behind the string whose content begins at i, -1 if it has no end or is
// none.
func textEnd(b []byte, i int) int {
	for {
		for len(b)-i >= 8 {
			marks := specials(binary.LittleEndian.Uint64(b[i:]))
			if marks != 0 {
				i += bits.TrailingZeros64(marks) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return -1
		}
		c := b[i]
		i++
		switch {
		case c == '"':
			return i
		case !special(c):
		case c != '\\' || i >= len(b):
			return -1
		default:
			c = b[i]
			i++
			switch c {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if len(b)-i < 4 || !isHex(b[i]) || !isHex(b[i+1]) || !isHex(b[i+2]) || !isHex(b[i+3]) {
					return -1
				}
				i += 4
			default:
				return -1
			}
		}
	}
}
