package staged

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

const (
	// maxShown is the largest file of which the lines are compared, in bytes.
	maxShown = 8 << 20
	// around is how many lines are shown before and behind a change.
	around = 3
	// maxProbe is how far Git looks for a NUL, which makes a file a binary one, in bytes.
	maxProbe = 8000
)

// DiffOptions say how to show changes.
type DiffOptions struct {
	// Visible has characters of contents that a terminal acts on, or that cannot be seen, written as escapes. The diff is then
	// for a person, and no patch. Names are always written so that they can be shown.
	Visible bool
}

// FileStat counts the lines of one change.
type FileStat struct {
	Path           string
	Added, Removed int
	// Binary: its lines were not compared, since it is binary or too large.
	Binary bool
}

// Stat sums up a diff.
type Stat struct {
	Files          []FileStat
	Added, Removed int
}

// String is the last line of what git diff --stat prints.
func (s Stat) String() string {
	return fmt.Sprintf("%d files changed, %d insertions(+), %d deletions(-)", len(s.Files), s.Added, s.Removed)
}

// Diff writes changes as git diff does, without index lines. What Git has no form for stands in lines that begin with "# ",
// which git apply skips: directories that are made or removed empty or change their mode, and what is refused. It holds one
// pair of files in memory, of at most 8 MiB each. A file that is of another type than the change says is an error of kind
// failed precondition: list the changes again.
func Diff(ctx context.Context, w io.Writer, c Copy, changes []Change, o DiffOptions) (Stat, error) {
	d := &differ{ctx: ctx, out: bufio.NewWriterSize(w, 64<<10), o: o, lower: folder{-1}, upper: folder{-1}}
	var err error
	if d.lower, err = hold(c.Lower); err != nil {
		return d.stat, err
	}
	defer d.lower.close()
	if d.upper, err = hold(c.Upper); err != nil {
		return d.stat, err
	}
	defer d.upper.close()
	for i := range changes {
		if ctx.Err() != nil {
			return d.stat, fmt.Errorf("cannot show the changes: %w", context.Cause(ctx))
		}
		next := ""
		if i+1 < len(changes) {
			next = changes[i+1].Path
		}
		if err := d.change(&changes[i], next); err != nil {
			return d.stat, fmt.Errorf("cannot show the change of %q: %w", changes[i].Path, err)
		}
	}
	if err := d.out.Flush(); err != nil {
		return d.stat, fmt.Errorf("cannot write the diff: %w", err)
	}
	return d.stat, nil
}

// differ writes a diff.
type differ struct {
	ctx          context.Context
	lower, upper folder
	out          *bufio.Writer
	o            DiffOptions
	stat         Stat
}

// body is what a diff shows of one side.
type body struct {
	entry Entry
	text  []byte
	// binary: it is not compared by lines.
	binary bool
}

