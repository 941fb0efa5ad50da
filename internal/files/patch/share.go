package patch

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// Block says that the lines Start up to End of one text are the lines From up to To of another one.
type Block struct{ Start, End, From, To int }

// Differ returns the blocks in which two texts differ, in their order. ok is false if they differ in too much to be compared.
func Differ(ctx context.Context, old, now [][]byte) (blocks []Block, ok bool) {
	all, ok := compare(ctx, old, now)
	for _, b := range all {
		blocks = append(blocks, Block{Start: b.start, End: b.end, From: b.from, To: b.to})
	}
	return blocks, ok
}

// Lines returns the lines of a text with their ends.
func Lines(text []byte) [][]byte { return splitLines(text) }

// Visible writes a text so that every character of it is seen: those that a terminal acts on, that cannot be seen, or that are not
// UTF-8 are escapes.
func Visible(s []byte) string { return visible(s) }

// Odd reports whether a person cannot see a character, or it changes how others are shown.
func Odd(r rune) bool { return odd(r) }

// Merge3 makes the edits that lead from base to ours in theirs. What both have changed in the same way is there already. An edit of
// which a line, or one of the three around it, differs in theirs, or whose place is not certain, is an error of kind failed
// precondition.
func Merge3(ctx context.Context, base, ours, theirs []byte) ([]byte, error) {
	no := func(why string) error {
		return fmt.Errorf("cannot merge the texts: %s; merge them by hand: %w", why, errdefs.ErrFailedPrecondition)
	}
	if max(len(base), len(ours), len(theirs)) > MaxSize {
		return nil, no(fmt.Sprintf("one of them has more than %d bytes", MaxSize))
	}
	before, mine, now := splitLines(base), splitLines(ours), splitLines(theirs)
	wanted, ok := compare(ctx, before, mine)
	done, ok2 := compare(ctx, before, now)
	if !ok || !ok2 {
		return nil, no("they differ in too much")
	}
	after := &text{lines: now}
	var edits []edit
	for _, b := range wanted {
		if there(b, mine, done, now) {
			continue
		}
		e, why := carry(edit{start: b.start, end: b.end, lines: mine[b.from:b.to]}, done, before, after)
		if why != "" {
			return nil, no(why)
		}
		edits = append(edits, e)
	}
	out, err := build(now, edits)
	if err != nil {
		return nil, no(err.Error())
	}
	return out, nil
}

// there reports whether a block that is wanted is one of those that were made.
func there(b block, mine [][]byte, done []block, now [][]byte) bool {
	return slices.ContainsFunc(done, func(d block) bool {
		return d.start == b.start && d.end == b.end && slices.EqualFunc(mine[b.from:b.to], now[d.from:d.to], bytes.Equal)
	})
}

// KeepAttrs gives an open file the extended attributes of another one, access lists among them, and no others. A program that runs with
// capabilities is an error of kind permission denied.
func KeepAttrs(from, to int) error {
	all, err := attrs(from)
	if err != nil {
		return err
	}
	return setAttrs(to, all)
}
