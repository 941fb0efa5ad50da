package patch

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// Bounds of a comparison: how many lines may differ, and how many steps it takes.
const (
	maxDiffer = 2000
	maxSteps  = 200_000_000
)

// Merge reads the files again and returns the same change to what they are now, where they changed since Read: a 3-way
// merge by lines, of what Read found, what is there now, and what was to be there. It changes nothing. The result has the
// same hunks with the same lines around them, as Diff shows them, and they stand elsewhere at most: what a person approved
// is what is made. Its digest is another one. An edit of which a line, or one of those that are shown around it, changed
// meanwhile, or whose lines are there more than once now, is an error of kind failed precondition, as is a file to be
// deleted that changed.
func (p *Prepared) Merge(ctx context.Context) (*Prepared, error) {
	return p.merge(ctx, readPlace, free)
}

// merge is Merge by what reads a file and what is an error where a name is not free.
func (p *Prepared) merge(ctx context.Context, read func(place) (content, error), free func(place) error) (*Prepared, error) {
	out, total := &Prepared{}, 0
	for _, f := range p.files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := f.merge(ctx, read, free)
		if err != nil {
			return nil, err
		}
		if total += len(m.old.bytes) + len(m.new); total > MaxTotal {
			return nil, bad("cannot change the files: together they have more than %d bytes; split the patch", MaxTotal)
		}
		out.files = append(out.files, m)
	}
	return out, out.distinct()
}

// merge is Merge for one file.
func (pl *planned) merge(ctx context.Context, read func(place) (content, error), free func(place) error) (*planned, error) {
	c := &pl.change
	out := *pl
	if c.op == Create || c.op == Move {
		if err := free(pl.to); err != nil {
			return nil, fmt.Errorf("cannot make %q: %w", pl.name(), err)
		}
	}
	if c.op == Create {
		return &out, nil
	}
	var err error
	if out.old, err = read(pl.from); err != nil {
		return nil, fmt.Errorf("cannot change %q: %w", c.path, err)
	}
	conflict := func(why string, args ...any) (*planned, error) {
		return nil, fmt.Errorf("cannot merge the change of %q: "+why+"; read it again: %w", append(append([]any{c.path}, args...),
			errdefs.ErrFailedPrecondition)...)
	}
	if pl.mode != nil && out.old.meta.Mode != pl.old.meta.Mode {
		return conflict("its mode changed meanwhile")
	}
	if bytes.Equal(out.old.bytes, pl.old.bytes) {
		return &out, nil
	}
	if c.op == Delete {
		return conflict("it is to be deleted, and changed meanwhile")
	}
	out.lines = splitLines(out.old.bytes)
	blocks, ok := compare(ctx, pl.lines, out.lines)
	if !ok {
		return conflict("it changed too much meanwhile")
	}
	out.edits = make([]edit, len(pl.edits))
	after := &text{lines: out.lines}
	for i, e := range pl.edits {
		var why string
		if out.edits[i], why = carry(e, blocks, pl.lines, after); why != "" {
			return conflict("%s", why)
		}
	}
	if out.new, err = build(out.lines, out.edits); err != nil {
		return nil, bad("cannot change %q: %s", c.path, err)
	}
	return &out, nil
}

// carry takes an edit of the lines before to the lines after other edits. why says why it cannot be taken.
func carry(e edit, blocks []block, before [][]byte, after *text) (out edit, why string) {
	// What is shown of it. A line that changed in there is part of what was approved.
	first, last := max(e.start-around, 0), min(e.end+around, len(before))
	shift := 0
	for _, b := range blocks {
		switch {
		case b.end <= first && b.end < e.start:
			shift += (b.to - b.from) - (b.end - b.start)
		case b.start >= last && b.start > e.end:
		default:
			return e, fmt.Sprintf("lines %d to %d changed meanwhile, and the patch changes lines %d to %d", b.start+1,
				max(b.end, b.start+1), e.start+1, max(e.end, e.start+1))
		}
	}
	out = edit{e.start + shift, e.end + shift, e.lines}
	window := before[first:last]
	if len(window) == 0 {
		return out, ""
	}
	// Where the same lines stand several times, a comparison cannot tell which of them are new.
	found := after.search(window, 0, 2)
	if after.work > maxWork || len(found) != 1 || found[0] != first+shift {
		return out, fmt.Sprintf("lines %d to %d are there %d times now, and their place is not certain", first+1, last, len(found))
	}
	return out, ""
}

