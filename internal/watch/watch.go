// Package watch is the terminal interface of "carrel approvals watch": the questions that wait for a
// person, their details, and the keys to answer.
//
// It must not talk to the daemon itself, and it shows only text without control characters: see Item.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/containerd/errdefs"
)

// maxHistory bounds the answered and expired items that are kept.
const maxHistory = 500

// Item is an approval as it is shown. Its texts must not contain control characters.
type Item struct {
	ID    string
	State string
	// Pending: it waits for an answer.
	Pending bool
	Risk    int32
	// Where is its workspace, By the principal that asked, What the action in one line.
	Where, By, What string
	// Details are lines with everything that a person needs to decide.
	Details string
	Asked   time.Time
	Until   time.Time
	// Threads: an answer for its whole thread is possible.
	Threads bool
	// Answer is the result in a few words.
	Answer string
}

// Kind is an answer.
type Kind string

// The kinds of answer, with the words of the API.
const (
	Once   Kind = "once"
	Thread Kind = "thread"
	Deny   Kind = "deny"
)

// Source is the daemon, as the interface sees it.
type Source interface {
	// Watch calls f with each pending item, then once with no item, then with each changed
	// item, until ctx ends or an error occurs.
	Watch(ctx context.Context, f func(*Item)) error
	// History returns answered and expired items, the newest first.
	History(ctx context.Context) ([]Item, error)
	// Answer answers one.
	Answer(ctx context.Context, id string, kind Kind, reason string) error
}

// Run shows the interface until the person quits or ctx ends.
func Run(ctx context.Context, s Source, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := tea.NewProgram(NewModel(ctx, s, time.Now), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		follow(ctx, s, p.Send)
	}()
	_, err := p.Run()
	cancel()
	<-watched
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot show the approvals: %w", err)
	}
	return nil
}

// The pauses between attempts to reach the daemon.
const firstPause, longestPause = 200 * time.Millisecond, 5 * time.Second

// follow sends the items of Watch to the interface, and starts Watch again when it ends.
func follow(ctx context.Context, s Source, send func(tea.Msg)) {
	for pause := firstPause; ctx.Err() == nil; {
		first := true
		err := s.Watch(ctx, func(i *Item) {
			if first {
				send(beginMsg{})
				first, pause = false, firstPause
			}
			if i == nil {
				send(caughtUpMsg{})
				return
			}
			send(itemMsg(*i))
		})
		if ctx.Err() != nil {
			return
		}
		send(lostMsg{err})
		if errdefs.IsPermissionDenied(err) || errors.Is(err, errdefs.ErrUnauthenticated) {
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		pause = min(2*pause, longestPause)
	}
}

// Events other than keys.
type (
	beginMsg    struct{} // a new watch has begun: the known items may be out of date
	itemMsg     Item
	caughtUpMsg struct{}
	lostMsg     struct{ err error }
	historyMsg  struct {
		items []Item
		err   error
	}
	answeredMsg struct {
		id   string
		kind Kind
		err  error
	}
	tickMsg time.Time
)

// Model is the state of the interface.
type Model struct {
	ctx    context.Context //nolint:containedctx // of the whole run: answers end with it
	source Source
	now    func() time.Time

	width, height int
	pending, over []Item
	// fresh are the ids that a new watch has sent, until it has caught up.
	fresh map[string]bool
	// chosen is the id of the item to which details and keys apply.
	chosen  string
	history bool
	// moved: the choice changed without a key, because the chosen item ended. Answering keys do
	// nothing until the person has pressed another key, or they would answer the wrong question.
	moved  bool
	scroll int
	// reason is what is being typed, when denying is not nil.
	denying *Item
	reason  []rune
	busy    map[string]bool
	help    bool
	note    string
	lost    error
}

// NewModel returns an empty interface.
func NewModel(ctx context.Context, s Source, now func() time.Time) *Model {
	return &Model{ctx: ctx, source: s, now: now, width: 80, height: 24, busy: map[string]bool{}}
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return tea.Batch(m.loadHistory, tick()) }

func tick() tea.Cmd { return tea.Tick(time.Second, func(t time.Time) tea.Msg { return tickMsg(t) }) }

func (m *Model) loadHistory() tea.Msg {
	items, err := m.source.History(m.ctx)
	return historyMsg{items, err}
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		return m, tick()
	case beginMsg:
		m.lost, m.fresh = nil, map[string]bool{}
	case itemMsg:
		m.take(Item(msg))
	case caughtUpMsg:
		m.caughtUp()
	case lostMsg:
		m.lost = msg.err
	case historyMsg:
		if msg.err != nil {
			m.note = msg.err.Error()
		}
		for _, i := range slices.Backward(msg.items) {
			m.remember(i)
		}
	case answeredMsg:
		delete(m.busy, msg.id)
		m.note = fmt.Sprintf("%s: %s", msg.id, map[Kind]string{Once: "approved", Thread: "approved for its thread", Deny: "denied"}[msg.kind])
		if msg.err != nil {
			m.note = msg.err.Error()
		}
	case tea.KeyPressMsg:
		return m, m.key(msg)
	}
	return m, nil
}

