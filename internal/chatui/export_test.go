package chatui

import tea "charm.land/bubbletea/v2"

// EventMsg is an event as the model takes it.
func EventMsg(e Event) tea.Msg { return eventMsg{e} }
