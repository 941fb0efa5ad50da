package watch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/cli/watch"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// answers is a source that keeps the answers. The test sends the items.
type answers struct {
	mu      sync.Mutex
	got     []string
	history []watch.Item
	err     error
	// fail answers for one id, if it is set.
	fail  func(id string) error
	watch func(ctx context.Context, f func(*watch.Item)) error
}

func (a *answers) Watch(ctx context.Context, f func(*watch.Item)) error { return a.watch(ctx, f) }

func (a *answers) History(context.Context) ([]watch.Item, error) { return a.history, nil }

func (a *answers) Answer(_ context.Context, id string, kind watch.Kind, reason string, files ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, fmt.Sprintf("%s %s %s", id, kind, reason)+strings.Join(files, ","))
	if a.fail != nil {
		return a.fail(id)
	}
	return a.err
}

func (a *answers) said() string { return strings.Join(a.got, "; ") }

// screen drives a model as the program does.
type screen struct {
	t testing.TB
	tea.Model
	a *answers
	// shown is called with each screen, if it is set.
	shown func(view string)
}

func open(t testing.TB, items ...watch.Item) *screen {
	t.Helper()
	a := &answers{}
	s := &screen{t: t, Model: watch.NewModel(t.Context(), a), a: a}
	s.send(tea.WindowSizeMsg{Width: 100, Height: 30})
	s.send(watch.Begin())
	for _, i := range items {
		s.item(i)
	}
	s.send(watch.CaughtUp())
	return s
}

func (s *screen) send(m tea.Msg) {
	cmd := s.update(m)
	for cmd != nil {
		got := cmd()
		if got == nil {
			return
		}
		if _, quit := got.(tea.QuitMsg); quit {
			return
		}
		cmd = s.update(got)
	}
}

func (s *screen) update(m tea.Msg) tea.Cmd {
	next, cmd := s.Update(m)
	s.Model = next
	if s.shown != nil {
		s.shown(s.text())
	}
	return cmd
}

func (s *screen) size(width, height int) { s.send(tea.WindowSizeMsg{Width: width, Height: height}) }

func (s *screen) item(i watch.Item) { s.send(watch.ItemMsg(i)) }

func (s *screen) keys(keys ...string) {
	for _, k := range keys {
		switch k {
		case "enter":
			s.send(tea.KeyPressMsg{Code: tea.KeyEnter})
		case "esc":
			s.send(tea.KeyPressMsg{Code: tea.KeyEscape})
		case "down":
			s.send(tea.KeyPressMsg{Code: tea.KeyDown})
		case "tab":
			s.send(tea.KeyPressMsg{Code: tea.KeyTab})
		case "space":
			s.send(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
		default:
			s.send(tea.KeyPressMsg{Code: []rune(k)[0], Text: k})
		}
	}
}

func (s *screen) text() string { return s.View().Content }

func (s *screen) shows(want ...string) {
	s.t.Helper()
	for _, w := range want {
		if !strings.Contains(s.text(), w) {
			s.t.Errorf("%q is not shown:\n%s", w, s.text())
		}
	}
}

func item(n int) watch.Item {
	return watch.Item{
		ID: fmt.Sprintf("ap-%d", n), State: "pending", Pending: true, Risk: int32(
			10 * n,
		), Where: "demo", By: "uid:1000", What: fmt.Sprintf("rm thing-%d", n),
		Details: fmt.Sprintf("details of %d", n), Until: "12:01:30", Threads: n != 2,
	}
}

// The files of a change are gone through one after the other, at a question of which all was shown; what is let through is what
// was chosen of that question, and of no other.
func TestFilesAreChosen(t *testing.T) {
	change := item(1)
	change.Files = []string{"a.conf", "b\x1b[2J", "c.conf"}
	for _, c := range []struct {
		keys      []string
		said, has string
	}{
		{[]string{"f", "y", "n", "y"}, "ap-1 files a.conf,c.conf", "approved for a.conf, c.conf"},
		{[]string{"f", "n", "y", "n"}, "ap-1 files b\x1b[2J", `approved for b\x1b[2J`},
		{[]string{"f", "y", "y", "y"}, "ap-1 once ", "approved"},
		{[]string{"f", "n", "n", "n"}, "ap-1 deny none of its files is to be changed", "denied"},
		{[]string{"f", "y"}, "", `2 of 3: change b\x1b[2J`},
		{[]string{"f", "y", "x", "t", "a", "space"}, "", "2 of 3"},
		{[]string{"f", "y", "n", "esc"}, "", "not answered"},
		{[]string{"down", "f"}, "", "as a whole or not"},
	} {
		s := open(t, change, item(2))
		s.keys(c.keys...)
		if got := s.a.said(); got != c.said {
			t.Errorf("%q: %q, and has to be %q", c.keys, got, c.said)
		}
		s.shows(c.has)
		if strings.Contains(s.text(), "\x1b[2J") {
			t.Errorf("%q: a name cleared the screen", c.keys)
		}
	}
	// It ends, or the window grows too small to show it, before the last file.
	s := open(t, change, item(2))
	s.keys("f", "y", "n")
	s.item(over(change, "expired"))
	s.keys("y")
	s.shows("not answered: it is over")
	s.keys("down")
	s.item(change)
	s.keys("down", "f", "y", "n")
	s.size(20, 2)
	s.keys("y")
	s.size(100, 30)
	s.shows("read it and press f again")
	if got := s.a.said(); got != "" {
		t.Errorf("%q", got)
	}
	// Half of it was shown.
	long := change
	long.Details = strings.Repeat("a line\n", 100)
	s = open(t, long)
	s.keys("f", "y", "y", "y")
	if got := s.a.said(); got != "" {
		t.Errorf("%q", got)
	}
	s.shows("Not all of it was shown")
}

func over(i watch.Item, answer string) watch.Item {
	i.Pending, i.State, i.Answer = false, answer, answer
	return i
}

func TestAnswers(t *testing.T) {
	s := open(t, item(1), item(2), item(3))
	s.shows("3 pending", "rm thing-1", "rm thing-3", "details of 1", "1 of 3", "12:01:30",
		"RISK  EXPIRES AT  WORKSPACE       ASKED BY    ACTION")
	s.keys("y")
	if s.a.said() != "ap-1 once " {
		t.Error(s.a.said())
	}
	s.shows("ap-1: approved")
	s.item(over(item(1), "approved"))
	s.shows("2 pending", "details of 2")
	s.keys("down") // sees the change
	s.keys("t")
	s.shows("once only")
	s.keys("down", "t")
	s.keys("n", "n", "o", "space", "q", "enter") // letters of a reason are no keys
	if s.a.said() != "ap-1 once ; ap-3 thread ; ap-3 deny no q" {
		t.Error(s.a.said())
	}
	s.keys("n", "x", "esc")
	if strings.Count(s.a.said(), ";") != 2 {
		t.Error(s.a.said())
	}
	s.a.err = fmt.Errorf("cannot answer approval ap-3: it is approved already: %w", errdefs.ErrFailedPrecondition)
	s.keys("y")
	s.shows("it is approved already")
}

// The question that a person is about to answer ends and another one is shown instead: the key must
// not answer that one.
func TestChoiceThatEnds(t *testing.T) {
	for name, end := range map[string]func(*screen){
		"answered elsewhere": func(s *screen) { s.item(over(item(2), "denied")) },
		"after a lost connection": func(s *screen) {
			s.send(watch.Lost(errors.New("gone")))
			s.keys("y")
			s.send(watch.Begin())
			s.item(item(1))
			s.item(item(3))
			s.send(watch.CaughtUp())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, item(1), item(2), item(3))
			s.keys("down")
			s.shows("details of 2")
			end(s)
			s.shows("2 pending", "details of 3")
			s.keys("y", "t", "n")
			if s.a.said() != "" {
				t.Fatalf("answered %s", s.a.said())
			}
			s.shows("choose it with the arrow keys first")
			s.keys("down")
			s.shows("details of 3")
			s.keys("y")
			if s.a.said() != "ap-3 once " {
				t.Error(s.a.said())
			}
		})
	}
}