// take moves an item to the list where it belongs.
func (m *Model) take(i Item) {
	if m.fresh != nil {
		m.fresh[i.ID] = true
	}
	at := m.at()
	same := func(o Item) bool { return o.ID == i.ID }
	if n := slices.IndexFunc(m.pending, same); n >= 0 {
		if i.Pending {
			m.pending[n] = i
			return
		}
		m.pending = slices.Delete(m.pending, n, n+1)
	} else if i.Pending {
		m.pending = append(m.pending, i) // below: nothing on the screen moves
	}
	if !i.Pending {
		m.remember(i)
	}
	m.choose(at)
}

func (m *Model) remember(i Item) {
	m.over = slices.DeleteFunc(m.over, func(o Item) bool { return o.ID == i.ID })
	m.over = slices.Insert(m.over, 0, i)
	m.over = m.over[:min(len(m.over), maxHistory)]
}

// caughtUp drops items that were pending before the connection was lost and are no longer.
func (m *Model) caughtUp() {
	at := m.at()
	m.pending = slices.DeleteFunc(m.pending, func(i Item) bool { return !m.fresh[i.ID] })
	m.fresh = nil
	m.choose(at)
}

// list returns the shown items.
func (m *Model) list() []Item {
	if m.history {
		return m.over
	}
	return m.pending
}

// at returns the index of the chosen item in the list, or -1.
func (m *Model) at() int {
	return slices.IndexFunc(m.list(), func(i Item) bool { return i.ID == m.chosen })
}

// choose makes sure that an item is chosen, near the last one.
func (m *Model) choose(near int) {
	list := m.list()
	if m.at() >= 0 {
		return
	}
	m.moved = m.chosen != "" // the item ended; no key moved the choice
	m.scroll = 0
	if len(list) == 0 {
		m.chosen = ""
		return
	}
	m.chosen = list[min(max(near, 0), len(list)-1)].ID
}

// move chooses another item after a key.
func (m *Model) move(by int) {
	list := m.list()
	if len(list) == 0 {
		return
	}
	n := min(max(m.at()+by, 0), len(list)-1)
	if m.moved { // the first key only confirms that the person saw the change
		n = max(m.at(), 0)
	}
	m.chosen, m.moved, m.scroll = list[n].ID, false, 0
}

func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	if m.denying != nil {
		return m.compose(k)
	}
	m.note = ""
	switch k.String() {
	case "q", "ctrl+c", "esc":
		if m.help {
			m.help = false
			return nil
		}
		return tea.Quit
	case "?", "h":
		m.help = !m.help
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "home", "g":
		m.move(-len(m.list()))
	case "end", "G":
		m.move(len(m.list()))
	case "pgdown", "space":
		m.scroll += max(m.height/3, 1)
	case "pgup", "b":
		m.scroll = max(m.scroll-max(m.height/3, 1), 0)
	case "tab":
		m.history, m.chosen, m.moved, m.scroll = !m.history, "", false, 0
		m.choose(0)
		m.moved = false
	case "y":
		return m.answer(Once, "")
	case "t":
		return m.answer(Thread, "")
	case "n", "d":
		if i := m.answerable(); i != nil {
			m.denying, m.reason = i, nil
		}
	}
	return nil
}

// answerable returns the chosen item if it can be answered; else it sets a note that says why not.
func (m *Model) answerable() *Item {
	at := m.at()
	switch {
	case m.history || at < 0:
		m.note = "there is nothing to answer here"
	case m.moved:
		m.note = "what you had chosen is over, and this is another; choose it with the arrow keys first"
	case m.lost != nil:
		m.note = "the daemon does not answer"
	case m.busy[m.chosen]:
		m.note = "your answer is on its way"
	default:
		i := m.pending[at]
		return &i
	}
	return nil
}

func (m *Model) answer(kind Kind, reason string) tea.Cmd {
	i := m.answerable()
	if i == nil {
		return nil
	}
	if kind == Thread && !i.Threads {
		m.note = "this can be approved once only"
		return nil
	}
	return m.send(i.ID, kind, reason)
}

func (m *Model) send(id string, kind Kind, reason string) tea.Cmd {
	m.busy[id] = true
	return func() tea.Msg { return answeredMsg{id, kind, m.source.Answer(m.ctx, id, kind, reason)} }
}

// maxReason is the longest reason that can be typed, in characters.
const maxReason = 250

// compose handles the keys of a reason.
func (m *Model) compose(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc", "ctrl+c":
		m.denying = nil
	case "enter":
		i := m.denying
		m.denying = nil
		return m.send(i.ID, Deny, strings.TrimSpace(string(m.reason)))
	case "backspace":
		m.reason = m.reason[:max(len(m.reason)-1, 0)]
	default:
		if k.Key().Text != "" && len(m.reason) < maxReason {
			m.reason = append(m.reason, []rune(k.Key().Text)...)
		}
	}
	return nil
}