// printf writes a line. An error of the writer stays until the end.
func (d *differ) printf(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// change writes one change. next is the path of the change after it.
func (d *differ) change(c *Change, next string) error {
	for _, why := range []string{c.Refused, leads(c)} {
		if why != "" {
			d.printf("# %s: %s", quote(c.Path), why)
		}
	}
	if !plain(c.Old.Type) && !plain(c.New.Type) {
		if !isBelow(next, c.Path) || c.Old.Type == c.New.Type || c.Refused != "" {
			d.printf("# %s: %s -> %s", quote(c.Path), describe(c.Old), describe(c.New))
		}
		return nil
	}
	from, err := d.read(d.lower, c.Path, c.Old)
	if err != nil {
		return err
	}
	to, err := d.read(d.upper, c.Path, c.New)
	if err != nil {
		return err
	}
	n := len(d.stat.Files)
	d.stat.Files = append(d.stat.Files, FileStat{Path: c.Path})
	if c.Old.Type != c.New.Type && plain(c.Old.Type) && plain(c.New.Type) { // as Git does: one goes, and another comes
		d.pair(c.Path, from, body{}, n)
		d.pair(c.Path, body{}, to, n)
	} else {
		d.pair(c.Path, from, to, n)
	}
	f := &d.stat.Files[n]
	d.stat.Added, d.stat.Removed = d.stat.Added+f.Added, d.stat.Removed+f.Removed
	return nil
}

// leads says that a link leads out.
func leads(c *Change) string {
	if c.LeadsOut {
		return "the link leads out of the directory, or may"
	}
	return ""
}

// plain reports whether Git has a form for a type.
func plain(t Type) bool { return t == File || t == Symlink }

func describe(e Entry) string {
	if e.Type == Absent {
		return "nothing"
	}
	return fmt.Sprintf("%s %04o", e.Type, e.Mode)
}

// read reads one side of a change.
func (d *differ) read(in folder, path string, e Entry) (b body, err error) {
	switch e.Type {
	case Symlink:
		return body{entry: e, text: []byte(e.Target)}, nil
	case File:
	default:
		return b, nil
	}
	b.entry = e
	if e.Size > maxShown {
		b.binary = true
		return b, nil
	}
	f, err := in.file(path)
	if err != nil {
		return b, err
	}
	defer f.Close()
	text := bytes.NewBuffer(make([]byte, 0, e.Size+bytes.MinRead))
	if _, err = text.ReadFrom(io.LimitReader(f, maxShown+1)); err != nil {
		return b, err
	}
	b.text = text.Bytes()
	if int64(len(b.text)) != e.Size {
		return b, stale("its size changed meanwhile; list the changes again")
	}
	b.binary = bytes.IndexByte(b.text[:min(len(b.text), maxProbe)], 0) >= 0
	return b, nil
}

// gitMode is the mode of an entry as Git writes it, with all its bits.
func gitMode(e Entry) string {
	if e.Type == Symlink {
		return "120000"
	}
	return fmt.Sprintf("10%04o", e.Mode)
}

// pair writes the head and the hunks of one file.
func (d *differ) pair(path string, from, to body, n int) {
	a, b := quote("a/"+path), quote("b/"+path)
	d.printf("diff --git %s %s", a, b)
	switch old, is := from.entry.Type != Absent, to.entry.Type != Absent; {
	case !old:
		d.printf("new file mode %s", gitMode(to.entry))
	case !is:
		d.printf("deleted file mode %s", gitMode(from.entry))
	case gitMode(from.entry) != gitMode(to.entry):
		d.printf("old mode %s\nnew mode %s", gitMode(from.entry), gitMode(to.entry))
	}
	if from.binary || to.binary {
		d.binary(a, b, from, to, n)
		return
	}
	if bytes.Equal(from.text, to.text) {
		return
	}
	d.printf("--- %s\n+++ %s", side(a, from), side(b, to))
	d.hunks(from.text, to.text, &d.stat.Files[n])
}

// binary writes that a file changed, and what its sizes are.
func (d *differ) binary(a, b string, from, to body, n int) {
	d.stat.Files[n].Binary = true
	if from.entry.Type == Absent {
		a = "/dev/null"
	}
	if to.entry.Type == Absent {
		b = "/dev/null"
	}
	why := ""
	if max(from.entry.Size, to.entry.Size) > maxShown {
		why = ", too large to be shown"
	}
	d.printf("Binary files %s and %s differ", a, b)
	d.printf("# %d -> %d bytes%s", from.entry.Size, to.entry.Size, why)
}

// side is a name behind --- or +++. Git ends one with a space by a tab, so that the space is part of it.
func side(name string, b body) string {
	switch {
	case b.entry.Type == Absent:
		return "/dev/null"
	case strings.Contains(name, " ") && !strings.HasPrefix(name, `"`):
		return name + "\t"
	}
	return name
}

// hunks compares two texts by lines.
func (d *differ) hunks(from, to []byte, stat *FileStat) {
	old, is := patch.Lines(from), patch.Lines(to)
	blocks, ok := patch.Differ(d.ctx, old, is)
	if !ok {
		blocks = []patch.Block{middle(old, is)}
	}
	for i := 0; i < len(blocks); {
		j := i + 1
		for j < len(blocks) && blocks[j].Start-blocks[j-1].End <= 2*around {
			j++
		}
		d.hunk(old, is, blocks[i:j], stat)
		i = j
	}
}

// middle is all that is between the lines that two texts begin and end with alike.
func middle(old, is [][]byte) patch.Block {
	head, tail := 0, 0
	for head < min(len(old), len(is)) && bytes.Equal(old[head], is[head]) {
		head++
	}
	for tail < min(len(old), len(is))-head && bytes.Equal(old[len(old)-1-tail], is[len(is)-1-tail]) {
		tail++
	}
	return patch.Block{Start: head, End: len(old) - tail, From: head, To: len(is) - tail}
}

// hunk writes some blocks with the lines around them.
func (d *differ) hunk(old, is [][]byte, blocks []patch.Block, stat *FileStat) {
	b, e := blocks[0], blocks[len(blocks)-1]
	before, behind := min(around, b.Start), min(around, len(old)-e.End)
	d.printf("@@ -%s +%s @@", span(b.Start-before, e.End+behind), span(b.From-before, e.To+behind))
	at := b.Start - before
	for _, b := range blocks {
		d.lines(' ', old[at:b.Start])
		d.lines('-', old[b.Start:b.End])
		d.lines('+', is[b.From:b.To])
		stat.Removed, stat.Added = stat.Removed+b.End-b.Start, stat.Added+b.To-b.From
		at = b.End
	}
	d.lines(' ', old[at:at+behind])
}

// span is a range as a unified diff writes it: one without lines stands behind its number.
func span(start, end int) string {
	switch end - start {
	case 0:
		return fmt.Sprintf("%d,0", start)
	case 1:
		return fmt.Sprint(start + 1)
	}
	return fmt.Sprintf("%d,%d", start+1, end-start)
}

func (d *differ) lines(sign byte, lines [][]byte) {
	for _, l := range lines {
		text, ended := bytes.CutSuffix(l, []byte("\n"))
		_ = d.out.WriteByte(sign) // the error stays
		if d.o.Visible {
			_, _ = d.out.WriteString(patch.Visible(text))
		} else {
			_, _ = d.out.Write(text)
		}
		_ = d.out.WriteByte('\n')
		if !ended {
			d.printf(`\ No newline at end of file`)
		}
	}
}
