package watch

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// showing is the page on the screen. A report waits until the reason that is being typed is complete.
func (m *Model) showing() page {
	if m.failed != "" && m.denying == nil {
		return report
	}
	return m.page
}

// body returns the text of the screen, and what it is: the same for the same text of the same questions.
func (m *Model) body() (of, text string) {
	switch at := m.at(); {
	case m.showing() == help:
		text = helpText
	case m.showing() == report:
		text = m.failed
	case m.page == confirm:
		text = together(m.together)
	case at >= 0:
		i := m.list()[at]
		return i.ID + "\n" + i.Details, i.Details
	}
	return text, text
}

// together is what is asked before several questions are answered.
func together(items []Item) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Answer these %d questions together? They are about the same action:\n\n", len(items))
	for _, i := range items {
		fmt.Fprintf(&b, "  %s  workspace %s  asked by %s  risk %d\n",
			termtext.Visible(i.ID), termtext.Visible(i.Where), termtext.Visible(i.By), i.Risk)
	}
	return b.String() + "\nThe first of them:\n\n" + items[0].Details
}

// alike are the open questions about the action of the chosen one, that one first.
func (m *Model) alike() []Item {
	at := m.at()
	if m.history || at < 0 {
		return nil
	}
	first := m.pending[at]
	out := []Item{first}
	for n, i := range m.pending {
		if n != at && i.Digest != "" && i.Digest == first.Digest && !m.busy[i.ID] {
			out = append(out, i)
		}
	}
	return out
}

// turn shows another page.
func (m *Model) turn(p page) { m.page, m.scroll = p, 0 }

func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	if m.denying != nil {
		return m.compose(k)
	}
	if m.choosing != nil {
		return m.pick(k)
	}
	m.note = ""
	step := max(m.shown, 1)
	on := m.showing()
	switch k.String() {
	case "q", "ctrl+c", "esc":
		switch on {
		case list:
			return tea.Quit
		case report:
			m.failed, m.scroll = "", 0
		default:
			m.turn(list)
		}
	case "enter":
		switch {
		case on == whole:
			m.turn(list)
		case on == list && m.at() >= 0:
			m.page = whole // at the same line
		}
	case "?", "h":
		switch on {
		case help:
			m.turn(list)
		case list:
			m.turn(help)
		default:
		}
	case "up", "k":
		m.upDown(-1)
	case "down", "j":
		m.upDown(1)
	case "home", "g":
		m.upDown(-max(len(m.list()), m.seen.all))
	case "end", "G":
		m.upDown(max(len(m.list()), m.seen.all))
	case "pgdown", "space":
		m.scroll += step
	case "pgup", "b":
		m.scroll = max(m.scroll-step, 0)
	case "tab":
		if on == list || on == whole {
			m.history, m.chosen = !m.history, ""
			m.turn(list)
			m.choose(0)
			m.moved = false
		}
	case "y":
		return m.answer(Once)
	case "t":
		return m.answer(Thread)
	case "f":
		m.beginChoice()
	case "n", "d":
		if o := m.answerable(); o != nil {
			if m.draft != o.of {
				m.reason, m.draft = nil, o.of
			}
			m.denying = o
		}
	case "a":
		if on == confirm || m.answerable() == nil {
			break
		}
		if all := m.alike(); len(all) > 1 {
			m.together = all
			m.turn(confirm)
		} else {
			m.note = "no other question is about this action"
		}
	}
	return nil
}

// upDown chooses in the list, and reads by lines on a page.
func (m *Model) upDown(by int) {
	if m.showing() == list {
		m.move(by)
		return
	}
	m.scroll = max(m.scroll+by, 0)
}

// answerable returns what an answering key is about, if that can be answered; else it sets a note that
// says why not.
func (m *Model) answerable() *order {
	of, _ := m.body()
	on := m.showing()
	at := m.at()
	switch {
	case on == help, on == report:
		m.note = "nothing is answered from this page; q leaves it"
	case m.lost != nil:
		m.note = "the daemon does not answer"
	case on != confirm && (m.history || at < 0):
		m.note = "there is nothing to answer here"
	case on != confirm && m.moved:
		m.note = "what you had chosen is over, and this is another; choose it with the arrow keys first"
	case on != confirm && m.busy[m.chosen]:
		m.note = "your answer is on its way"
	case !m.read(of) && on == list:
		m.note = "not answered: enter or space shows all of it first"
	case !m.read(of):
		m.note = "not answered: space shows all of it first"
	case on == confirm:
		return &order{m.together, of}
	default:
		return &order{[]Item{m.pending[at]}, of}
	}
	return nil
}

func (m *Model) answer(kind Kind) tea.Cmd {
	o := m.answerable()
	switch {
	case o == nil:
		return nil
	case kind == Thread && len(o.items) > 1:
		m.note = "several are answered once only"
		return nil
	case kind == Thread && !o.items[0].Threads:
		m.note = "this can be approved once only"
		return nil
	}
	return m.send(o.items, kind, "")
}

// send answers each item with a call of its own.
func (m *Model) send(items []Item, kind Kind, reason string, files ...string) tea.Cmd {
	for _, i := range items {
		m.busy[i.ID] = true
	}
	m.turn(list)
	return func() tea.Msg {
		done := answeredMsg{kind: kind, files: files, items: items}
		for _, i := range items {
			done.errs = append(done.errs, m.source.Answer(m.ctx, i.ID, kind, reason, files...))
		}
		return done
	}
}

// answered says what became of an answer.
func (m *Model) answered(done answeredMsg) {
	what := map[Kind]string{Once: "approved", Thread: "approved for its thread", Deny: "denied", Files: chosenText(done.files)}[done.kind]
	var failed strings.Builder
	good := 0
	for n, i := range done.items {
		delete(m.busy, i.ID)
		if err := done.errs[n]; err != nil {
			fmt.Fprintf(&failed, "  %s  workspace %s: %s\n", termtext.Visible(i.ID), termtext.Visible(i.Where), termtext.Visible(err.Error()))
			continue
		}
		good++
	}
	switch {
	case len(done.items) > 1 && good < len(done.items):
		m.failed = fmt.Sprintf("%d of %d were %s. These were not:\n\n%s", good, len(done.items), what, failed.String())
		m.scroll = 0
	case len(done.items) > 1:
		m.note = fmt.Sprintf("all %d: %s", good, what)
	case done.errs[0] != nil:
		m.note = done.errs[0].Error()
	default:
		m.note = done.items[0].ID + ": " + what
	}
}

// maxReason is the longest reason that can be typed, in characters.
const maxReason = 250

// compose handles the keys of a reason.
func (m *Model) compose(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc", "ctrl+c":
		m.denying, m.reason = nil, nil
	case "enter":
		o := m.denying
		m.denying = nil
		if !m.read(o.of) {
			m.note = "not refused: not all of it is on the screen; your reason is kept, read it and press n again"
			return nil
		}
		reason := strings.TrimSpace(string(m.reason))
		m.reason = nil
		return m.send(o.items, Deny, reason)
	case "backspace":
		m.reason = m.reason[:max(len(m.reason)-1, 0)]
	default:
		if k.Key().Text != "" && len(m.reason) < maxReason {
			m.reason = append(m.reason, []rune(k.Key().Text)...)
		}
	}
	return nil
}
