package chatui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// Grace is how long a new question takes no answer: what was typed before it was seen does not answer it.
const Grace = 400 * time.Millisecond

// maxBlocks bounds what is kept of what was said.
const maxBlocks = 2000

// Messages beside keys.
type (
	eventMsg    struct{ Event }
	preparedMsg struct {
		status Status
		err    error
	}
	askedMsg  struct{ err error }
	resultMsg struct {
		result Result
		err    error
	}
	shellMsg struct {
		output string
		tell   bool
		err    error
	}
	answeredMsg struct {
		id  string
		err error
	}
	armedMsg struct{ id string }
)

// doing is what the session is at.
type doing int

const (
	idle doing = iota
	preparing
	asking
	running // a command of the person's own
	commanding
)

// typing is what the line is for.
type typing int

const (
	lines  typing = iota
	reason        // why a question is denied
	edit          // what is to be done instead of a plan
)

// Model is the state of the interface.
type Model struct {
	ctx  context.Context //nolint:containedctx // of the whole run: turns end with it
	s    Session
	lang messages.Language
	send func(tea.Msg)
	work *sync.WaitGroup
	// panicked is what the first panic beside the interface said.
	panicked atomic.Pointer[string]

	// width and height are 0 until the terminal has said them: nothing is on the screen.
	width, height int
	blocks        []block
	// up is how many lines the end of what was said is below the window; 0 follows it.
	up    int
	trace bool

	line    editor
	typing  typing
	history []string
	at      int // in history; len(history) is the line that is typed
	draft   string

	doing  doing
	stop   context.CancelFunc
	ready  bool
	status Status
	queue  []string
	// hint is one line above the status, until the next key.
	hint string

	// open is the question that waits, nil if none does; asked is the plan that it is about, which may be nil.
	open  *questionBlock
	asked *planBlock
	armed bool
	busy  bool // an answer is on its way
	seen  seen
	// choice goes through the files of the question, nil if it does not.
	choice *choice
	plan   *planBlock // the last one
	words  *wordsBlock
	// thought is what grows, nil for nothing.
	thought *thoughtBlock
}

// seen is how much of a question was on the screen since the window or the question changed.
type seen struct {
	id                string
	width, lines, all int
}

// NewModel returns an empty interface. send hands it the events of a turn.
func NewModel(ctx context.Context, s Session, lang messages.Language, send func(tea.Msg)) *Model {
	return &Model{ctx: ctx, s: s, lang: lang, send: send, work: &sync.WaitGroup{}}
}

// Init implements tea.Model: the first screen is drawn before anything is ready.
func (m *Model) Init() tea.Cmd { return m.prepare() }

// begin runs f beside the interface, with a context that stopping ends.
func (m *Model) begin(what doing, f func(context.Context) tea.Msg) tea.Cmd {
	ctx, stop := context.WithCancel(m.ctx)
	m.doing, m.stop = what, stop
	m.work.Add(1)
	return func() tea.Msg {
		defer m.work.Done()
		defer m.panics()
		defer stop()
		return f(ctx)
	}
}

// panics keeps what a panic said: the program may have ended before its own report of it is written.
func (m *Model) panics() {
	if r := recover(); r != nil {
		said := fmt.Sprint(r)
		m.panicked.CompareAndSwap(nil, &said)
		panic(r)
	}
}

// emit hands an event to the interface, from any goroutine.
func (m *Model) emit(e Event) { m.send(eventMsg{e}) }

func (m *Model) prepare() tea.Cmd {
	return m.begin(preparing, func(ctx context.Context) tea.Msg {
		status, err := m.s.Prepare(ctx, m.emit)
		return preparedMsg{status, err}
	})
}

// Update implements tea.Model. A key acts on what the View before it has shown.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	before := 0
	if m.up > 0 {
		before = m.total()
	}
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height, before = msg.Width, msg.Height, 0
	case preparedMsg:
		m.free()
		m.ready = msg.err == nil
		if msg.err != nil {
			m.fail(msg.err)
			if len(m.queue) > 0 {
				m.hint = m.lang.Say(messages.HintAgain)
			}
			break
		}
		m.status = msg.status
		cmd = m.next()
	case eventMsg:
		cmd = m.happened(msg.Event)
	case askedMsg:
		cmd = m.turned(msg.err)
	case resultMsg:
		cmd = m.commanded(msg)
	case shellMsg:
		m.free()
		m.add(&textBlock{text: msg.output, style: dim, indent: "  "})
		if msg.err != nil {
			m.fail(msg.err)
		}
		if msg.tell && msg.err == nil {
			m.note(m.lang.Say(messages.ToldNext))
		}
		cmd = m.next()
	case answeredMsg:
		m.busy = false
		if msg.err != nil {
			m.fail(msg.err)
		}
		if m.open != nil && m.open.q.ID == msg.id {
			if msg.err == nil {
				m.close("")
			} else {
				m.open.mine = ""
				m.open.changed()
			}
		}
	case armedMsg:
		m.armed = m.armed || m.open != nil && m.open.q.ID == msg.id
	case tea.PasteMsg:
		m.hint = ""
		m.line.paste(msg.Content)
	case tea.KeyPressMsg:
		m.hint = ""
		cmd = m.key(msg)
	}
	if before > 0 && m.up > 0 { // what is read stays where it is
		m.up = max(m.up+m.total()-before, 0)
	}
	m.settle()
	return m, cmd
}

// free ends what the session was at.
func (m *Model) free() { m.doing, m.stop = idle, nil }

