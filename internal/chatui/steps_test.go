package chatui_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/chatui"
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
