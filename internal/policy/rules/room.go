package rules

import (
	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// Limits of what a room keeps between decisions. Anything larger comes from the heap.
const (
	roomSegments = 16
	roomWords    = 128
	roomArgs     = 8
	roomMost     = 256
)

// room is the memory of one decision, which the next one reuses. Only strings of it may be part
// of a Decision. Without it a core judges a third of the lines (benchmark "lines judged, a
// core").
type room struct {
	candidates    candidates
	judge         judge
	facts         shell.Facts
	segs          []*segment
	segments      []segment
	words         []shell.Word
	arguments     []*arguments // not in use
	tokens, paths []string
	match         pathMatch
}

// arguments is a parsed with room for its flags.
type arguments struct {
	parsed
	flagRoom [8]flagUse
}

func newRoom() *room {
	return &room{segments: make([]segment, 0, roomSegments), words: make([]shell.Word, 0, roomWords)}
}

// leave clears the room, so that no text of a decision stays in memory, and puts it back.
func (e *Engine) leave(r *room) {
	r.judge = judge{}
	r.facts.Reset()
	clear(r.match.room[:])
	for i := range r.segments {
		s := &r.segments[i]
		*s = segment{effects: emptied(s.effects), paths: emptied(s.paths)}
	}
	clear(r.words)
	r.segs, r.segments, r.words, r.tokens, r.paths = emptied(r.segs), r.segments[:0], r.words[:0], emptied(r.tokens), emptied(r.paths)
	e.rooms.Put(r)
}

// emptied returns a list cleared, or nil if it grew large.
func emptied[T any](list []T) []T {
	if cap(list) > roomMost {
		return nil
	}
	list = list[:cap(list)]
	clear(list)
	return list[:0]
}

// segment returns an empty segment.
func (r *room) segment() *segment {
	n := len(r.segments)
	if n == cap(r.segments) {
		return &segment{index: -1}
	}
	r.segments = r.segments[:n+1]
	s := &r.segments[n]
	s.index = -1
	return s
}

// take returns arguments for n words. Its operands stay valid for the decision, because segments
// may use them as words.
func (r *room) take(n int) *arguments {
	var a *arguments
	if last := len(r.arguments) - 1; last >= 0 {
		a, r.arguments = r.arguments[last], r.arguments[:last]
	} else {
		a = &arguments{}
	}
	a.flags = a.flagRoom[:0]
	if at := len(r.words); n <= cap(r.words)-at {
		r.words = r.words[:at+n]
		a.operands = r.words[at : at : at+n]
	} else {
		a.operands = make([]shell.Word, 0, n)
	}
	return a
}

// give takes arguments back.
func (r *room) give(a *arguments) {
	if len(r.arguments) < roomArgs {
		clear(a.flagRoom[:min(len(a.flags), len(a.flagRoom))])
		a.parsed = parsed{}
		r.arguments = append(r.arguments, a)
	}
}
