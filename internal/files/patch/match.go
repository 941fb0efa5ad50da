package patch

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// maxWork bounds how many bytes are compared in search of the places of hunks of one file.
const maxWork = 1 << 28

// edit replaces the lines from start up to end by others. Lines count from 0.
type edit struct {
	start, end int
	lines      [][]byte
}

// text is a file in lines, with what finds some of them.
type text struct {
	lines [][]byte
	// index is where a line occurs, made when it is first needed.
	index map[string][]int32
	work  int
}

// locate finds the place of each hunk of a change in a file, and returns the edits in their order and how many hunks
// stand elsewhere than their numbers say.
func (c *change) locate(ctx context.Context, old []byte) (edits []edit, moved int, err error) {
	t := &text{lines: splitLines(old)}
	// A line without an end can only be the last. The apply_patch grammar knows none: it is given one here, and the file
	// has none afterwards either.
	agent := len(c.hunks) > 0 && !c.hunks[0].numbered
	end, bare := "", []byte(nil)
	if n := len(t.lines); agent {
		end = ending(t.lines)
		if n > 0 && !bytes.HasSuffix(t.lines[n-1], []byte("\n")) {
			bare = t.lines[n-1]
			t.lines[n-1] = append(bytes.Clone(bare), end...)
		}
	}
	from, stale := 0, false
	for i := range c.hunks {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		h := c.hunks[i]
		if agent {
			h = h.fit(end)
		}
		at, why := t.find(&h, from, stale)
		if why != "" {
			return nil, 0, fmt.Errorf("cannot change %q: hunk %d, line %d of the patch: %s: %w", c.path, i+1, h.line, why,
				errdefs.ErrFailedPrecondition)
		}
		if h.numbered && at != h.at-1 {
			moved++
			stale = true
		}
		var why2 string
		edits, from, why2 = h.edits(edits, at, len(t.lines))
		if why2 != "" {
			return nil, 0, fmt.Errorf("cannot change %q: hunk %d, line %d of the patch: %s: %w", c.path, i+1, h.line, why2,
				errdefs.ErrFailedPrecondition)
		}
	}
	if bare != nil {
		edits = withoutEnd(edits, bare, len(t.lines), end)
	}
	return edits, moved, nil
}

// withoutEnd changes edits of a file whose last line was given an end, so that the file has none afterwards.
func withoutEnd(edits []edit, bare []byte, lines int, end string) []edit {
	if len(edits) == 0 || edits[len(edits)-1].end < lines {
		return edits
	}
	e := &edits[len(edits)-1]
	if e.start == lines { // lines behind the last one, which gets its end
		e.start--
		e.lines = append([][]byte{append(bytes.Clone(bare), end...)}, e.lines...)
	}
	if n := len(e.lines); n > 0 {
		e.lines = slices.Clone(e.lines)
		if e.lines[n-1] = bytes.TrimSuffix(e.lines[n-1], []byte(end)); len(e.lines[n-1]) == 0 {
			e.lines = e.lines[:n-1] // an empty line without an end is none
		}
	}
	return edits
}

// find returns the line where the old lines of a hunk stand, at or behind a line. Where they stand at the number that the
// hunk has, that is the place, unless an earlier number was wrong. Anywhere else they must stand exactly once.
func (t *text) find(h *hunk, from int, stale bool) (at int, why string) {
	old := h.side('-')
	if len(old) == 0 {
		switch {
		case len(t.lines) == 0:
			return 0, ""
		case h.end && !h.numbered:
			return len(t.lines), ""
		}
		return 0, "it has no line of the file as it is, so its place is not certain; give lines around the change"
	}
	for _, hint := range h.hints {
		n, place := 0, 0
		for i := from; i < len(t.lines); i++ {
			if string(bytes.TrimSpace(t.lines[i])) == hint {
				n++
				place = i
			}
		}
		if t.work += (len(t.lines) - from) * 16; t.work > maxWork {
			return 0, tooMuch
		}
		if n != 1 {
			return 0, fmt.Sprintf("the line %.80q after @@ is there %d times, not once", hint, n)
		}
		from = place + 1
	}
	if h.end && !h.numbered {
		if at := len(t.lines) - len(old); at >= from && t.has(old, at) {
			return at, ""
		}
		return 0, "its old lines are not the last of the file" + t.help(h, old)
	}
	if h.numbered && !stale && h.at-1 >= from && t.has(old, h.at-1) {
		return h.at - 1, ""
	}
	found := t.search(old, from, 2)
	switch {
	case t.work > maxWork:
		return 0, tooMuch
	case len(found) == 0:
		return 0, "its old lines are not in the file" + t.help(h, old)
	case len(found) > 1 && len(h.hints) == 0:
		where := ""
		if stale {
			where = ", and the number of an earlier hunk was wrong"
		}
		return 0, fmt.Sprintf("its old lines are in the file several times, as at lines %d and %d%s; give more lines around the change",
			found[0]+1, found[1]+1, where)
	}
	return found[0], ""
}

