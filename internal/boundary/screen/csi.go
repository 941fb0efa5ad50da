package screen

import "strconv"

// modes are those that change what a client's terminal sends or shows; a client is told of them.
type modes uint16

const (
	shown modes = 1 << iota // the cursor
	cursorKeys
	keypad
	bracketed
	focus
	mouseX10
	mouseButtons
	mouseDrag
	mouseMotion
	mouseUTF8
	mouseSGR
	mouseURXVT
)

// private are the modes by their number behind CSI ?.
var private = map[int]modes{
	1: cursorKeys, 9: mouseX10, 25: shown, 1000: mouseButtons, 1002: mouseDrag, 1003: mouseMotion, 1004: focus, 1005: mouseUTF8,
	1006: mouseSGR, 1015: mouseURXVT, 2004: bracketed,
}

// param is parameter i, or otherwise if it is not given or 0.
func (p *parser) param(i, otherwise int) int {
	if i >= p.n || p.params[i] == 0 {
		return otherwise
	}
	return p.params[i]
}

// sequence carries out a sequence of CSI that ends with c.
func (s *Screen) sequence(c byte) {
	p := &s.in
	switch {
	case p.prefix == '?' && p.inter == 0 && (c == 'h' || c == 'l'):
		for i := range p.n {
			s.setPrivate(p.params[i], c == 'h')
		}
		return
	case p.prefix == '?' && p.inter == 0 && (c == 'J' || c == 'K'): // selective: nothing is protected
	case p.prefix == '>' && p.inter == 0 && c == 'c':
		s.answer("\x1b[>0;0;0c")
		return
	case p.inter == '!' && p.prefix == 0 && c == 'p':
		s.softReset()
		return
	case p.inter == ' ' && p.prefix == 0 && c == 'q':
		if n := p.params[0]; n <= 6 {
			s.style = n
		}
		return
	case p.prefix != 0 || p.inter != 0:
		return
	}
	n := p.param(0, 1)
	switch c {
	case 'A':
		s.vertical(-n)
	case 'B', 'e':
		s.vertical(n)
	case 'C', 'a':
		s.x, s.full = min(s.x+n, s.cols-1), false
	case 'D':
		s.x, s.full = max(s.x-n, 0), false
	case 'E':
		s.vertical(n)
		s.x = 0
	case 'F':
		s.vertical(-n)
		s.x = 0
	case 'G', '`':
		s.x, s.full = min(n, s.cols)-1, false
	case 'H', 'f':
		s.moveTo(n-1, p.param(1, 1)-1)
	case 'I':
		s.tab(min(n, s.cols))
	case 'Z':
		s.tab(-min(n, s.cols))
	case 'J':
		s.erase(p.params[0])
	case 'K':
		s.full = false
		switch p.params[0] {
		case 0:
			s.clear(s.y, s.x, s.cols)
		case 1:
			s.clear(s.y, 0, s.x+1)
		case 2:
			s.clear(s.y, 0, s.cols)
		}
	case 'L', 'M':
		if s.y < s.top || s.y > s.bottom {
			return
		}
		if s.x, s.full = 0, false; c == 'L' {
			n = -n
		}
		s.scroll(s.y, s.bottom, bounded(n, s.rows))
	case '@':
		s.full = false
		s.shift(s.lines[s.y], s.x, min(n, s.cols))
	case 'P':
		s.full = false
		s.shift(s.lines[s.y], s.x, -min(n, s.cols))
	case 'X':
		s.full = false
		s.clear(s.y, s.x, min(s.x+n, s.cols))
	case 'S':
		s.scroll(s.top, s.bottom, bounded(n, s.rows))
	case 'T':
		s.scroll(s.top, s.bottom, -bounded(n, s.rows))
	case 'b':
		for range min(n, s.cols) {
			if s.last == 0 {
				return
			}
			s.put(rune(s.last))
		}
	case 'c':
		s.answer("\x1b[?62;22c")
	case 'd':
		s.moveTo(n-1, s.x)
	case 'g':
		switch p.params[0] {
		case 0:
			s.tabs[s.x] = false
		case 3:
			clear(s.tabs)
		}
	case 'h', 'l':
		for i := range p.n {
			switch p.params[i] {
			case 4:
				s.insert = c == 'h'
			case 20:
				s.newline = c == 'h'
			}
		}
	case 'm':
		s.rendition()
	case 'n':
		switch p.params[0] {
		case 5:
			s.answer("\x1b[0n")
		case 6:
			y := s.y
			if s.origin {
				y -= s.top
			}
			s.answer("\x1b[" + strconv.Itoa(y+1) + ";" + strconv.Itoa(s.x+1) + "R")
		}
	case 'r':
		top, bottom := n-1, min(p.param(1, s.rows), s.rows)-1
		if top < bottom {
			s.top, s.bottom = top, bottom
			s.moveTo(0, 0)
		}
	case 's':
		s.saved = s.cursor
	case 'u':
		s.restore()
	}
}

func bounded(n, most int) int { return min(max(n, -most), most) }

