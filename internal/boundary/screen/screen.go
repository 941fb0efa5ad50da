// Package screen keeps what a terminal shows. It reads the output of programs as an xterm does, and draws what is
// shown for clients that join later, that are slow, or whose windows have other sizes.
//
// What programs write is hostile. Memory is bounded by the size that the owner gives, a call of Write costs a bounded amount
// of work, and a client is sent nothing but characters, colours and the few modes that package screen writes itself: no
// sequence of a program reaches it. Texts of operating system commands (titles, clipboard, links) are dropped.
//
// It is pure: no files, no network, no clock, no goroutine. A Screen must not be used by two goroutines at once.
package screen

import "strings"

// Bounds of a screen, in characters. What is larger is cut.
const (
	MaxRows, MaxCols         = 256, 512
	DefaultRows, DefaultCols = 24, 80
)

// CellBytes is what one character of a screen takes. A screen has 2 × rows × columns of them: programs draw on a
// second, the alternate screen, and leave the first as it was.
const CellBytes = 16

// Clip returns a size that a screen can have: the default for 0, and at most the bounds.
func Clip(rows, cols int) (int, int) {
	if rows <= 0 {
		rows = DefaultRows
	}
	if cols <= 0 {
		cols = DefaultCols
	}
	return min(rows, MaxRows), min(cols, MaxCols)
}

// cell is one character. r is 0 where nothing was written. marks are up to two combining characters of the basic plane.
// fg and bg are colours with the bits of attributes above.
type cell struct{ r, marks, fg, bg uint32 }

// A colour has its value in the lower 24 bits and its kind above: that of the terminal (0), an index, or RGB.
const (
	indexed = 1 << 24
	direct  = 2 << 24
	colour  = 3<<24 | 0xffffff
)

// The attributes above the foreground's colour.
const (
	bold = 1 << (26 + iota)
	faint
	italic
	underline
	blink
	reverse
)

// The attributes above the background's colour. A wide character has a tail behind it.
const (
	hidden = 1 << (26 + iota)
	struck
	wide
	tail
)

// line is one row. version is another after each change, and the same version has the same content in all rows.
type line struct {
	cells   []cell
	version uint64
}

// cursor is what DECSC saves.
type cursor struct {
	x, y     int
	pen      cell // of it the colours and attributes
	charsets [2]byte
	shifted  int
	origin   bool
	// full: the last column was written, and the next character goes to the next line.
	full bool
}

// Screen is what a terminal shows. New returns one.
type Screen struct {
	rows, cols int
	// lines is the screen in use; other is the one that is not.
	lines, other []*line
	alternate    bool
	cursor
	saved, otherSaved cursor
	top, bottom       int // the region that scrolls, inclusive
	tabs              []bool
	modes             modes
	insert, newline   bool
	noWrap            bool
	style             int // of the cursor, as DECSCUSR sets it
	last              uint32

	versions uint64
	// scrolls counts the lines by which the whole screen scrolled, bells the bells.
	scrolls, bells uint64
	answers        []byte
	in             parser
	// work is what Write has cost since the last pause; see quantum.
	work  int
	spare []*line
}

// New returns an empty screen of a size; see Clip.
func New(rows, cols int) *Screen {
	s := &Screen{}
	s.rows, s.cols = Clip(rows, cols)
	s.reset()
	return s
}

// Size is the size in characters.
func (s *Screen) Size() (rows, cols int) { return s.rows, s.cols }

func (s *Screen) reset() {
	if s.lines == nil {
		s.lines, s.other = s.blank(s.rows), s.blank(s.rows)
	}
	s.cursor = cursor{charsets: [2]byte{'B', 'B'}}
	s.saved, s.otherSaved = s.cursor, s.cursor
	s.alternate, s.insert, s.newline, s.noWrap, s.style, s.last = false, false, false, false, 0, 0
	s.top, s.bottom, s.modes = 0, s.rows-1, shown
	s.tabs = nil
	s.defaultTabs(0)
	for y := range s.rows {
		s.clear(y, 0, s.cols)
		s.lines, s.other = s.other, s.lines
		s.clear(y, 0, s.cols)
		s.lines, s.other = s.other, s.lines
	}
}

func (s *Screen) defaultTabs(from int) {
	tabs := make([]bool, s.cols)
	copy(tabs, s.tabs[:min(from, len(s.tabs))])
	for i := from; i < s.cols; i++ {
		tabs[i] = i%8 == 0
	}
	s.tabs = tabs
}

