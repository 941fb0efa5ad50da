package watch

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Styles, as SGR of ECMA-48. The renderer removes them for a terminal without colours.
const (
	bold, dim, reverse, red, yellow, green, off = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[m"
)

const helpText = `  up, down, k, j   choose            y       let it pass, once
  home, end        first, last       t       let it pass, and remember it in its thread
  space, b         read on, back     n       refuse; a reason is asked for
  tab              what is over      q       leave; nothing is answered by that

An answer is about what is shown below the list. If that ends while you read, keys do
nothing until you have chosen again.`

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = fmt.Sprintf("carrel: %d pending", len(m.pending))
	return v
}

// lines returns the lines of the screen, at most as many as the terminal has.
func (m *Model) lines() []string {
	head := bold + "carrel approvals" + off + fmt.Sprintf("  %d pending", len(m.pending))
	if m.history {
		head += fmt.Sprintf(", %d that are over", len(m.over))
	}
	if m.lost != nil {
		head += "  " + red + m.fit("the daemon is away: "+m.lost.Error(), m.width-30) + off
	}
	out := []string{head, ""}
	foot := m.foot()
	room := max(m.height-len(out)-len(foot), 2)
	if m.help {
		out = append(out, strings.Split(helpText, "\n")...)
	} else {
		rows := m.rows(max(room/3, 1))
		out = append(append(out, rows...), m.details(room-len(rows))...)
	}
	out = out[:min(len(out), max(m.height-len(foot), 1))]
	for len(out)+len(foot) < m.height {
		out = append(out, "")
	}
	return append(out, foot...)
}

func (m *Model) foot() []string {
	if m.denying != nil {
		return []string{m.fit("Why not? "+string(m.reason)+"▏  enter refuses "+m.denying.ID+", esc goes back", m.width)}
	}
	keys := "↑↓ choose  y once  t in its thread  n refuse  tab over  ? help  q leave"
	if m.history {
		keys = "↑↓ choose  tab pending  ? help  q leave"
	}
	var out []string
	for _, l := range broken(m.note, max(m.width-1, 10)) {
		out = append(out, yellow+l+off)
	}
	return append(out[:min(len(out), 3)], dim+m.fit(keys, m.width)+off)
}

// rows returns the part of the list around the chosen item.
func (m *Model) rows(most int) []string {
	list := m.list()
	if len(list) == 0 {
		if m.history {
			return []string{dim + "  nothing is over yet" + off}
		}
		return []string{dim + "  nothing waits for you" + off}
	}
	from := min(max(m.at()-most/2, 0), max(len(list)-most, 0))
	var out []string
	for _, i := range list[from:min(from+most, len(list))] {
		last := i.Answer
		if i.Pending {
			last = left(i.Until.Sub(m.now()))
		}
		text := m.fit(fmt.Sprintf("%3d  %-12s %-14s %-10s %s", i.Risk, m.fit(last, 12), m.fit(i.Where, 14), m.fit(i.By, 10), i.What), m.width-2)
		switch {
		case i.ID == m.chosen && m.moved:
			text = yellow + "! " + text + off
		case i.ID == m.chosen:
			text = reverse + "> " + text + off
		case i.Risk >= 70:
			text = red + "  " + text + off
		default:
			text = "  " + text
		}
		out = append(out, text)
	}
	return out
}

func (m *Model) details(most int) []string {
	at := m.at()
	if at < 0 || most < 3 {
		return nil
	}
	out := []string{"", dim + strings.Repeat("─", max(m.width-1, 1)) + off}
	var all []string
	for l := range strings.SplitSeq(strings.TrimRight(m.list()[at].Details, "\n"), "\n") {
		all = append(all, broken(l, max(m.width-1, 10))...)
	}
	most -= len(out)
	m.scroll = min(m.scroll, max(len(all)-most, 0))
	shown := all[m.scroll:min(m.scroll+most, len(all))]
	if m.scroll+most < len(all) && len(shown) > 0 {
		shown = append(shown[:len(shown)-1:len(shown)-1], yellow+"↓ there is more: space"+off)
	}
	return append(out, shown...)
}

// broken breaks a line into pieces of a width, so that nothing of a question is cut off.
func broken(line string, width int) (out []string) {
	r := []rune(line)
	for len(r) > width {
		out, r = append(out, string(r[:width])), r[width:]
	}
	return append(out, string(r))
}

// fit cuts a text to a width, and marks the cut.
func (m *Model) fit(s string, width int) string {
	r := []rune(strings.ReplaceAll(s, "\n", " "))
	if len(r) <= max(width, 1) {
		return string(r)
	}
	return string(r[:max(width-1, 0)]) + "…"
}

func left(d time.Duration) string {
	if d < 0 {
		return "0s left"
	}
	if d > time.Hour {
		return d.Round(time.Minute).String()
	}
	return d.Round(time.Second).String() + " left"
}
