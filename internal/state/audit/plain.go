package audit

import (
	"encoding/binary"
	"math/bits"
)

// fields are the names of a record's members, in the order of a line.
var fields = [...]string{
	"hash", "prev_hash", "seq", "time", "trace", "type", "principal", "owner", "workspace", "intent",
	"action", "action_digest", "policy", "decision", "approval", "isolation", "status", "error", "error_kind", "data",
}

// frameFields is how many of them parseFrame takes.
const frameFields = 3

// asWritten reports whether line has the form in which this version writes a record: JSON
// without white space, known names in their order. parseFrame and hashHolds have accepted the
// line. A line that asWritten accepts is valid and plain, as checkJSON defines it. About any
// other line it says nothing, and checkJSON decides: asWritten knows no white space, fractions,
// exponents or -0, and no nesting beyond 63.
//
// It is here for one published figure, "audit verify, signed, a core" (BenchmarkVerifySigned):
// 300 MB/s a core with it and 160 MB/s with json.Valid alone, where 200 are promised. The words
// of eight bytes in textEnd are a tenth of that. Nothing else depends on it: without it Verify
// says the same of every log.
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

// wordEnd returns the end of word, which must begin at i, or -1.
func wordEnd(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// textEnd returns the index after the closing quote of the string whose content begins at i, or
// -1 if there is no valid string.
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

// special reports whether c is more than a part of its string.
func special(c byte) bool { return c < 0x20 || c == '"' || c == '\\' }

// specials marks the bytes of x that are special: the lowest mark is the highest bit of the
// first of them. A byte below 0x80 that is less than n has its highest bit set once n is
// subtracted, and one that equals n is less than 1 after exclusive or with n. A borrow can only
// make bytes look special that follow a special one.
func specials(x uint64) uint64 {
	const each, high = 0x0101010101010101, 0x8080808080808080
	quote, slash := x^each*'"', x^each*'\\'
	return ((x - each*0x20) | (quote - each) | (slash - each)) &^ x & high
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
