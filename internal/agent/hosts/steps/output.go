package steps

import (
	"bytes"
	"strconv"
)

const (
	// room is what is added to an output at most, in bytes: the line that says what is left out, and a hint.
	room = 512
	// half is how much is left out at each side of a cut that has no line end near it.
	half = 512
)

// kept is how much of a stream is kept so that all that is sent of it is shorter than most, in bytes: the daemon cuts longer
// ones at their end, which says how a command ended.
func kept(most int) int {
	if most <= 2*room {
		return max(most/2, 1)
	}
	return most - room
}

// joined is the beginning and the end of an output, and how much is missing between, which is added to lost. Whole lines are
// left out at the cut: the daemon would not find half a secret.
func joined(head, tail []byte, missing int64, lost *int64) []byte {
	out := append([]byte(nil), head...)
	if missing == 0 {
		return append(out, tail...)
	}
	out = out[:max(len(out)-half, 0)]
	if i := bytes.LastIndexByte(head, '\n'); i >= len(head)/2 {
		out = append(out[:0], head[:i+1]...)
	}
	rest := tail[min(half, len(tail)):]
	if i := bytes.IndexByte(tail, '\n'); i >= 0 && i < len(tail)/2 {
		rest = tail[i+1:]
	}
	missing += int64(len(head) - len(out) + len(tail) - len(rest))
	*lost += missing
	out = append(out, "\n… "+strconv.FormatInt(missing, 10)+" bytes are left out …\n"...)
	return append(out, rest...)
}