func (s *Screen) blank(n int) []*line {
	out := make([]*line, n)
	for i := range out {
		out[i] = &line{cells: make([]cell, s.cols)}
		s.touch(out[i])
	}
	return out
}

func (s *Screen) touch(l *line) {
	s.versions++
	l.version = s.versions
}

// Resize gives the screen another size; see Clip. Lines are not wrapped anew. Where it gets lower, the lines around the
// cursor stay.
func (s *Screen) Resize(rows, cols int) {
	rows, cols = Clip(rows, cols)
	if rows == s.rows && cols == s.cols {
		return
	}
	above := max(0, s.y-rows+1)
	was := s.cols
	s.rows, s.cols = rows, cols
	fit := func(list []*line, drop int) []*line {
		list = list[min(drop, len(list)):]
		list = list[:min(rows, len(list))]
		for _, l := range list {
			s.widen(l, was)
		}
		return append(append(make([]*line, 0, rows), list...), s.blank(rows-len(list))...)
	}
	s.lines = fit(s.lines, above)
	if s.alternate {
		s.other = fit(s.other, max(0, s.otherSaved.y-rows+1))
	} else {
		s.other = fit(s.other, 0)
	}
	s.y -= above
	for _, c := range []*cursor{&s.cursor, &s.saved, &s.otherSaved} {
		c.x, c.y, c.full = min(c.x, cols-1), min(max(c.y, 0), rows-1), false
	}
	s.top, s.bottom = 0, rows-1
	s.defaultTabs(was)
}

func (s *Screen) widen(l *line, was int) {
	cells := make([]cell, s.cols)
	copy(cells, l.cells)
	if s.cols < was && cells[s.cols-1].bg&wide != 0 {
		cells[s.cols-1] = cell{}
	}
	l.cells = cells
	s.touch(l)
}

// erased is what an erased character leaves: the background of the pen.
func (s *Screen) erased() cell { return cell{bg: s.pen.bg & colour} }

// clear erases from column x to before column end of row y.
func (s *Screen) clear(y, x, end int) {
	l := s.lines[y]
	s.work += end - x + 1
	s.split(l, x)
	s.split(l, end)
	e := s.erased()
	for i := x; i < end; i++ {
		l.cells[i] = e
	}
	s.touch(l)
}

// split clears a wide character of which x is the tail, before one of its halves is changed.
func (s *Screen) split(l *line, x int) {
	if x > 0 && x < len(l.cells) && l.cells[x].bg&tail != 0 {
		for _, i := range []int{x - 1, x} {
			l.cells[i] = cell{bg: l.cells[i].bg & colour}
		}
	}
}

// scroll moves the lines from top to bottom up by n, or down if n is negative.
func (s *Screen) scroll(top, bottom, n int) {
	height := bottom - top + 1
	if n == 0 || height <= 0 {
		return
	}
	if top == 0 && bottom == s.rows-1 && n > 0 {
		s.scrolls += uint64(n)
	}
	up := n > 0
	n = min(max(n, -n), height)
	s.work += height + n*s.cols
	region := s.lines[top : bottom+1]
	if up {
		s.rotate(region, n)
		region = region[height-n:]
	} else {
		s.rotate(region, height-n)
		region = region[:n]
	}
	e := s.erased()
	for _, l := range region {
		for i := range l.cells {
			l.cells[i] = e
		}
		s.touch(l)
	}
}

// rotate moves the first n of a list to its end.
func (s *Screen) rotate(list []*line, n int) {
	s.spare = append(s.spare[:0], list[:n]...)
	copy(list, list[n:])
	copy(list[len(list)-n:], s.spare)
}

// down moves the cursor to the next line, and scrolls at the end of the region.
func (s *Screen) down() {
	s.full = false
	switch {
	case s.y == s.bottom:
		s.scroll(s.top, s.bottom, 1)
	case s.y < s.rows-1:
		s.y++
	}
}

func (s *Screen) up() {
	s.full = false
	switch {
	case s.y == s.top:
		s.scroll(s.top, s.bottom, -1)
	case s.y > 0:
		s.y--
	}
}