func (m *Model) turned(err error) tea.Cmd {
	m.free()
	m.close(m.lang.Say(messages.TurnEnded))
	m.words, m.thought = nil, nil
	m.endPlan()
	switch {
	case errors.Is(err, context.Canceled):
		m.note(m.lang.Say(messages.Stopped))
	case err != nil:
		m.fail(err)
	}
	return m.next()
}

func (m *Model) commanded(msg resultMsg) tea.Cmd {
	m.free()
	if msg.err != nil {
		m.fail(msg.err)
		return m.next()
	}
	m.status = msg.result.Status
	if text := strings.TrimRight(msg.result.Text, "\n"); text != "" {
		m.add(&textBlock{text: text, style: dim, indent: "  "})
	}
	if msg.result.Leave {
		return tea.Quit
	}
	return m.next()
}

// happened takes an event of the turn.
func (m *Model) happened(e Event) tea.Cmd {
	if _, ok := e.(Words); !ok {
		m.words = nil
	}
	if _, ok := e.(Thought); !ok {
		m.thought = nil
	}
	switch e := e.(type) {
	case Words:
		if m.words == nil {
			m.words = &wordsBlock{}
			m.add(m.words)
		}
		m.words.take(e.Text)
	case Thought:
		if m.thought == nil {
			m.thought = &thoughtBlock{lang: m.lang}
			m.add(m.thought)
		}
		m.thought.take(e.Text)
	case Plan:
		m.endPlan()
		m.plan = newPlan(e, m.lang)
		m.add(m.plan)
	case StepEnd:
		if m.plan == nil || !m.plan.end(e) {
			m.note(m.lang.Say(messages.StepElsewhere, e.Target))
		}
	case Refusal:
		m.endPlan()
		m.add(&textBlock{text: m.lang.Known(e.Outcome) + ": " + m.lang.Known(e.Why), style: yellow, indent: "  "})
	case Question:
		return m.ask(e)
	case Settled:
		if m.open != nil && m.open.q.ID == e.ID {
			m.close(e.How)
		}
	case Note:
		m.note(e.Text)
	case Changed:
		m.status = e.Status
	}
	return nil
}

// endPlan says that no further step of the last plan runs.
func (m *Model) endPlan() {
	if m.plan != nil {
		m.plan.over = true
		m.plan.changed()
	}
	m.plan = nil
}

// ask shows a question, from its plan on.
func (m *Model) ask(q Question) tea.Cmd {
	m.close(m.lang.Say(messages.AnotherCame))
	m.open, m.asked, m.armed = &questionBlock{q: q, lang: m.lang}, nil, false
	if m.plan != nil && m.plan.p.Digest == q.Digest && m.blocks[len(m.blocks)-1] == block(m.plan) {
		m.asked = m.plan
		m.asked.waits = true
		m.asked.changed()
	} else {
		m.open.details = true
	}
	m.add(m.open)
	m.up = 0
	if from, to := m.region(); to-from > m.room() {
		m.up = max(to-from-m.room(), 0)
	}
	return tea.Tick(Grace, func(time.Time) tea.Msg { return armedMsg{q.ID} })
}

// close ends the question that is open.
func (m *Model) close(how string) {
	if m.open == nil {
		return
	}
	m.open.over = how
	if m.asked != nil {
		m.asked.waits, m.asked.short = false, true
		m.asked.changed()
	}
	m.open.changed()
	m.open, m.asked, m.busy, m.choice = nil, nil, false, nil
	if m.typing == reason {
		m.typing = lines
		m.line.set("")
	}
}

// next begins what was queued.
func (m *Model) next() tea.Cmd {
	if m.doing != idle || len(m.queue) == 0 {
		return nil
	}
	if !m.ready {
		return m.prepare()
	}
	line := m.queue[0]
	m.queue = m.queue[1:]
	return m.carryOut(line)
}

// carryOut begins what a line says.
func (m *Model) carryOut(line string) tea.Cmd {
	m.up = 0
	you := m.lang.Say(messages.You)
	m.add(&textBlock{text: line, first: you, indent: blank(you), style: bold})
	if rest, ok := strings.CutPrefix(line, "!"); ok {
		rest, tell := strings.CutPrefix(rest, "!")
		rest = strings.TrimSpace(rest)
		return m.begin(running, func(ctx context.Context) tea.Msg {
			output, err := m.s.Shell(ctx, rest, tell)
			return shellMsg{output, tell, err}
		})
	}
	if strings.HasPrefix(line, "/") {
		return m.begin(commanding, func(ctx context.Context) tea.Msg {
			r, err := m.s.Command(ctx, line)
			return resultMsg{r, err}
		})
	}
	return m.begin(asking, func(ctx context.Context) tea.Msg {
		return askedMsg{m.s.Ask(ctx, line, m.emit)}
	})
}

// answer sends the answer to the open question.
func (m *Model) answer(kind Kind, why string, files ...string) tea.Cmd {
	id := m.open.q.ID
	m.busy = true
	m.open.answered(kind, why)
	m.work.Add(1)
	return func() tea.Msg {
		defer m.work.Done()
		defer m.panics()
		return answeredMsg{id, m.s.Answer(m.ctx, id, kind, why, files...)}
	}
}

func (m *Model) add(b block) {
	m.blocks = append(m.blocks, b)
	if len(m.blocks) > maxBlocks {
		m.blocks = m.blocks[len(m.blocks)-maxBlocks:]
	}
}

func (m *Model) note(text string) {
	m.add(&textBlock{text: text, style: dim, first: "· ", indent: "  "})
}

func (m *Model) fail(err error) {
	m.add(&textBlock{text: err.Error(), style: red, first: "! ", indent: "  "})
}
