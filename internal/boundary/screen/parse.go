package screen

import "unicode/utf8"

// parser reads sequences as https://vt100.net/emu/dec_ansi_parser describes, in UTF-8. It keeps no text of a sequence: only
// numbers, which are bounded.
type parser struct {
	state  state
	prefix byte // '?', '>', '<' or '=' behind CSI
	inter  byte // an intermediate character; more than one is 0xff, which nothing has
	params [maxParams]int
	// part marks parameters that follow a colon.
	part [maxParams]bool
	n    int // how many there are, from 1 on
	char [utf8.UTFMax]byte
	size int
}

// maxParams is how many parameters a sequence has, and maxParam how large one is. More are dropped.
const (
	maxParams = 24
	maxParam  = 65535
)

type state uint8

const (
	ground state = iota
	escape
	escapeInter
	csi
	csiIgnore
	osc     // ends with BEL or ST
	text    // a device control or other string: ends with ST
	textEnd // ESC in one of both
)

const (
	bel, bs, ht, lf, vt, ff, cr, so, si = 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f
	can, sub, esc, del                  = 0x18, 0x1a, 0x1b, 0x7f
)

// quantum is how much Write does between two pauses, in characters that are changed, about.
const quantum = 512 << 10

// Write reads output of a program, and returns how much of it: less than all if that is much to do, as to clear a large
// screen many times. After that, and whenever Tired says so, the caller should pause, or the program keeps a processor busy.
func (s *Screen) Write(b []byte) int {
	if s.Tired() {
		s.work = 0
	}
	for i, c := range b {
		if s.Tired() {
			return i
		}
		s.work++
		s.step(c)
	}
	return len(b)
}

// Tired reports whether the calls of Write since the last pause have done much.
func (s *Screen) Tired() bool { return s.work >= quantum }

func (s *Screen) step(c byte) {
	p := &s.in
	switch {
	case p.size > 0:
		if s.more(c) {
			return
		}
	case c == can || c == sub:
		p.state = ground
		return
	case c == esc:
		if p.state == osc || p.state == text {
			p.state = textEnd
		} else {
			p.begin(escape)
		}
		return
	}
	if c < 0x20 && p.state != osc && p.state != text && p.state != textEnd {
		s.control(c)
		return
	}
	switch p.state {
	case ground:
		s.char(c)
	case escape:
		s.escaped(c)
	case escapeInter:
		switch {
		case c < 0x30:
			p.inter = 0xff
		case c < del:
			s.designate(c)
			p.state = ground
		}
	case csi:
		s.parameter(c)
	case csiIgnore:
		if c >= 0x40 && c < del {
			p.state = ground
		}
	case osc:
		if c == bel {
			p.state = ground
		}
	case textEnd:
		if c == '\\' {
			p.state = ground
			return
		}
		p.begin(escape) // the string has ended with another sequence
		s.step(c)
	case text:
	}
}

// begin begins a sequence.
func (p *parser) begin(st state) {
	p.state, p.prefix, p.inter, p.n, p.params[0], p.part[0] = st, 0, 0, 1, 0, false
}

// char is a character, or the first byte of one.
func (s *Screen) char(c byte) {
	switch {
	case c < del:
		s.put(rune(c))
	case c == del:
	case c < 0xc2 || c > 0xf4:
		s.put(utf8.RuneError)
	default:
		s.in.char[0], s.in.size = c, 1
	}
}

// more is a byte behind the first of a character. It returns false if it is none, and still to be read.
func (s *Screen) more(c byte) bool {
	p := &s.in
	if c&0xc0 != 0x80 {
		p.size = 0
		s.put(utf8.RuneError)
		return s.again(c)
	}
	p.char[p.size] = c
	p.size++
	if !utf8.FullRune(p.char[:p.size]) {
		return true
	}
	r, n := utf8.DecodeRune(p.char[:p.size])
	size := p.size
	p.size = 0
	s.put(r)
	if n < size { // the last byte did not fit
		return s.again(c)
	}
	return true
}

// again reads a byte that ended a broken character.
func (s *Screen) again(c byte) bool {
	s.step(c)
	return true
}

func (s *Screen) control(c byte) {
	switch c {
	case bel:
		s.bells++
	case bs:
		s.x, s.full = max(0, s.x-1), false
	case ht:
		s.tab(1)
	case lf, vt, ff:
		if s.down(); s.newline {
			s.x = 0
		}
	case cr:
		s.x, s.full = 0, false
	case so:
		s.shifted = 1
	case si:
		s.shifted = 0
	}
}

// tab moves the cursor to the nth next stop, or to one before if n is negative.
func (s *Screen) tab(n int) {
	s.full = false
	for ; n > 0 && s.x < s.cols-1; n-- {
		for s.x++; s.x < s.cols-1 && !s.tabs[s.x]; s.x++ {
		}
	}
	for ; n < 0 && s.x > 0; n++ {
		for s.x--; s.x > 0 && !s.tabs[s.x]; s.x-- {
		}
	}
}

func (s *Screen) escaped(c byte) {
	s.in.state = ground
	switch c {
	case '[':
		s.in.begin(csi)
	case ']':
		s.in.state = osc
	case 'P', 'X', '^', '_':
		s.in.state = text
	case 'D':
		s.down()
	case 'E':
		s.down()
		s.x = 0
	case 'M':
		s.up()
	case 'H':
		s.tabs[s.x] = true
	case '7':
		s.saved = s.cursor
	case '8':
		s.restore()
	case '=':
		s.modes |= keypad
	case '>':
		s.modes &^= keypad
	case 'c':
		s.reset()
	default:
		if c >= 0x20 && c < 0x30 {
			s.in.state, s.in.inter = escapeInter, c
		}
	}
}

func (s *Screen) restore() {
	s.cursor = s.saved
	s.x, s.y = min(s.x, s.cols-1), min(s.y, s.rows-1)
}

// designate ends a sequence of ESC, an intermediate character and c.
func (s *Screen) designate(c byte) {
	switch s.in.inter {
	case '(':
		s.charsets[0] = c
	case ')':
		s.charsets[1] = c
	case '#':
		if c != '8' {
			return
		}
		s.work += s.rows * s.cols
		for _, l := range s.lines { // DECALN
			for i := range l.cells {
				l.cells[i] = cell{r: 'E'}
			}
			s.touch(l)
		}
		s.top, s.bottom = 0, s.rows-1
		s.moveTo(0, 0)
	}
}

// parameter is a byte behind CSI.
func (s *Screen) parameter(c byte) {
	p := &s.in
	switch {
	case c >= '0' && c <= '9':
		if p.inter != 0 {
			p.state = csiIgnore
			return
		}
		if v := &p.params[p.n-1]; *v <= maxParam {
			*v = min(*v*10+int(c-'0'), maxParam)
		}
	case c == ';' || c == ':':
		if p.n == maxParams {
			p.state = csiIgnore
			return
		}
		p.params[p.n], p.part[p.n] = 0, c == ':'
		p.n++
	case c >= '<' && c <= '?':
		if p.n > 1 || p.params[0] != 0 || p.prefix != 0 {
			p.state = csiIgnore
			return
		}
		p.prefix = c
	case c < 0x30:
		if p.inter != 0 {
			c = 0xff
		}
		p.inter = c
	case c < del:
		p.state = ground
		s.sequence(c)
	}
}
