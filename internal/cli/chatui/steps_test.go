package chatui_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/cli/chatui"
)

// The order of a step on several hosts is shown under its plan, s lets a plan pass one step at a time where that is offered,
// and what was not begun says why.
func TestStepKey(t *testing.T) {
	open(t, func(s *screen) {
		s.keys("go", "enter")
		p := plan("rm x", "rm x", "rm y")
		p.Steps[0].Together, p.Steps[0].Order = 2, "the first host alone"
		p.Note = " (undoes another)"
		q := question()
		q.Steps = true
		s.happens(p, q)
		s.shows("plan 1 (undoes another): make room", "1 to 2: the first host alone")
		s.keys("s") // before it could be read
		s.called("ask go")
		s.later()
		s.shows("[y] once  [s] step by step  [n] no  [e] edit")
		s.keys("s")
		s.called("ask go", "answer ap-1 steps ")
		s.shows("you let its first step pass")
		s.happens(chatui.StepEnd{Step: 1, Target: "host", Code: new(1)})
		s.happens(chatui.StepEnd{Step: 2, Target: "host", NotBegun: "the host that goes first failed"})
		s.shows("not begun: the host that goes first failed")
		s.s.ends <- nil
		s.rest()
	})
}

// t lets a plan pass for the session where that is offered, and says what that is; elsewhere it is no answer.
func TestSessionKey(t *testing.T) {
	open(t, func(s *screen) {
		s.keys("go", "enter")
		q := question()
		s.happens(plan("rm x"), q)
		s.later()
		s.keys("t")
		s.shows("this can be approved once only")
		s.hides("[t]", "with t its commands")
		q.ID, q.Session, q.Steps = "ap-2", true, true
		s.happens(plan("rm x"), q)
		s.keys("t") // before it could be read
		s.called("ask go")
		s.later()
		s.shows("[y] once  [s] step by step  [t] this session  [n] no  [e] edit", "with t its commands that need an answer pass again")
		s.keys("a")
		s.shows("once only, or with t for this session")
		s.keys("t")
		s.called("ask go", "answer ap-2 thread ")
		s.shows("you let it pass, and its commands for this session")
		s.s.ends <- nil
		s.rest()
	})
}
