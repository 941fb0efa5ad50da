package screen

import (
	"fmt"
	"strings"
)

// Text is what is shown, without what is blank at the end of the screen.
func (s *Screen) Text() string { return strings.TrimRight(s.String(), "\n") }

// Dump is all that a person sees of it: characters with their styles, and the cursor. A blank is a space.
func (s *Screen) Dump() string {
	var b strings.Builder
	for _, l := range s.lines {
		for _, c := range l.cells {
			if c.r == 0 {
				c.r = ' '
			}
			if c.r == ' ' {
				fmt.Fprintf(&b, " %x/%x", c.fg, c.bg)
				continue
			}
			fmt.Fprintf(&b, "%c%x/%x/%x ", rune(c.r), c.marks, c.fg, c.bg)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "cursor %d,%d style %d modes %b", s.y, s.x, s.style, s.modes)
	return b.String()
}
