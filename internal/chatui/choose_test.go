package chatui_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/chatui"
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
