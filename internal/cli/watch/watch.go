// Package watch is the terminal interface of "carrel approvals watch": the questions that wait for a
// person, their details, and the keys to answer.
//
// It must not talk to the daemon itself. It takes no answer to a question of which not all was on the screen.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// maxHistory bounds the answered and expired items that are kept.
const maxHistory = 500

// Item is an approval as it is shown.
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
	// Digest is the same for questions about the same action; empty is like no other.
	Digest string
	// Until is when it expires, as a person reads it.
	Until string
	// Threads: an answer for its whole thread is possible.
	Threads bool
	// Files are those of a change, of which some may be let through alone.
	Files []string
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
	// Files lets some files of a change through.
	Files Kind = "files"
)

// Source is the daemon, as the interface sees it.
type Source interface {
	// Watch calls f with each pending item, then once with no item, then with each changed
	// item, until ctx ends or an error occurs.
	Watch(ctx context.Context, f func(*Item)) error
	// History returns answered and expired items, the newest first.
	History(ctx context.Context) ([]Item, error)
	// Answer answers one. files are those of an answer of kind Files.
	Answer(ctx context.Context, id string, kind Kind, reason string, files ...string) error
}

// Run shows the interface until the person quits or ctx ends.
func Run(ctx context.Context, s Source, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := tea.NewProgram(NewModel(ctx, s), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out))
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
		kind  Kind
		files []string
		items []Item
		errs  []error // one for each item, nil for what was answered
	}
)

// page is what fills the window, if it is not the list with the question below.
type page int

const (
	list    page = iota
	whole        // the chosen question, with all the room there is
	confirm      // an answer to several questions
	help
	report // what of such an answer failed
)

// order is an answer whose reason is being typed.
type order struct {
	items []Item
	// of is the text that must have been read.
	of string
}

func (o *order) name() string {
	if len(o.items) == 1 {
		return termtext.Visible(o.items[0].ID)
	}
	return fmt.Sprintf("all %d", len(o.items))
}

// Model is the state of the interface.
type Model struct {
	ctx    context.Context //nolint:containedctx // of the whole run: answers end with it
	source Source

	// width and height are 0 until the terminal has said them: nothing is on the screen.
	width, height int
	pending, over []Item
	// fresh are the ids that a new watch has sent, until it has caught up.
	fresh map[string]bool
	// chosen is the id of the item to which details and keys apply.
	chosen  string
	history bool
	// moved: the choice changed without a key, because the chosen item ended. Answering keys do
	// nothing until the person has pressed another key, or they would answer the wrong question.
	moved bool
	page  page
	// together are the questions of the page confirm, failed is the text of the page report.
	together []Item
	failed   string
	// scroll is the first line of the text on the screen, shown how many of its lines are.
	scroll, shown int
	seen          seen
	// reason is what is being typed, when denying is not nil; draft is what it was begun for.
	denying *order
	reason  []rune
	draft   string
	// choosing is the question of which files are being chosen.
	choosing *choice
	busy     map[string]bool
	note     string
	lost     error
}

// seen is what a person could read of a text since the last change of the window or of the text.
type seen struct {
	of string
	// lines are on the screen or were, from the first one on and without a gap; all is how many there are.
	lines, all int
}

// NewModel returns an empty interface.
func NewModel(ctx context.Context, s Source) *Model {
	return &Model{ctx: ctx, source: s, busy: map[string]bool{}}
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.loadHistory }

func (m *Model) loadHistory() tea.Msg {
	items, err := m.source.History(m.ctx)
	return historyMsg{items, err}
}

// Update implements tea.Model. A key acts on what the View before it has shown.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height, m.seen = msg.Width, msg.Height, seen{}
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
		m.answered(msg)
	case tea.KeyPressMsg:
		cmd = m.key(msg)
	}
	m.settle()
	return m, cmd
}

// settle counts as seen what the next View shows.
func (m *Model) settle() {
	l := m.lay()
	m.scroll, m.shown = l.from, len(l.text)
	if m.seen.of != l.of || m.seen.all != l.all {
		m.seen = seen{of: l.of, all: l.all}
	}
	if l.from <= m.seen.lines {
		m.seen.lines = max(m.seen.lines, l.from+len(l.text))
	}
}

// read reports whether all of a text is on the screen, or was since the window has its size.
func (m *Model) read(of string) bool {
	return of != "" && m.seen.of == of && m.seen.all > 0 && m.seen.lines == m.seen.all
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
	items := m.list()
	if m.at() >= 0 {
		return
	}
	m.moved = m.chosen != "" // the item ended; no key moved the choice
	if m.page == whole {
		m.page = list
	}
	if m.page == list {
		m.scroll = 0
	}
	if len(items) == 0 {
		m.chosen = ""
		return
	}
	m.chosen = items[min(max(near, 0), len(items)-1)].ID
}

// move chooses another item after a key.
func (m *Model) move(by int) {
	items := m.list()
	if len(items) == 0 {
		return
	}
	n := min(max(m.at()+by, 0), len(items)-1)
	if m.moved { // the first key only confirms that the person saw the change
		n = max(m.at(), 0)
	}
	m.chosen, m.moved, m.scroll = items[n].ID, false, 0
}
