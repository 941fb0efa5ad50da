package chatui

import (
	"slices"
	"strings"
	"unicode"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// maxLine bounds what is typed, in characters.
const maxLine = 32 << 10

// editor is the text that a person types, of one line or more.
type editor struct {
	text []rune
	at   int
}

func (e *editor) String() string { return string(e.text) }

func (e *editor) set(s string) {
	e.text = []rune(s)
	e.at = len(e.text)
}

func (e *editor) insert(s string) {
	r := []rune(s)
	if len(e.text)+len(r) > maxLine {
		return
	}
	e.text = slices.Insert(e.text, e.at, r...)
	e.at += len(r)
}

// paste inserts what came from elsewhere: lines and tabs, and no other control.
func (e *editor) paste(s string) {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(s)
	e.insert(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s))
}

// delete takes away what is between the cursor and another place.
func (e *editor) delete(to int) {
	from := min(max(to, 0), len(e.text))
	to = e.at
	if from > to {
		from, to = to, from
	}
	e.text = slices.Delete(e.text, from, to)
	e.at = from
}

// start and end are those of the line with the cursor.
func (e *editor) start() int {
	for i := e.at; i > 0; i-- {
		if e.text[i-1] == '\n' {
			return i
		}
	}
	return 0
}

func (e *editor) end() int {
	for i := e.at; i < len(e.text); i++ {
		if e.text[i] == '\n' {
			return i
		}
	}
	return len(e.text)
}

// wordStart and wordEnd are those of the word at the cursor, or of the one beside it.
func (e *editor) wordStart() int {
	i := e.at
	for i > 0 && unicode.IsSpace(e.text[i-1]) {
		i--
	}
	for i > 0 && !unicode.IsSpace(e.text[i-1]) {
		i--
	}
	return i
}

func (e *editor) wordEnd() int {
	i := e.at
	for i < len(e.text) && unicode.IsSpace(e.text[i]) {
		i++
	}
	for i < len(e.text) && !unicode.IsSpace(e.text[i]) {
		i++
	}
	return i
}

// vertical moves the cursor to the line above or below, and reports whether there is one.
func (e *editor) vertical(down bool) bool {
	column := e.at - e.start()
	if down {
		end := e.end()
		if end == len(e.text) {
			return false
		}
		e.at = end + 1
	} else {
		start := e.start()
		if start == 0 {
			return false
		}
		e.at = start - 1
		e.at = e.start()
	}
	e.at = min(e.at+column, e.end())
	return true
}

// key carries out a key. One that is not the editor's does nothing.
func (e *editor) key(name, text string) {
	switch name {
	case "left", "ctrl+b":
		e.at = max(e.at-1, 0)
	case "right", "ctrl+f":
		e.at = min(e.at+1, len(e.text))
	case "home", "ctrl+a":
		e.at = e.start()
	case "end", "ctrl+e":
		e.at = e.end()
	case "ctrl+left", "alt+b", "alt+left":
		e.at = e.wordStart()
	case "ctrl+right", "alt+f", "alt+right":
		e.at = e.wordEnd()
	case "backspace", "ctrl+h", "shift+backspace":
		e.delete(e.at - 1)
	case "delete":
		e.delete(e.at + 1)
	case "ctrl+w", "alt+backspace":
		e.delete(e.wordStart())
	case "ctrl+u": // again at the beginning of a line: with the end of the line above
		if to := e.start(); to < e.at {
			e.delete(to)
		} else {
			e.delete(to - 1)
		}
	case "ctrl+k":
		e.delete(e.end())
	case "alt+enter", "ctrl+j", "shift+enter":
		e.insert("\n")
	default:
		e.paste(text)
	}
}

// before is the text before the cursor.
func (e *editor) before() string { return string(e.text[:e.at]) }

// word is what is left of the cursor without a blank.
func (e *editor) word() string {
	i := e.at
	for i > 0 && !unicode.IsSpace(e.text[i-1]) {
		i--
	}
	return string(e.text[i:e.at])
}

// lines are what is shown behind a prompt in a width, with the place of the cursor.
func (e *editor) lines(prompt string, width int) (out []string, x, y int) {
	if width-termtext.Width(prompt) < 4 { // there is room for what is typed alone
		prompt = ""
	}
	row, used := prompt, termtext.Width(prompt)
	indent := strings.Repeat(" ", used)
	wrap := func() {
		out = append(out, row)
		row, used = indent, len(indent)
	}
	for i, r := range e.text {
		if i == e.at {
			x, y = used, len(out)
		}
		if r == '\n' {
			wrap()
			continue
		}
		for n, c := range termtext.Visible(spaced(string(r))) {
			w := termtext.Width(string(c))
			if used+w > width-1 && used > len(indent) { // a cell is left for the cursor
				wrap()
				if i == e.at && n == 0 {
					x, y = used, len(out)
				}
			}
			row += string(c)
			used += w
		}
	}
	if e.at == len(e.text) {
		x, y = used, len(out)
	}
	return append(out, row), min(x, max(width-1, 0)), y
}
