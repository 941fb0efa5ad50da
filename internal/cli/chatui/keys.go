package chatui

import (
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// Commands are the words that a line for carrel begins with.
var Commands = []string{
	"/clear", "/forget", "/help", "/job", "/memory", "/new", "/on", "/plan", "/quit", "/remember", "/resume", "/tools", "/trace", "/undo",
}

func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch name {
	case "ctrl+c":
		return m.interrupt()
	case "esc":
		if m.typing != lines {
			m.typing = lines
			m.line.set("")
			return nil
		}
		if m.choice != nil {
			m.choice, m.hint = nil, m.lang.Say(messages.HintNotAnswered)
			return nil
		}
		m.halt()
		return nil
	case "ctrl+d":
		if len(m.line.text) == 0 {
			return tea.Quit
		}
		m.line.key("delete", "")
		return nil
	case "pgup":
		m.up = min(m.up+max(m.room()-1, 1), max(m.total()-m.room(), 0))
		return nil
	case "pgdown":
		m.up = max(m.up-max(m.room()-1, 1), 0)
		return nil
	case "tab":
		m.complete()
		return nil
	case "up", "ctrl+p":
		m.earlier()
		return nil
	case "down", "ctrl+n":
		if !m.line.vertical(true) {
			m.later()
		}
		return nil
	case "enter":
		return m.enter()
	}
	if m.open != nil && len(m.line.text) == 0 && m.typing == lines {
		if cmd, done := m.answerKey(k.Key().Text); done {
			return cmd
		}
	}
	m.line.key(name, k.Key().Text)
	return nil
}

// interrupt is ctrl+c: it stops what runs, or else leaves.
func (m *Model) interrupt() tea.Cmd {
	switch {
	case m.typing != lines:
		m.typing = lines
		m.line.set("")
	case m.doing == asking || m.doing == running:
		m.halt()
	case len(m.line.text) > 0:
		m.line.set("")
	default:
		return tea.Quit
	}
	return nil
}

// halt stops what the session is at. What is queued begins when it has ended.
func (m *Model) halt() {
	if m.stop == nil || m.doing == preparing {
		return
	}
	m.stop()
	m.hint = m.lang.Say(messages.HintStopping)
}

// earlier and later bring what was entered before, and what is queued.
func (m *Model) earlier() {
	if m.line.vertical(false) {
		return
	}
	if n := len(m.queue); n > 0 && len(m.line.text) == 0 && m.typing == lines {
		m.line.set(m.queue[n-1])
		m.queue = m.queue[:n-1]
		m.hint = m.lang.Say(messages.HintTakenBack)
		return
	}
	if m.at == len(m.history) {
		m.draft = m.line.String()
	}
	if m.at > 0 && m.typing == lines {
		m.at--
		m.line.set(m.history[m.at])
	}
}

func (m *Model) later() {
	if m.at >= len(m.history) || m.typing != lines {
		return
	}
	m.at++
	if m.at == len(m.history) {
		m.line.set(m.draft)
		return
	}
	m.line.set(m.history[m.at])
}

// answerKey takes a key at an empty line as an answer to the open question.
func (m *Model) answerKey(key string) (tea.Cmd, bool) {
	if m.choice != nil {
		return m.choose(key)
	}
	switch key {
	case "y", "n", "e", "a", "t":
	case "s":
		if !m.open.q.Steps {
			return nil, false
		}
	case "f":
		if len(m.open.q.Files) == 0 {
			return nil, false
		}
	case "v":
		if m.asked == nil || m.asked.p.Diff == "" {
			return nil, false
		}
		m.asked.short = !m.asked.short
		m.asked.changed()
		return nil, true
	case " ":
		m.up = max(m.up-max(m.room()-1, 1), 0)
		return nil, true
	default:
		return nil, false
	}
	switch {
	case m.busy:
		m.hint = m.lang.Say(messages.HintOnItsWay)
	case !m.armed:
		m.hint = m.lang.Say(messages.HintTooSoon)
	case key == "t" && !m.open.q.Session:
		m.hint = m.lang.Say(messages.HintOnceOnly)
	case key == "a" && m.open.q.Session:
		m.hint = m.lang.Say(messages.HintOnceOrSession)
	case key == "a" && !m.open.q.Always:
		m.hint = m.lang.Say(messages.HintEveryPlan)
	case !m.read() && m.asked != nil && m.asked.short:
		m.hint = m.lang.Say(messages.HintWholeFirst)
	case !m.read():
		m.hint = m.lang.Say(messages.HintRestFirst)
	case key == "y":
		return m.answer(Once, ""), true
	case key == "s":
		return m.answer(Steps, ""), true
	case key == "f":
		m.choice = &choice{}
	case key == "t":
		return m.answer(Thread, ""), true
	case key == "a":
		return m.answer(Always, ""), true
	case key == "n":
		m.typing = reason
	case key == "e":
		m.typing = edit
		m.line.set(m.planText())
	}
	return nil, true
}

