package chatui_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/cli/chatui"
)

// f goes through the files of a change, where that is offered: what is answered is the files with y. All of them are the whole
// plan, none of them denies it, and esc goes back to the question.
func TestFilesKey(t *testing.T) {
	for name, c := range map[string]struct {
		keys []string
		want string
	}{
		"some":              {[]string{"y", "n", "y"}, "answer ap-1 files  [a c]"},
		"all":               {[]string{"y", "y", "y"}, "answer ap-1 once "},
		"none":              {[]string{"n", "n", "n"}, "answer ap-1 deny none of its files is to be changed"},
		"again after esc":   {[]string{"y", "y", "esc", "f", "n", "n", "y"}, "answer ap-1 files  [c]"},
		"other keys are no": {[]string{"n", "backspace", "enter", "y", "n"}, "answer ap-1 files  [b]"},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(s *screen) {
				s.keys("go", "enter")
				q := question()
				q.Files = []string{"a", "b", "c"}
				s.happens(plan("change 3 files"), q)
				s.keys("f") // before it could be read
				s.called("ask go")
				s.later()
				s.shows("[y] once  [f] files  [n] no  [e] edit")
				s.keys("f")
				s.shows("1 of 3: change a? [y] yes  [n] leave it")
				s.keys(c.keys...)
				s.called("ask go", c.want)
				if name == "some" {
					s.shows("you let a part of it pass: a, c; left as they are: b")
				}
				s.s.ends <- nil
				s.rest()
			})
		})
	}
	// Step by step the first step passes not by that answer: it is asked about by itself, and f is the key there too.
	open(t, func(s *screen) {
		s.keys("go", "enter")
		q := question()
		q.Steps, q.Files = true, []string{"a", "b"}
		s.happens(plan("change 2 files", "make"), q)
		s.later()
		s.shows("[y] once  [s] step by step  [f] files  [n] no  [e] edit")
		s.keys("s")
		s.called("ask go", "answer ap-1 steps ")
		s.shows("you are asked about each of its steps, and of the first about its files")
		step := question()
		step.ID, step.Digest, step.Files, step.Details = "ap-2", "sha256:step", []string{"a", "b"}, "1. patch, host: change 2 files"
		s.happens(step)
		s.shows("1. patch, host: change 2 files")
		s.later()
		s.keys("f", "n", "y")
		s.called("ask go", "answer ap-1 steps ", "answer ap-2 files  [b]")
		s.s.ends <- nil
		s.rest()
	})
	// Where there is nothing to choose, f is a letter.
	open(t, func(s *screen) {
		s.keys("go", "enter")
		s.happens(plan("rm x"), question())
		s.later()
		s.keys("f")
		s.called("ask go")
		s.happens(chatui.Note{Text: "so it is"})
		s.shows("a question waits: an empty line answers it")
		s.s.ends <- nil
		s.rest()
	})
}
