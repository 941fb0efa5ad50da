package watch

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// Styles, as SGR of ECMA-48. The renderer removes them for a terminal without colours.
const (
	bold, dim, reverse, red, yellow, off = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[31m", "\x1b[33m", "\x1b[m"
)

const helpText = `  up, down, k, j   choose; on a page, read
  home, end        first, last
  space, b         read on, back
  enter            show all of the question on a page of its own; back
  y                let it pass, once
  t                let it pass, and remember it in its thread
  f                go through the files of a change: y has one changed, n leaves it as it is
  n                refuse; a reason is asked for
  a                answer every question about the same action; asks first
  tab              what is over
  q                leave a page, or the watch; nothing is answered by that

An answer is about what is shown below the list. No key answers before all of it was shown at
the present size of the window. If it ends while you read, keys do nothing until you have chosen
again.`

// layout is one screen. It has at most as many lines as the terminal, none wider than it.
type layout struct {
	head, text, foot []string
	// of is what text is a part of, all is how many lines that has, and from is the first one shown.
	of        string
	all, from int
}

// View implements tea.Model.
func (m *Model) View() tea.View {
	l := m.lay()
	lines := append(slices.Clip(l.head), l.text...)
	for len(lines)+len(l.foot) < m.height {
		lines = append(lines, "")
	}
	v := tea.NewView(strings.Join(append(lines, l.foot...), "\n"))
	v.AltScreen = true
	v.WindowTitle = fmt.Sprintf("carrel: %d pending", len(m.pending))
	return v
}

// lay places everything. What the text has room for must not depend on how much of it was read, because
// settle counts the lines that are placed here as read.
func (m *Model) lay() layout {
	if m.height < 1 || m.width < 1 {
		return layout{}
	}
	var l layout
	var text string
	l.of, text = m.body()
	all := termtext.Broken(text, m.width-1)
	l.all = len(all)
	notes := termtext.Broken(m.note, m.width-1)
	if most := min(3, max(m.height-4, 0)); len(notes) > most {
		if most > 0 {
			notes[most-1] = termtext.Fit(strings.Join(notes[most-1:], ""), m.width-1) // too long, so cut with a mark
		}
		notes = notes[:most]
	}
	for _, n := range notes {
		l.foot = append(l.foot, yellow+n+off)
	}
	room := m.height - len(l.foot) - 1
	if m.height >= 3 {
		l.head = append(l.head, m.title())
		room--
	}
	rule := false
	if m.showing() == list {
		rule = room >= 8
		if rule {
			l.head = append(l.head, dim+m.columns()+off)
			room -= 2
		}
		rows := m.rows(min(max(room-l.all, 1), max(room/3, 1), room))
		l.head = append(l.head, rows...)
		room -= len(rows)
	}
	room = min(max(room, 0), l.all)
	l.from = min(m.scroll, l.all-room)
	l.text = all[l.from : l.from+room]
	if rule && l.all > 0 {
		line := "── "
		if room < l.all {
			line += fmt.Sprintf("lines %d to %d of %d ", l.from+1, l.from+room, l.all)
		}
		line = termtext.Fit(line, m.width-1)
		l.head = append(l.head, dim+line+strings.Repeat("─", max(m.width-1-termtext.Width(line), 0))+off)
	}
	l.foot = append(l.foot, m.keysLine(l))
	return l
}

func (m *Model) title() string {
	at, n, what := m.at()+1, len(m.list()), "pending"
	if m.history {
		what = "that are over"
	}
	where := fmt.Sprintf("%d of %d", at, n)
	if n == 0 {
		where = "0"
	}
	name := "carrel approvals"
	switch m.showing() {
	case list:
	case whole:
		name = termtext.Visible(m.chosen)
	case confirm:
		name, where, what = "carrel approvals", fmt.Sprintf("answer %d", len(m.together)), "together"
	case help:
		name, where, what = "carrel approvals", "keys", ""
	case report:
		name, where, what = "carrel approvals", "not all", "was answered"
	}
	room := m.width
	if m.lost != nil {
		room = m.width / 2
	}
	s := termtext.Longest(room, strings.TrimSpace(name+"  "+where+" "+what), strings.TrimSpace(where+" "+what), where)
	out := bold + s + off
	if m.lost != nil {
		out += red + termtext.Fit("  the daemon is away: "+m.lost.Error(), m.width-termtext.Width(s)) + off
	}
	return out
}

// keysLine is the last line: what keys do, or that there is more to read.
func (m *Model) keysLine(l layout) string {
	switch {
	case m.denying != nil:
		ends := termtext.Longest(m.width/2, "▏  enter refuses "+m.denying.name()+", esc goes back", "▏  enter, esc", "▏")
		ask := termtext.Longest(m.width/3, "Why not? ", "? ", "")
		return ask + termtext.Tail(termtext.Visible(string(m.reason)), m.width-termtext.Width(ask)-termtext.Width(ends)) + ends
	case m.choosing != nil:
		return m.choosing.prompt(m.width)
	case m.showing() == help || m.showing() == report:
		return dim + termtext.Longest(m.width, "space, b read  q goes back", "q goes back", "q") + off
	case m.history:
		return dim + termtext.Longest(m.width, "↑↓ choose  space reads on  enter shows all  tab pending  ? help  q leave",
			"tab pending  q leave", "?") + off
	case m.at() < 0 && m.showing() == list:
		return dim + termtext.Longest(m.width, "tab over  ? help  q leave", "q leave", "q") + off
	case l.all == 0 || len(l.text) == 0 && m.showing() != list:
		return yellow + termtext.Longest(m.width, "The window is too small to show it: make it larger", "too small: enlarge", "small") + off
	case !m.read(l.of) && m.showing() == list:
		return yellow + termtext.Longest(m.width, "Not all of it was shown: space reads on, enter shows all, or make the window larger",
			"Not all was shown: space reads on, enter shows all", "not all shown: enter", "enter") + off
	case !m.read(l.of):
		return yellow + termtext.Longest(m.width, "Not all of it was shown: space reads on, esc goes back, or make the window larger",
			"There is more: space reads on", "more: space", "space") + off
	case m.showing() == confirm:
		return termtext.Longest(m.width, fmt.Sprintf("y lets all %[1]d pass, once  n refuses all %[1]d  esc goes back", len(m.together)),
			"y all  n none  esc", "y n esc")
	}
	thread, alike := "", ""
	if m.pending[m.at()].Threads {
		thread = "  t thread"
	}
	if n := len(m.alike()); n > 1 {
		alike = fmt.Sprintf("  a all %d", n)
	}
	files := ""
	if len(m.pending[m.at()].Files) > 1 {
		files = "  f files"
	}
	answers := "y once" + files + thread + "  n refuse" + alike
	if m.showing() == whole {
		return dim + termtext.Longest(m.width, answers+"  space, b read  esc goes back", answers+"  esc", "y t n a  esc", "y t n") + off
	}
	return dim + termtext.Longest(m.width, "↑↓ choose  "+answers+"  enter whole  tab over  ? help  q leave",
		answers+"  enter whole  ? help  q leave", answers+"  ? help", "y t n a  ? help", "y t n") + off
}

// row is one line of the list. A narrow window has room for fewer columns.
func (m *Model) row(risk, until, where, by, what string) string {
	wide := 10
	for _, i := range m.pending {
		wide = min(max(wide, termtext.Width(i.Until)), 19) // a date is rare
	}
	text := termtext.Cell(until, wide) + "  "
	switch {
	case m.width < 30:
		text = ""
	case m.width >= 60:
		text = termtext.Cell(risk, 4) + "  " + text + termtext.Cell(where, 14) + "  " + termtext.Cell(by, 10) + "  "
	}
	return termtext.Fit(text+what, m.width-2)
}

func (m *Model) columns() string {
	until := "EXPIRES AT"
	if m.history {
		until = "ANSWER"
	}
	return "  " + m.row("RISK", until, "WORKSPACE", "ASKED BY", "ACTION")
}

// rows returns the part of the list around the chosen item.
func (m *Model) rows(most int) []string {
	items := m.list()
	if most < 1 {
		return nil
	}
	if len(items) == 0 {
		empty := "  nothing waits for you"
		if m.history {
			empty = "  nothing is over yet"
		}
		return []string{dim + termtext.Fit(empty, m.width) + off}
	}
	from := min(max(m.at()-most/2, 0), max(len(items)-most, 0))
	var out []string
	for _, i := range items[from:min(from+most, len(items))] {
		last := i.Answer
		if i.Pending {
			last = i.Until
		}
		text := m.row(fmt.Sprintf("%4d", i.Risk), last, i.Where, i.By, i.What)
		switch {
		case i.ID == m.chosen && m.moved:
			text = yellow + termtext.Fit("! ", m.width) + text + off
		case i.ID == m.chosen:
			text = reverse + termtext.Fit("> ", m.width) + text + off
		case i.Risk >= 70:
			text = red + termtext.Fit("  ", m.width) + text + off
		default:
			text = termtext.Fit("  ", m.width) + text
		}
		out = append(out, text)
	}
	return out
}
