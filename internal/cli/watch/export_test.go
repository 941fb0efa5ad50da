package watch

import tea "charm.land/bubbletea/v2"

// For the tests, which drive a model as the program does.
var Follow = follow

func Begin() tea.Msg         { return beginMsg{} }
func CaughtUp() tea.Msg      { return caughtUpMsg{} }
func Lost(err error) tea.Msg { return lostMsg{err} }
func ItemMsg(i Item) tea.Msg { return itemMsg(i) }