// vertical moves the cursor by n lines, and not out of the region if it is in it.
func (s *Screen) vertical(n int) {
	low, high := 0, s.rows-1
	if s.y >= s.top {
		low = s.top
	}
	if s.y <= s.bottom {
		high = s.bottom
	}
	s.y, s.full = min(max(s.y+n, low), high), false
}

func (s *Screen) erase(what int) {
	s.full = false
	from, to := 0, s.rows
	switch what {
	case 0:
		s.clear(s.y, s.x, s.cols)
		from = s.y + 1
	case 1:
		s.clear(s.y, 0, s.x+1)
		to = s.y
	case 2:
	default:
		return // 3: nothing is kept beyond the screen
	}
	for y := from; y < to; y++ {
		s.clear(y, 0, s.cols)
	}
}

func (s *Screen) setPrivate(mode int, on bool) {
	if m := private[mode]; m != 0 {
		if s.modes &^= m; on {
			s.modes |= m
		}
		return
	}
	switch mode {
	case 6:
		s.origin = on
		s.moveTo(0, 0)
	case 7:
		s.noWrap, s.full = !on, false
	case 47, 1047:
		s.use(on, on && mode == 1047)
	case 1048:
		if on {
			s.saved = s.cursor
		} else {
			s.restore()
		}
	case 1049:
		if on == s.alternate {
			return
		}
		if on {
			s.saved = s.cursor
			pen := s.cursor
			s.use(true, true)
			s.cursor = pen
			return
		}
		s.use(false, false)
		s.restore()
	}
}

func (s *Screen) softReset() {
	s.pen, s.charsets, s.shifted, s.origin = cell{}, [2]byte{'B', 'B'}, 0, false
	s.insert, s.noWrap, s.top, s.bottom, s.style = false, false, 0, s.rows-1, 0
	s.modes = s.modes&^(cursorKeys|keypad) | shown
	s.saved = cursor{charsets: s.charsets}
}

// foregrounds and backgrounds are the attributes that an SGR parameter sets and takes away.
var foregrounds = map[int]struct{ set, drop uint32 }{
	1: {bold, 0}, 2: {faint, 0}, 3: {italic, 0}, 4: {underline, 0}, 5: {blink, 0}, 6: {blink, 0}, 7: {reverse, 0}, 21: {underline, 0},
	22: {0, bold | faint}, 23: {0, italic}, 24: {0, underline}, 25: {0, blink}, 27: {0, reverse},
}

var backgrounds = map[int]struct{ set, drop uint32 }{8: {hidden, 0}, 9: {struck, 0}, 28: {0, hidden}, 29: {0, struck}}

// rendition is SGR.
func (s *Screen) rendition() {
	p := &s.in
	for i := 0; i < p.n; i++ {
		v := p.params[i]
		end := i + 1 // of what belongs to it by colons
		for end < p.n && p.part[end] {
			end++
		}
		switch {
		case v == 0:
			s.pen = cell{}
		case v == 4 && end > i+1 && p.params[i+1] == 0: // 4:0
			s.pen.fg &^= underline
		case v >= 30 && v <= 37 || v >= 90 && v <= 97:
			s.pen.fg = s.pen.fg&^colour | indexed | basic(v-30)
		case v >= 40 && v <= 47 || v >= 100 && v <= 107:
			s.pen.bg = s.pen.bg&^colour | indexed | basic(v-40)
		case v == 39:
			s.pen.fg &^= colour
		case v == 49:
			s.pen.bg &^= colour
		case v == 38 || v == 48 || v == 58:
			c, used := p.extended(i, end)
			switch {
			case c == 0 || v == 58:
			case v == 38:
				s.pen.fg = s.pen.fg&^colour | c
			default:
				s.pen.bg = s.pen.bg&^colour | c
			}
			end = used
		default:
			f, b := foregrounds[v], backgrounds[v]
			s.pen.fg, s.pen.bg = s.pen.fg&^f.drop|f.set, s.pen.bg&^b.drop|b.set
		}
		i = end - 1
	}
}

// basic is the index of one of the eight colours, or of the eight bright ones, which are 60 above.
func basic(n int) uint32 {
	if n >= 60 {
		n -= 52
	}
	return uint32(n)
}

// extended reads a colour behind 38, 48 or 58, in the forms 5;N, 2;R;G;B, 5:N, 2:R:G:B and 2::R:G:B. It returns 0 for
// none, and where the next parameter is.
func (p *parser) extended(i, end int) (c uint32, next int) {
	colons := end > i+1
	if !colons {
		end = p.n
	}
	rest := p.params[i+1 : end]
	next = end
	value := func(list []int) uint32 {
		var v uint32
		for _, x := range list {
			v = v<<8 | uint32(min(x, 255))
		}
		return v
	}
	switch {
	case len(rest) >= 2 && rest[0] == 5:
		if !colons {
			next = i + 3
		}
		return indexed | value(rest[1:2]), next
	case colons && len(rest) >= 5 && rest[0] == 2:
		return direct | value(rest[2:5]), next
	case len(rest) >= 4 && rest[0] == 2:
		if !colons {
			next = i + 5
		}
		return direct | value(rest[1:4]), next
	}
	return 0, next
}