const tooMuch = "its place is too hard to find; give the right line numbers"

// has reports whether lines stand at a line.
func (t *text) has(lines [][]byte, at int) bool {
	if at < 0 || at+len(lines) > len(t.lines) {
		return false
	}
	for i, l := range lines {
		t.work += min(len(l), len(t.lines[at+i])) + 8
		if !bytes.Equal(l, t.lines[at+i]) {
			return false
		}
	}
	return true
}

// search returns the first places at or behind a line at which lines stand, at most so many.
func (t *text) search(lines [][]byte, from, most int) (found []int) {
	if t.index == nil {
		t.index = make(map[string][]int32, len(t.lines))
		for i, l := range t.lines {
			t.index[string(l)] = append(t.index[string(l)], int32(i))
		}
	}
	// The rarest of the lines has the fewest places to look at.
	rare := 0
	for i, l := range lines {
		if len(t.index[string(l)]) < len(t.index[string(lines[rare])]) {
			rare = i
		}
	}
	all := t.index[string(lines[rare])]
	first, _ := slices.BinarySearch(all, int32(from+rare))
	for _, i := range all[first:] {
		if t.work > maxWork || len(found) == most {
			break
		}
		if at := int(i) - rare; t.has(lines, at) {
			found = append(found, at)
		}
	}
	return found
}

// help says what may be the reason that old lines are not there.
func (t *text) help(h *hunk, old [][]byte) string {
	ends := func(lines [][]byte, end string) bool {
		return slices.ContainsFunc(lines, func(l []byte) bool { return bytes.HasSuffix(l, []byte(end)) })
	}
	if ends(t.lines, "\r\n") != ends(old, "\r\n") {
		return "; lines of one end with \\r\\n and those of the other with \\n"
	}
	if n := len(t.lines); n > 0 && !ends(t.lines[n-1:], "\n") {
		last := old[len(old)-1]
		if bytes.Equal(bytes.TrimSuffix(last, []byte("\n")), t.lines[n-1]) && ends(old[len(old)-1:], "\n") {
			return "; the file ends without a newline, so \"\\ No newline at end of file\" follows its last line in a diff"
		}
	}
	// A line is named by its number alone: who wrote the patch need not be one who may read the file.
	if at := h.at - 1; h.numbered && at >= 0 {
		for i, l := range old {
			if at+i >= len(t.lines) {
				return fmt.Sprintf("; the file has only %d lines", len(t.lines))
			}
			if !bytes.Equal(l, t.lines[at+i]) {
				return fmt.Sprintf("; line %d is not what the hunk has there; read the file again", at+i+1)
			}
		}
	}
	return "; read the file again"
}

// edits appends what a hunk changes at its place, and returns the first line behind its old lines.
func (h *hunk) edits(all []edit, at, lines int) (edits []edit, next int, why string) {
	i, open := at, false
	for _, r := range h.rows {
		if r.op == ' ' {
			i, open = i+1, false
			continue
		}
		if !open {
			all = append(all, edit{start: i, end: i})
			open = true
		}
		e := &all[len(all)-1]
		if r.op == '-' {
			i++
			e.end = i
		} else {
			e.lines = append(e.lines, r.text)
		}
	}
	if n := h.side('+'); len(n) > 0 && !bytes.HasSuffix(n[len(n)-1], []byte("\n")) && i != lines {
		return nil, 0, "its last line has no newline, and it is not the last of the file"
	}
	return all, i, ""
}

// build returns a file with edits. It fails for more than MaxSize.
func build(lines [][]byte, edits []edit) ([]byte, error) {
	size := 0
	for _, l := range lines {
		size += len(l)
	}
	for _, e := range edits {
		for _, l := range lines[e.start:e.end] {
			size -= len(l)
		}
		for _, l := range e.lines {
			size += len(l)
		}
	}
	if size > MaxSize {
		return nil, fmt.Errorf("it would have %d bytes, and at most %d are taken", size, MaxSize)
	}
	out := make([]byte, 0, size)
	i := 0
	for _, e := range edits {
		for _, l := range lines[i:e.start] {
			out = append(out, l...)
		}
		for _, l := range e.lines {
			out = append(out, l...)
		}
		i = e.end
	}
	for _, l := range lines[i:] {
		out = append(out, l...)
	}
	return out, nil
}
