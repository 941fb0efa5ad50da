package chatui

import (
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// choice is how far the person is with the files of a change.
type choice struct {
	at  int
	yes []string
}

// prompt asks about the next file.
func (c *choice) prompt(lang messages.Language, files []string) string {
	return lang.Say(messages.ChooseFile, c.at+1, len(files), files[c.at])
}

// choose takes a key as the answer to one file. Behind the last one the question is answered.
func (m *Model) choose(key string) (tea.Cmd, bool) {
	c, files := m.choice, m.open.q.Files
	switch key {
	case "y":
		c.yes = append(c.yes, files[c.at])
	case "n":
	default:
		return nil, false
	}
	if c.at++; c.at < len(files) {
		return nil, true
	}
	m.choice = nil
	switch left := len(files) - len(c.yes); {
	case left == 0:
		return m.answer(Once, ""), true
	case left == len(files):
		return m.answer(Deny, "none of its files is to be changed"), true
	}
	cmd := m.answer(Files, "", c.yes...)
	m.open.mine += ": " + strings.Join(c.yes, ", ") + m.lang.Say(messages.LeftAsIs, strings.Join(slices.DeleteFunc(slices.Clone(files),
		func(f string) bool { return slices.Contains(c.yes, f) }), ", "))
	return cmd, true
}
