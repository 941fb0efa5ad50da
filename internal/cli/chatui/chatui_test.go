package chatui_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/cli/chatui"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// session is a chat whose turns the test plays.
type session struct {
	mu    sync.Mutex
	calls []string
	emit  func(chatui.Event)
	// ends ends the turn that runs.
	ends     chan error
	prepared error
	refuse   error // an answer
}

func (s *session) called(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *session) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, "; ")
}

func (s *session) Prepare(_ context.Context, emit func(chatui.Event)) (chatui.Status, error) {
	s.called("prepare")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit = emit
	return chatui.Status{Workspace: "agent", Model: "m1", Targets: "host"}, s.prepared
}

func (s *session) Ask(ctx context.Context, question string, _ func(chatui.Event)) error {
	s.called("ask %s", question)
	select {
	case err := <-s.ends:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) Answer(_ context.Context, id string, kind chatui.Kind, reason string, files ...string) error {
	text := fmt.Sprintf("answer %s %s %s", id, kind, reason)
	if len(files) > 0 {
		text += fmt.Sprint(" ", files)
	}
	s.called("%s", text)
	return s.refuse
}

func (s *session) Command(_ context.Context, line string) (chatui.Result, error) {
	s.called("command %s", line)
	return chatui.Result{Text: "did " + line, Status: chatui.Status{Model: "m2"}, Leave: line == "/leave"}, nil
}

func (s *session) Shell(_ context.Context, command string, tell bool) (string, error) {
	s.called("shell %s %v", command, tell)
	return "printed\x1b[2J", nil
}

func (s *session) Complete(word string) []string {
	var out []string
	for _, w := range []string{"@file.txt", "@files/", "@web-1", "/undo workspace", "/undo workspace demo"} {
		if strings.HasPrefix(w, word) {
			out = append(out, w)
		}
	}
	return out
}

// screen drives a model as the program does. Its messages are taken one after the other, in a bubble whose time is the test's.
type screen struct {
	t testing.TB
	tea.Model
	s    *session
	msgs chan tea.Msg
	quit bool
}

// open runs a test with a chat that is ready.
func open(t *testing.T, f func(s *screen)) {
	t.Helper()
	openIn(t, messages.English, f)
}

// openIn is open in a language.
func openIn(t *testing.T, lang messages.Language, f func(s *screen)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &screen{t: t, s: &session{ends: make(chan error)}, msgs: make(chan tea.Msg, 64)}
		m := chatui.NewModel(ctx, s.s, lang, func(m tea.Msg) { s.msgs <- m })
		s.Model = m
		s.run(m.Init())
		s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
		f(s)
		cancel()
		<-time.After(time.Second)
		synctest.Wait()
	})
}

// run runs a command beside the test.
func (s *screen) run(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	go func() {
		if msg := cmd(); msg != nil {
			s.msgs <- msg
		}
	}()
}

// send hands the model a message, and what comes of it.
func (s *screen) send(m tea.Msg) {
	s.one(m)
	s.rest()
}

func (s *screen) one(m tea.Msg) {
	if _, ok := m.(tea.QuitMsg); ok {
		s.quit = true
		return
	}
	next, cmd := s.Update(m)
	s.Model = next
	s.run(cmd)
	s.sound()
}

// rest takes what has happened.
func (s *screen) rest() {
	for {
		synctest.Wait()
		select {
		case m := <-s.msgs:
			s.one(m)
		default:
			return
		}
	}
}

// sound checks what holds for every screen.
func (s *screen) sound() {
	s.t.Helper()
	v := s.View()
	for l := range strings.SplitSeq(v.Content, "\n") {
		bare := ansi.Strip(l)
		if strings.ContainsFunc(bare, func(r rune) bool { return !unicode.IsPrint(r) }) {
			s.t.Fatalf("a line has a character that a terminal obeys: %q", bare)
		}
		for _, seq := range strings.Split(l, "\x1b")[1:] {
			if end := strings.IndexByte(seq, 'm'); !strings.HasPrefix(seq, "[") || end < 0 || strings.Trim(seq[1:end], "0123456789;") != "" {
				s.t.Fatalf("a line has a sequence that is no style: %q", l)
			}
		}
	}
}