// New questions do not change the choice.
func TestNewOnesStayBelow(t *testing.T) {
	s := open(t, item(2))
	for n := 3; n < 40; n++ {
		s.item(item(n))
	}
	s.shows("details of 2", "38 pending")
	s.keys("y")
	if s.a.said() != "ap-2 once " {
		t.Error(s.a.said())
	}
	if n := strings.Count(s.text(), "\n") + 1; n > 30 {
		t.Errorf("%d lines on a terminal of 30", n)
	}
}

func TestHistoryAndEnds(t *testing.T) {
	s := open(t)
	s.shows("nothing waits for you")
	s.keys("y")
	s.shows("nothing to answer")
	s.item(over(item(7), "denied by uid:0"))
	s.keys("tab")
	s.shows("1 that are over", "denied by", "details of 7")
	s.keys("y")
	if s.a.said() != "" {
		t.Error(s.a.said())
	}
	s.keys("?")
	s.shows("remember it in its thread")
	s.keys("?", "tab")
	s.send(watch.Lost(errors.New("connection refused")))
	s.shows("the daemon is away: connection refused")
}

// However long an action is, all of it can be read before it is answered.
func TestAllCanBeRead(t *testing.T) {
	i := item(1)
	i.Details = strings.Repeat("x", 5000) + "; rm -rf ~"
	s := open(t, i)
	if strings.Contains(s.text(), "rm -rf") {
		t.Fatal("the end is on the first page")
	}
	s.shows("lines 1 to ", "space reads on")
	for range 100 {
		s.keys("space")
	}
	s.shows("rm -rf ~")
	for _, size := range [][2]int{{1, 1}, {10, 3}, {20, 5}, {300, 100}} {
		s.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		if n := strings.Count(s.text(), "\n") + 1; n > size[1] {
			t.Errorf("%d lines on a terminal of %d", n, size[1])
		}
	}
}

// The watch starts again when it ends, unless it never can succeed.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		a := &answers{watch: func(_ context.Context, f func(*watch.Item)) error {
			calls++
			if calls == 4 {
				return fmt.Errorf("not for you: %w", errdefs.ErrPermissionDenied)
			}
			i := item(calls)
			f(&i)
			f(nil)
			return errors.New("lost")
		}}
		var got []string
		began := time.Now()
		watch.Follow(t.Context(), a, func(m tea.Msg) { got = append(got, strings.TrimPrefix(fmt.Sprintf("%T", m), "watch.")) })
		const each = "beginMsg itemMsg caughtUpMsg lostMsg "
		if s := strings.Join(got, " "); s != strings.Repeat(each, 3)+"lostMsg" {
			t.Error(s)
		}
		if d := time.Since(began); d < 600*time.Millisecond || d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}
