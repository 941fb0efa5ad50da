package screen

import (
	"slices"
	"strconv"
	"unicode/utf8"
)

// View is what one client has been sent of a screen. The zero value is a client that has been sent nothing.
type View struct {
	// Rows and Cols are the size of the client's window, 0 if that is not known: nothing is drawn outside of it. After a
	// change of them Reset must be called.
	Rows, Cols int

	begun      bool
	rows, cols int      // of the screen, when it was drawn
	versions   []uint64 // of the line that each row shows; 0 is none
	scrolls    uint64
	bells      uint64
	modes      modes
	style      int
	y, x       int
}

// Reset makes the next Draw draw everything.
func (v *View) Reset() { v.begun = false }

// Draw appends to b what makes a client's terminal show the screen, and stops behind the row with which that is more than
// most bytes. It returns true once nothing is left. A client is sent rows as they are at that time, however often they
// changed since the last Draw.
func (s *Screen) Draw(v *View, b []byte, most int) ([]byte, bool) {
	began := len(b)
	if !v.begun || v.rows != s.rows || v.cols != s.cols {
		b = s.first(v, b)
	}
	rows := s.rows
	if v.Rows > 0 {
		rows = min(rows, v.Rows)
	}
	hid := v.modes&shown == 0
	hide := func() {
		if !hid {
			b, hid = append(b, "\x1b[?25l"...), true
			v.modes &^= shown
		}
	}
	if k := s.scrolls - v.scrolls; k > 0 {
		v.scrolls = s.scrolls
		if k < uint64(s.rows) && rows == s.rows {
			hide()
			b = move(append(b, "\x1b[m"...), rows-1, 0)
			for range k {
				b = append(b, '\n')
			}
			copy(v.versions, v.versions[k:])
			for i := rows - int(k); i < rows; i++ {
				v.versions[i] = 0
			}
			v.y = -1
		}
	}
	for y := range rows {
		l := s.lines[y]
		if v.versions[y] == l.version {
			continue
		}
		if len(b)-began > most {
			return b, false
		}
		hide()
		b = s.row(v, b, y)
		v.versions[y], v.y = l.version, -1
	}
	if s.modes&shown == 0 {
		hide()
	}
	if s.bells != v.bells {
		v.bells = s.bells
		b = append(b, bel)
	}
	b = s.drawModes(v, b)
	y, x := min(s.y, rows-1), s.x
	if v.Cols > 0 {
		x = min(x, v.Cols-1)
	}
	if v.y != y || v.x != x {
		b = move(b, y, x)
		v.y, v.x = y, x
	}
	if s.modes&shown != 0 && v.modes&shown == 0 {
		b = append(b, "\x1b[?25h"...)
		v.modes |= shown
	}
	return b, true
}

// first prepares a terminal of which nothing is known. It ends a sequence or a character that was cut off.
func (s *Screen) first(v *View, b []byte) []byte {
	b = append(b, "\x18\x1b\\\x1b[m\x0f\x1b(B\x1b[?6l\x1b[?7h\x1b[4l\x1b[?25l\x1b[1;"...)
	b = strconv.AppendInt(b, int64(s.rows), 10)
	b = append(b, "r\x1b[2J"...)
	v.begun, v.rows, v.cols = true, s.rows, s.cols
	v.versions, v.scrolls, v.bells, v.y = make([]uint64, s.rows), s.scrolls, s.bells, -1
	// All modes are said once.
	v.modes, v.style = ^s.modes&^shown, -1
	return s.drawModes(v, b)
}

func (s *Screen) drawModes(v *View, b []byte) []byte {
	if changed := (s.modes ^ v.modes) &^ shown; changed != 0 {
		// Off before on: to turn one mode of the mouse off turns off all of them.
		for _, on := range []bool{false, true} {
			for _, n := range numbers {
				if m := private[n]; changed&m != 0 && s.modes&m != 0 == on {
					b = strconv.AppendInt(append(b, "\x1b[?"...), int64(n), 10)
					b = append(b, onOff(on))
				}
			}
		}
		if changed&keypad != 0 {
			if b = append(b, esc, '>'); s.modes&keypad != 0 {
				b[len(b)-1] = '='
			}
		}
		v.modes = s.modes&^shown | v.modes&shown
	}
	if s.style != v.style {
		v.style = s.style
		b = append(strconv.AppendInt(append(b, "\x1b["...), int64(s.style), 10), " q"...)
	}
	return b
}

// numbers are those of the modes in order, so that the same change is drawn in the same way.
var numbers = func() (list []int) {
	for n := range private {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}()

func onOff(on bool) byte {
	if on {
		return 'h'
	}
	return 'l'
}

func move(b []byte, y, x int) []byte {
	b = strconv.AppendInt(append(b, "\x1b["...), int64(y+1), 10)
	b = strconv.AppendInt(append(b, ';'), int64(x+1), 10)
	return append(b, 'H')
}

// row draws a row.
func (s *Screen) row(v *View, b []byte, y int) []byte {
	cells := s.lines[y].cells
	if v.Cols > 0 && v.Cols < len(cells) {
		cells = cells[:v.Cols]
		if len(cells) > 0 && cells[len(cells)-1].bg&wide != 0 {
			cells = cells[:len(cells)-1]
		}
	}
	end := len(cells)
	for end > 0 && cells[end-1] == (cell{}) {
		end--
	}
	b = move(b, y, 0)
	b = append(b, "\x1b[m"...)
	// Behind a character in the last column of the window the same would erase that character.
	if v.Cols == 0 && end == len(cells) {
		b = append(b, "\x1b[K"...)
	}
	var fg, bg uint32
	for _, c := range cells[:end] {
		if c.bg&tail != 0 {
			continue
		}
		if f, g := c.fg, c.bg&^wide; f != fg || g != bg {
			b = style(b, f, g)
			fg, bg = f, g
		}
		if c.r == 0 {
			b = append(b, ' ')
			continue
		}
		b = utf8.AppendRune(b, rune(c.r))
		for _, m := range []uint32{c.marks & 0xffff, c.marks >> 16} {
			if m != 0 {
				b = utf8.AppendRune(b, rune(m))
			}
		}
	}
	if fg|bg != 0 {
		b = append(b, "\x1b[m"...)
	}
	if end < len(cells) || v.Cols > len(cells) {
		b = append(b, "\x1b[K"...)
	}
	return b
}

// style sets colours and attributes, after a reset.
func style(b []byte, fg, bg uint32) []byte {
	b = append(b, "\x1b[0"...)
	for i, bit := range []uint32{bold, faint, italic, underline, blink, 0, reverse} {
		if fg&bit != 0 {
			b = append(b, ';', '1'+byte(i))
		}
	}
	if bg&hidden != 0 {
		b = append(b, ";8"...)
	}
	if bg&struck != 0 {
		b = append(b, ";9"...)
	}
	b = paint(b, fg&colour, 30)
	b = paint(b, bg&colour, 40)
	return append(b, 'm')
}

func paint(b []byte, c uint32, base int64) []byte {
	v := int64(c & 0xffffff)
	number := func(n int64) { b = strconv.AppendInt(append(b, ';'), n, 10) }
	switch {
	case c&^0xffffff == direct:
		number(base + 8)
		number(2)
		number(v >> 16)
		number(v >> 8 & 255)
		number(v & 255)
	case c&^0xffffff != indexed:
	case v < 8:
		number(base + v)
	case v < 16:
		number(base + 60 + v - 8)
	default:
		number(base + 8)
		number(5)
		number(v)
	}
	return b
}