// block says that lines from start up to end are now lines from from up to to.
type block struct{ start, end, from, to int }

// compare returns the blocks in which two texts differ, by the shortest edit script (Myers, An O(ND) Difference
// Algorithm and Its Variations, 1986). ok is false if they differ in too much.
func compare(ctx context.Context, old, now [][]byte) (blocks []block, ok bool) {
	head := 0
	for head < len(old) && head < len(now) && bytes.Equal(old[head], now[head]) {
		head++
	}
	tail := 0
	for tail < len(old)-head && tail < len(now)-head && bytes.Equal(old[len(old)-1-tail], now[len(now)-1-tail]) {
		tail++
	}
	ids := map[string]int32{}
	number := func(lines [][]byte) []int32 {
		out := make([]int32, len(lines))
		for i, l := range lines {
			id, ok := ids[string(l)]
			if !ok {
				id = int32(len(ids))
				ids[string(l)] = id
			}
			out[i] = id
		}
		return out
	}
	a, b := number(old[head:len(old)-tail]), number(now[head:len(now)-tail])
	trace, ok := script(ctx, a, b)
	if !ok {
		return nil, false
	}
	// Backwards over the steps: each is one line removed or added, and then equal lines.
	x, y := len(a), len(b)
	for d := len(trace) - 1; d > 0; d-- {
		v := trace[d-1]
		k := x - y
		down := k == -d || k != d && at(v, d-1, k-1) < at(v, d-1, k+1)
		px := 0
		if down {
			px = at(v, d-1, k+1)
		} else {
			px = at(v, d-1, k-1) + 1
		}
		// (px, px-k) is behind the step; before it, one line less.
		sx, sy := px, px-k
		if down {
			sy--
		} else {
			sx--
		}
		step := block{sx + head, px + head, sy + head, px - k + head}
		if n := len(blocks); n > 0 && blocks[n-1].start == step.end && blocks[n-1].from == step.to {
			blocks[n-1].start, blocks[n-1].from = step.start, step.from
		} else {
			blocks = append(blocks, step)
		}
		x, y = sx, sy
	}
	slices.Reverse(blocks)
	return blocks, true
}

// at is how far diagonal k was followed with d steps, -1 for not at all. v has the diagonals from -d to d.
func at(v []int32, d, k int) int {
	if k < -d || k > d {
		return -1
	}
	return int(v[k+d])
}

// script returns how far each diagonal was followed with each number of steps, up to the last, which reaches the end.
func script(ctx context.Context, a, b []int32) (trace [][]int32, ok bool) {
	steps := 0
	for d := 0; d <= maxDiffer; d++ {
		if ctx.Err() != nil || steps > maxSteps {
			return nil, false
		}
		v := make([]int32, 2*d+1)
		for k := -d; k <= d; k++ {
			v[k+d] = -1
			x := 0
			if d > 0 {
				up, left := at(trace[d-1], d-1, k+1), at(trace[d-1], d-1, k-1)
				if x = up; k == d || k != -d && left >= up {
					x = left + 1
				}
				if up < 0 && left < 0 {
					continue
				}
			}
			y := x - k
			if x > len(a) || y < 0 || y > len(b) {
				continue
			}
			for x < len(a) && y < len(b) && a[x] == b[y] {
				x++
				y++
				steps++
			}
			steps++
			v[k+d] = int32(x)
			if x == len(a) && y == len(b) {
				return append(trace, v), true
			}
		}
		trace = append(trace, v)
	}
	return nil, false
}
