package chatui

import tea "charm.land/bubbletea/v2"

// EventMsg is an event as the model takes it.
func EventMsg(e Event) tea.Msg { return eventMsg{e} }

// Said are the lines of all that was said.
func (m *Model) Said() []string { return m.said() }