func (s *screen) keys(keys ...string) {
	for _, k := range keys {
		switch k {
		case "enter":
			s.send(tea.KeyPressMsg{Code: tea.KeyEnter})
		case "esc":
			s.send(tea.KeyPressMsg{Code: tea.KeyEscape})
		case "up":
			s.send(tea.KeyPressMsg{Code: tea.KeyUp})
		case "down":
			s.send(tea.KeyPressMsg{Code: tea.KeyDown})
		case "tab":
			s.send(tea.KeyPressMsg{Code: tea.KeyTab})
		case "pgup":
			s.send(tea.KeyPressMsg{Code: tea.KeyPgUp})
		case "ctrl+c", "ctrl+d", "ctrl+u", "ctrl+j":
			s.send(tea.KeyPressMsg{Code: rune(k[5]), Mod: tea.ModCtrl})
		default:
			for _, r := range k {
				s.send(tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
	}
}

// happens is an event of the turn.
func (s *screen) happens(events ...chatui.Event) {
	for _, e := range events {
		s.s.emit(e)
		s.rest()
	}
}

// later lets the time pass in which a new question takes no answer.
func (s *screen) later() {
	<-time.After(2 * chatui.Grace)
	s.rest()
}

func (s *screen) text() string { return ansi.Strip(s.View().Content) }

func (s *screen) shows(want ...string) {
	s.t.Helper()
	for _, w := range want {
		if !strings.Contains(s.text(), w) {
			s.t.Errorf("%q is not shown:\n%s", w, s.text())
		}
	}
}

func (s *screen) hides(not ...string) {
	s.t.Helper()
	for _, w := range not {
		if strings.Contains(s.text(), w) {
			s.t.Errorf("%q is shown:\n%s", w, s.text())
		}
	}
}

func (s *screen) called(want ...string) {
	s.t.Helper()
	if got := s.s.said(); got != strings.Join(append([]string{"prepare"}, want...), "; ") {
		s.t.Errorf("the session was called %q", got)
	}
}

func plan(commands ...string) chatui.Plan {
	p := chatui.Plan{Number: 1, Digest: "d1", Goal: "make room", Rollback: []string{"host: undo"}}
	for _, c := range commands {
		p.Steps = append(p.Steps, chatui.Step{Target: "host", Command: c, Level: "CONFIRM", Risk: 30, Purpose: "to see"})
	}
	return p
}

func question() chatui.Question {
	return chatui.Question{ID: "ap-1", Digest: "d1", Risk: 30, Reasons: []string{"it deletes"}, Until: "12:00", Rule: "fs.delete"}
}

func TestTurn(t *testing.T) {
	open(t, func(s *screen) {
		s.shows("ready · m1 · agent · host")
		s.keys("how full?", "enter")
		s.shows("you> how full?", "working")
		s.happens(plan("df", "rm x", "sync"))
		s.shows("plan 1: make room", "├─ 1. host: df", "[CONFIRM] running", "[CONFIRM] waiting", "└─ to undo it: host: undo")
		s.happens(question())
		s.shows("waiting for you", "because it deletes", "risk 30 of 100")
		s.keys("y") // typed before it could be read
		s.called("ask how full?")
		s.later()
		s.shows("[y] once  [n] no  [e] edit")
		s.keys("a")
		s.shows("once only")
		s.keys("y")
		s.called("ask how full?", "answer ap-1 once ")
		s.shows("you let it pass, once", "[CONFIRM] running")
		s.happens(chatui.StepEnd{Step: 1, Target: "host", Code: new(0), Held: "system_inspect"})
		s.happens(chatui.StepEnd{Step: 2, Target: "host", Code: new(3), Stderr: "one\nno such file\n"})
		s.shows("[CONFIRM] done", "exit code 3: no such file", "running")
		s.hides("system_inspect", "fs.delete")
		s.keys("/trace", "enter")
		s.shows("held: system_inspect", "rule    fs.delete", "for: to see", "risk 30")
		s.keys("/trace", "enter")
		s.happens(chatui.Words{Text: "It is **full** of `logs`:\n\n- a"}, chatui.Words{Text: "\n- b"})
		s.s.ends <- nil
		s.rest()
		s.shows("It is full of logs:", "- a", "- b", "not run", "ready")
	})
}

// A denial has a reason; an edit is a denial, and the person's text the next question.
func TestDenials(t *testing.T) {
	open(t, func(s *screen) {
		s.keys("go", "enter")
		s.happens(plan("rm x"), question())
		s.later()
		s.keys("stay", "y", "n")
		s.shows("a question waits", "you> stayyn")
		s.called("ask go")
		s.keys("ctrl+u", "n", "not now")
		s.shows("why not? not now")
		s.keys("esc")
		s.called("ask go")
		s.keys("n", "never", "enter")
		s.called("ask go", "answer ap-1 deny never")
		s.happens(plan("rm y"), question())
		s.later()
		s.keys("e")
		s.shows("instead: make room", "host: rm y")
		s.keys("ctrl+u", "ctrl+u", "ctrl+u", "ls y", "enter")
		s.s.ends <- nil
		s.rest()
		s.called("ask go", "answer ap-1 deny never", "answer ap-1 deny the person says what to do instead",
			"ask Instead of the plan that I denied, do this:\nls y")
		s.s.ends <- nil
		s.rest()
	})
}

// No key answers a question of which not all was on the screen, at any size.
func TestNoAnswerUnseen(t *testing.T) {
	open(t, func(s *screen) {
		s.send(tea.WindowSizeMsg{Width: 60, Height: 12})
		s.keys("go", "enter")
		var commands []string
		for i := range 20 {
			commands = append(commands, fmt.Sprintf("step-%d", i))
		}
		s.happens(plan(commands...), question())
		s.later()
		s.shows("plan 1:", "step-0", "more below")
		s.hides("step-19", "[y]")
		s.keys("y", "e", "n")
		s.shows("space shows the rest first")
		s.called("ask go")
		for range 10 {
			s.keys(" ")
		}
		s.shows("step-19", "[y] once")
		s.send(tea.WindowSizeMsg{Width: 50, Height: 12}) // all is drawn anew
		s.keys("y")
		s.called("ask go")
		s.keys("pgup", "pgup", "pgup", "pgup", "pgup", "pgup", "pgup", "pgup")
		for range 10 {
			s.keys(" ")
		}
		s.keys("y")
		s.called("ask go", "answer ap-1 once ")
	})
	open(t, func(s *screen) { // a change whose lines are hidden
		s.keys("go", "enter")
		p := plan("change 1 file")
		p.Diff = "modify /etc/x  +1 −1\ncareful: a file of the system\n@@ -1 +1 @@\n-old\n+new\n"
		s.happens(p, question())
		s.later()
		s.shows("modify /etc/x  +1 −1", "-old", "+new", "[v] short")
		s.keys("v")
		s.shows("modify /etc/x", "careful")
		s.hides("-old")
		s.keys("y")
		s.called("ask go")
		s.keys("v", "y")
		s.called("ask go", "answer ap-1 once ")
	})
	open(t, func(s *screen) { // a question about another plan than the one that is shown brings its own details
		s.keys("go", "enter")
		q := question()
		q.Digest, q.Details = "other", "rm -rf /srv"
		s.happens(plan("df"), q)
		s.shows("rm -rf /srv")
	})
}

// What is entered while a turn runs waits for its end; Esc ends it; what waits can be taken back.
func TestSteering(t *testing.T) {
	open(t, func(s *screen) {
		s.keys("one", "enter", "two", "enter", "three", "enter")
		s.shows("queued: two", "queued: three")
		s.keys("up")
		s.hides("queued: three")
		s.shows("you> three")
		s.keys("ctrl+u", "esc")
		s.called("ask one", "ask two")
		s.shows("stopped", "you> two")
		s.s.ends <- errors.New("cannot go on: it is late")
		s.rest()
		s.shows("! cannot go on: it is late", "ready")
		s.keys("esc", "esc")
		if s.quit {
			t.Error("esc left")
		}
		s.keys("four", "enter", "ctrl+c")
		s.shows("stopped")
		if s.quit {
			t.Error("ctrl+c left while a turn ran")
		}
		s.keys("x", "ctrl+d", "ctrl+c")
		if s.quit {
			t.Error("a key left at a line with text")
		}
		s.keys("ctrl+c")
		if !s.quit {
			t.Error("ctrl+c did not leave")
		}
	})
	open(t, func(s *screen) {
		s.keys("up", "one", "enter", "up") // it runs; what was entered is in the history
		s.shows("you> one")
		s.keys("ctrl+u", "ctrl+d")
		if !s.quit {
			t.Error("ctrl+d did not leave")
		}
	})
}

func TestCommands(t *testing.T) {
	open(t, func(s *screen) {
		s.keys("/he", "tab")
		s.shows("you> /help")
		s.keys("enter")
		s.shows("!!COMMAND")
		s.keys("/clear", "enter")
		s.hides("!!COMMAND")
		s.keys("/plan", "enter")
		s.shows("did /plan", "m2")
		s.keys("!ls", "enter", "!!ls -l", "enter")
		s.shows(`printed\x1b[2J`, "the agent is told")
		s.keys("ctrl+u", "/undo w", "tab")
		s.shows("/undo workspace")
		s.keys(" dem", "tab", "p-1", "enter")
		s.called("command /plan", "shell ls false", "shell ls -l true", "command /undo workspace demo p-1")
		s.keys("see @fi", "tab")
		s.shows("@file.txt  @files/", "you> see @file")
		s.keys("s", "tab")
		s.shows("you> see @files/")
		s.keys("ctrl+u", "see @w", "tab", "now", "enter")
		s.called("command /plan", "shell ls false", "shell ls -l true", "command /undo workspace demo p-1", "ask see @web-1 now")
		s.send(tea.PasteMsg{Content: "a\r\nb\x1b\tc"})
		s.keys("ctrl+j", "d", "enter", "esc")
		if got := s.s.said(); !strings.HasSuffix(got, "ask a\nb\tc\nd") {
			t.Errorf("%q", got)
		}
		s.keys("/quit", "enter")
		if !s.quit {
			t.Error("/quit did not leave")
		}
	})
}

// A daemon that is not there is said, what was entered is kept, and enter tries again.
func TestPrepareAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &screen{t: t, s: &session{ends: make(chan error), prepared: errors.New("cannot reach it")}, msgs: make(chan tea.Msg, 64)}
		m := chatui.NewModel(t.Context(), s.s, messages.English, func(m tea.Msg) { s.msgs <- m })
		s.Model = m
		cmd := m.Init()
		s.send(tea.WindowSizeMsg{Width: 60, Height: 20})
		s.shows("you>", "connecting") // before anything is ready
		s.keys("hello", "enter")
		s.shows("queued: hello")
		s.run(cmd)
		s.rest()
		s.shows("cannot reach it", "not ready", "queued: hello", "enter tries again")
		s.s.mu.Lock()
		s.s.prepared = nil
		s.s.mu.Unlock()
		s.keys("enter")
		s.called("prepare", "ask hello")
		s.s.ends <- nil
		s.rest()
		s.shows("ready")
	})
}
