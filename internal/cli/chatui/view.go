package chatui

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// View implements tea.Model. The alternate screen is used: what was said is drawn anew at every size, and a question can be
// shown whole, which lines that the terminal has scrolled away do not allow.
func (m *Model) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	v.WindowTitle = "carrel chat"
	if m.width < 2 || m.height < 1 {
		return v
	}
	foot, x, y := m.foot()
	room := max(m.height-len(foot), 0)
	all := m.said()
	to := len(all) - min(m.up, max(len(all)-room, 0))
	shown := all[max(to-room, 0):to]
	lines := slices.Clip(slices.Clone(shown))
	for len(lines) < room { // what is typed is always at the same place
		lines = append(lines, "")
	}
	v.Content = strings.Join(append(lines, foot...), "\n")
	v.Cursor = tea.NewCursor(x, room+y)
	return v
}

// said are the lines of all blocks.
func (m *Model) said() (out []string) {
	for i, b := range m.blocks {
		if t, ok := b.(*textBlock); ok && t.style == bold && i > 0 {
			out = append(out, "")
		}
		out = append(out, b.lines(max(m.width-1, 2), m.trace)...)
	}
	return out
}

func (m *Model) total() int { return len(m.said()) }

// room is how many lines of what was said are shown.
func (m *Model) room() int {
	foot, _, _ := m.foot()
	return max(m.height-len(foot), 0)
}

// region is where the open question is among all lines, from its plan on.
func (m *Model) region() (from, to int) {
	at := 0
	from = -1
	for i, b := range m.blocks {
		if t, ok := b.(*textBlock); ok && t.style == bold && i > 0 {
			at++
		}
		if m.asked != nil && b == block(m.asked) || from < 0 && b == block(m.open) {
			from = at
		}
		at += len(b.lines(max(m.width-1, 2), m.trace))
		if b == block(m.open) {
			return max(from, 0), at
		}
	}
	return 0, 0
}

// settle counts as seen what the next View shows of the open question.
func (m *Model) settle() {
	room, total := m.room(), m.total()
	m.up = min(m.up, max(total-room, 0))
	if m.open == nil || m.width < 2 {
		m.seen = seen{}
		return
	}
	from, to := m.region()
	id := fmt.Sprint(m.open.q.ID, m.asked != nil && m.asked.short, m.trace)
	if m.seen.id != id || m.seen.width != m.width || m.seen.all != to-from {
		m.seen = seen{id: id, width: m.width, all: to - from}
	}
	last := total - m.up
	first := max(last-room, 0)
	if first <= from+m.seen.lines {
		m.seen.lines = max(m.seen.lines, min(last, to)-from)
	}
}

// read reports whether all of the open question is on the screen, or was since the window has its size.
func (m *Model) read() bool {
	return m.seen.all > 0 && m.seen.lines >= m.seen.all && (m.asked == nil || !m.asked.short)
}

// foot are the lines below what was said, with the place of the cursor among them.
func (m *Model) foot() (out []string, x, y int) {
	width := m.width
	most := max(m.height/3, 1)
	for i, q := range m.queue {
		if i == 2 && len(m.queue) > 3 {
			out = append(out, styled(dim, termtext.Fit(m.lang.Say(messages.QueuedMore, len(m.queue)-2), width-1)))
			break
		}
		out = append(out, styled(dim, termtext.Fit(m.lang.Say(messages.Queued, q), width-1)))
	}
	if m.hint != "" {
		for _, l := range termtext.Wrapped(m.hint, width-1) {
			out = append(out, styled(yellow, l))
		}
	}
	if n := len(out) - most; n > 0 {
		out = out[n:]
	}
	prompt := m.lang.Say(map[typing]messages.Key{lines: messages.You, reason: messages.PromptReason, edit: messages.PromptEdit}[m.typing])
	line, x, y := m.line.lines(prompt, width)
	if from := min(max(y-most+1, 0), max(len(line)-most, 0)); len(line) > most {
		line, y = line[from:from+most], y-from
	}
	y += len(out)
	out = append(append(out, line...), m.statusLine())
	if n := len(out) - m.height; n > 0 { // what is typed matters most
		out, y = out[n:], max(y-n, 0)
	}
	return out, x, y
}

// statusLine is the last line: the keys of a question, or what there is to know.
func (m *Model) statusLine() string {
	line := func(key messages.Key) string {
		return styled(reverse, termtext.Fit(" "+m.lang.Say(key)+" ", m.width-1))
	}
	switch {
	case m.typing == reason:
		return line(messages.FootReason)
	case m.typing == edit:
		return line(messages.FootEdit)
	case m.open != nil && len(m.line.text) > 0:
		return line(messages.FootWaits)
	case m.open != nil && m.busy:
		return line(messages.FootAnswering)
	case m.open != nil && !m.armed:
		return line(messages.FootNew)
	case m.open != nil && !m.read() && (m.asked == nil || !m.asked.short):
		return line(messages.FootMore)
	case m.open != nil && m.choice != nil:
		return styled(reverse, termtext.Fit(" "+m.choice.prompt(m.lang, m.open.q.Files)+" ", m.width-1))
	case m.open != nil:
		keys := m.questionKeys()
		return styled(reverse, termtext.Longest(m.width-1, " "+keys+"  "+m.lang.Say(messages.EscStops)+" ", " "+keys+" ", keys))
	}
	state := map[doing]messages.Key{
		idle: messages.Ready, preparing: messages.Connecting, asking: messages.Working, running: messages.RunningOwn,
		commanding: messages.Working,
	}[m.doing]
	if !m.ready && m.doing == idle {
		state = messages.NotReady
	}
	parts := []string{m.lang.Say(state)}
	if m.status.PlanOnly {
		parts = append(parts, m.lang.Say(messages.PlansOnly))
	}
	for _, p := range []string{m.status.Model, m.status.Workspace, m.status.Targets} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if m.status.Requests > 0 {
		parts = append(parts, m.lang.Say(messages.Used, m.status.Requests, m.status.Tokens))
	}
	if m.up > 0 {
		parts = append(parts[:1], append([]string{m.lang.Say(messages.ReadsOn)}, parts[1:]...)...)
	}
	return styled(reverse, termtext.Fit(" "+strings.Join(parts, " · ")+" ", m.width-1))
}

// questionKeys are the keys that answer the open question.
func (m *Model) questionKeys() string {
	q := m.open.q
	keys := []messages.Key{messages.KeysOnce}
	if q.Always {
		keys = append(keys, messages.KeysAlways)
	}
	for _, k := range []struct {
		offered bool
		key     messages.Key
	}{{q.Steps, messages.KeysSteps}, {q.Session, messages.KeysSession}, {len(q.Files) > 0, messages.KeysFiles}} {
		if k.offered && !q.Always {
			keys = append(keys, k.key)
		}
	}
	keys = append(keys, messages.KeysNo, messages.KeysEdit)
	if m.asked != nil && m.asked.p.Diff != "" {
		keys = append(keys, map[bool]messages.Key{true: messages.KeysWhole, false: messages.KeysShort}[m.asked.short])
	}
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = m.lang.Say(k)
	}
	return strings.Join(texts, "  ")
}
