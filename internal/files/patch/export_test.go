package patch

import "context"

// New returns the content that each file has afterwards, by the path that the patch names.
func New(p *Prepared) map[string]string {
	all := map[string]string{}
	for _, f := range p.files {
		all[f.name()] = string(f.new)
	}
	return all
}

// DoNotWait has changes not wait for others until undo is called.
func DoNotWait() (undo func()) {
	before := lockWait
	lockWait = 0
	return func() { lockWait = before }
}

// OnStep has a function called before each operation that changes something on disk, until undo is called.
func OnStep(f func(op string) error) (undo func()) {
	before := step
	step = f
	return func() { step = before }
}

// Compare returns the blocks in which two texts differ: from, to in the old lines and from, to in the new ones.
func Compare(ctx context.Context, old, now string) (blocks [][4]int, ok bool) {
	all, ok := compare(ctx, splitLines([]byte(old)), splitLines([]byte(now)))
	for _, b := range all {
		blocks = append(blocks, [4]int{b.start, b.end, b.from, b.to})
	}
	return blocks, ok
}
