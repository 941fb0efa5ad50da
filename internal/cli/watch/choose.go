package watch

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// choice is how far a person is with the files of a change, of which they let some through.
type choice struct {
	order

	at  int
	yes []string
}

// prompt asks about the next file.
func (c *choice) prompt(width int) string {
	files := c.items[0].Files
	ends := termtext.Longest(width/2, "? y yes, n leave it, esc goes back", "? y n esc", "?")
	ask := termtext.Longest(width/3, fmt.Sprintf("%d of %d: change ", c.at+1, len(files)), "")
	return ask + termtext.Tail(termtext.Visible(files[c.at]), max(width-termtext.Width(ask)-termtext.Width(ends), 1)) + ends
}

// beginChoice begins with the files of the chosen question.
func (m *Model) beginChoice() {
	o := m.answerable()
	switch {
	case o == nil:
	case len(o.items) > 1:
		m.note = "files are chosen for one question at a time"
	case len(o.items[0].Files) < 2:
		m.note = "this is let through as a whole or not"
	default:
		m.choosing = &choice{order: *o}
	}
}

// pick takes a key as the answer to one file. Behind the last one the question is answered.
func (m *Model) pick(k tea.KeyPressMsg) tea.Cmd {
	c := m.choosing
	files := c.items[0].Files
	if !slices.ContainsFunc(m.pending, func(i Item) bool { return i.ID == c.items[0].ID }) {
		m.choosing, m.note = nil, "not answered: it is over"
		return nil
	}
	switch k.String() {
	case "esc", "ctrl+c", "q":
		m.choosing, m.note = nil, "not answered"
		return nil
	case "y":
		c.yes = append(c.yes, files[c.at])
	case "n":
	default:
		return nil
	}
	if c.at++; c.at < len(files) {
		return nil
	}
	m.choosing = nil
	switch {
	case !m.read(c.of):
		m.note = "not answered: not all of it is on the screen; read it and press f again"
		return nil
	case len(c.yes) == len(files):
		return m.send(c.items, Once, "")
	case len(c.yes) == 0:
		return m.send(c.items, Deny, "none of its files is to be changed")
	}
	return m.send(c.items, Files, "", c.yes...)
}

// chosenText is which files were let through.
func chosenText(files []string) string {
	return termtext.Visible("approved for " + strings.Join(files, ", "))
}