// moveTo moves the cursor; with origin, row 0 is that of the region.
func (s *Screen) moveTo(y, x int) {
	low, high := 0, s.rows-1
	if s.origin {
		low, high = s.top, s.bottom
		y += s.top
	}
	s.y, s.x, s.full = min(max(y, low), high), min(max(x, 0), s.cols-1), false
}

// put writes a character at the cursor.
func (s *Screen) put(r rune) {
	if s.charsets[s.shifted] == '0' && r >= '`' && r <= '~' {
		r = graphics[r-'`']
	}
	w := width(r)
	switch {
	case w < 0:
		return
	case w == 0:
		s.mark(r)
		return
	case w > s.cols:
		r, w = '?', 1
	}
	s.last = uint32(r)
	s.work += 4
	if s.full && !s.noWrap || s.x+w > s.cols && !s.noWrap {
		s.x = 0
		s.down()
	}
	s.x = min(s.x, s.cols-w)
	l := s.lines[s.y]
	if s.insert {
		s.shift(l, s.x, w)
	}
	s.split(l, s.x)
	s.split(l, s.x+w)
	c := cell{r: uint32(r), fg: s.pen.fg, bg: s.pen.bg}
	if w == 2 {
		c.bg |= wide
		l.cells[s.x+1] = cell{fg: s.pen.fg, bg: s.pen.bg | tail}
	}
	l.cells[s.x] = c
	s.touch(l)
	if s.x += w; s.x >= s.cols {
		s.x, s.full = s.cols-1, true
	}
}

// mark adds a combining character to the one before the cursor. A third one is dropped.
func (s *Screen) mark(r rune) {
	l, x := s.lines[s.y], s.x
	if !s.full {
		x--
	}
	if x > 0 && l.cells[x].bg&tail != 0 {
		x--
	}
	if x < 0 || l.cells[x].r == 0 || r > 0xffff {
		return
	}
	switch c := &l.cells[x]; {
	case c.marks == 0:
		c.marks = uint32(r)
	case c.marks>>16 == 0:
		c.marks |= uint32(r) << 16
	default:
		return
	}
	s.touch(l)
}

// shift moves what stands from column x on to the right by n, or to the left if n is negative.
func (s *Screen) shift(l *line, x, n int) {
	s.split(l, x)
	e, rest := s.erased(), l.cells[x:]
	s.work += len(rest)
	k := min(max(n, -n), len(rest))
	if n > 0 {
		copy(rest[k:], rest)
		rest = rest[:k]
	} else {
		s.split(l, x+k)
		copy(rest, rest[k:])
		rest = rest[len(rest)-k:]
	}
	for i := range rest {
		rest[i] = e
	}
	if end := &l.cells[s.cols-1]; end.bg&wide != 0 { // its tail has gone
		*end = cell{bg: end.bg & colour}
	}
	s.touch(l)
}

// use switches to the alternate screen or back.
func (s *Screen) use(alternate, clear bool) {
	if s.alternate != alternate {
		s.alternate = alternate
		s.lines, s.other = s.other, s.lines
		s.saved, s.otherSaved = s.otherSaved, s.saved
		s.work += s.rows
		for _, l := range s.lines { // a version that a client has seen is of before
			s.touch(l)
		}
	}
	if clear {
		for y := range s.lines {
			s.clear(y, 0, s.cols)
		}
	}
}

// Answers returns what the terminal answers to questions that programs asked, and forgets it. It is bounded; what is more
// than a terminal would be asked in earnest is dropped.
func (s *Screen) Answers() []byte {
	a := s.answers
	s.answers = nil
	return a
}

// maxAnswers bounds what waits to be answered, in bytes.
const maxAnswers = 256

func (s *Screen) answer(text string) {
	if len(s.answers)+len(text) <= maxAnswers {
		s.answers = append(s.answers, text...)
	}
}

// String is the text that is shown, a line for each row, without styles.
func (s *Screen) String() string {
	var b strings.Builder
	for _, l := range s.lines {
		var row strings.Builder
		for _, c := range l.cells {
			switch {
			case c.bg&tail != 0:
				continue
			case c.r == 0:
				row.WriteByte(' ')
				continue
			}
			row.WriteRune(rune(c.r))
			for _, m := range []uint32{c.marks & 0xffff, c.marks >> 16} {
				if m != 0 {
					row.WriteRune(rune(m))
				}
			}
		}
		b.WriteString(strings.TrimRight(row.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}