// planText is what an edit begins with.
func (m *Model) planText() string {
	if m.asked == nil {
		return ""
	}
	all := []string{m.asked.p.Goal}
	for _, s := range m.asked.p.Steps {
		all = append(all, s.Target+": "+s.Command)
	}
	return strings.Join(all, "\n")
}

// maxReason is the longest reason of an answer, in bytes.
const maxReason = 1000

func shortened(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}

func (m *Model) enter() tea.Cmd {
	text := strings.TrimSpace(m.line.String())
	typing := m.typing
	if typing != lines {
		m.typing = lines
		m.line.set("")
		switch {
		case m.open == nil || m.busy:
			m.hint = m.lang.Say(messages.HintOver)
			return nil
		case typing == edit && text == "":
			m.hint = m.lang.Say(messages.HintNoText)
			return nil
		case typing == edit:
			// The plan stays as it is: what was written goes to the agent as the next question, which the denial makes room for.
			m.queue = append([]string{"Instead of the plan that I denied, do this:\n" + text}, m.queue...)
			return m.answer(Deny, "the person says what to do instead")
		}
		return m.answer(Deny, shortened(text))
	}
	if text == "" {
		return m.next() // again, if it could not begin
	}
	m.line.set("")
	if len(m.history) == 0 || m.history[len(m.history)-1] != text {
		m.history = append(m.history, text)
	}
	m.at = len(m.history)
	switch text {
	case "/help":
		m.add(&textBlock{text: m.lang.Say(messages.Help) + m.lang.Say(messages.HelpCommands), indent: "  "})
		m.up = 0
		return nil
	case "/clear":
		m.blocks = nil
		m.up, m.words = 0, nil
		if m.open != nil { // a question is not cleared away
			if m.asked != nil {
				m.add(m.asked)
			}
			m.add(m.open)
		}
		return nil
	case "/trace":
		m.trace = !m.trace
		m.hint = m.lang.Say(map[bool]messages.Key{true: messages.DetailsShown, false: messages.DetailsHidden}[m.trace])
		return nil
	case "/quit":
		return tea.Quit
	}
	m.queue = append(m.queue, text)
	return m.next()
}

// complete completes the word at the cursor.
func (m *Model) complete() {
	word := m.line.word()
	var all []string
	switch {
	case strings.HasPrefix(word, "/") && m.line.at == len([]rune(word)):
		for _, c := range Commands {
			if strings.HasPrefix(c, word) {
				all = append(all, c)
			}
		}
	case strings.HasPrefix(m.line.before(), "/undo "):
		word = m.line.before()
		all = m.s.Complete(word)
	case strings.HasPrefix(word, "@"):
		all = m.s.Complete(word)
	}
	if len(all) == 0 {
		m.hint = m.lang.Say(messages.HintNothing)
		return
	}
	common := all[0]
	for _, c := range all[1:] {
		for !strings.HasPrefix(c, common) {
			_, n := utf8.DecodeLastRuneInString(common)
			common = common[:len(common)-n]
		}
	}
	if rest, ok := strings.CutPrefix(common, word); ok {
		m.line.insert(rest)
	}
	switch {
	case len(all) > 1:
		m.hint = strings.Join(all, "  ")
	case !strings.HasSuffix(common, "/"):
		m.line.insert(" ")
	}
}

// leave returns what was said without styles, for the terminal's own scrollback.
func (m *Model) leave() (out []string) {
	m.close(m.lang.Say(messages.YouLeft))
	for _, b := range m.blocks {
		for _, l := range b.lines(max(m.width-1, 20), false) {
			out = append(out, ansi.Strip(l))
		}
	}
	if n := len(out) - maxLeft; n > 0 {
		out = append([]string{"…"}, out[n:]...)
	}
	return out
}

// maxLeft bounds what is left on the terminal, in lines.
const maxLeft = 500
