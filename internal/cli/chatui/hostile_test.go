package chatui_test

import (
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/cli/chatui"
)

// Whatever a model, a plan, a program or a paste says, no line has anything but characters and styles, and at every size the
// screen has no more lines than the window and none wider.
func TestHostile(t *testing.T) {
	evil := []string{
		"\x1b[2J", "\x1b]0;t\a", "\x1b]52;c;eA==\x1b\\", "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u009b31m",
		"\r", "\b", "\x00", "\xff",
		"e\u0301\u0301", "界", "👨‍👩‍👧", "\u3164", "```\n", "**", "`", "# ", "- ", "\n", "\t", " word", "x",
	}
	texts := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(evil), 0, 30).Draw(t, "parts"), "")
	})
	rapid.Check(t, func(r *rapid.T) {
		width, height := rapid.IntRange(2, 90).Draw(r, "width"), rapid.IntRange(1, 30).Draw(r, "height")
		text := func(name string) string { return texts.Draw(r, name) }
		m := chatui.NewModel(t.Context(), &session{}, messages.English, func(tea.Msg) {})
		s := &screen{t: t, Model: m}
		p := plan(text("command"), text("command"))
		p.Goal, p.Diff, p.Rollback = text("goal"), text("diff"), []string{text("rollback")}
		p.Steps[0].Target, p.Steps[0].Level, p.Steps[0].Purpose = text("target"), text("level"), text("purpose")
		q := question()
		q.Reasons, q.Details, q.Rule, q.Until = []string{text("reason")}, text("details"), text("rule"), text("until")
		for _, msg := range []tea.Msg{
			tea.WindowSizeMsg{Width: width, Height: height},
			tea.PasteMsg{Content: "/trace"},
			tea.KeyPressMsg{Code: tea.KeyEnter},
			chatui.EventMsg(chatui.Words{Text: text("words")}),
			chatui.EventMsg(chatui.Thought{Text: text("thought")}),
			chatui.EventMsg(p),
			chatui.EventMsg(q),
			tea.PasteMsg{Content: text("paste")},
			chatui.EventMsg(chatui.Note{Text: text("note")}),
			chatui.EventMsg(chatui.StepEnd{Step: 1, Target: text("target"), Code: new(1), Stderr: text("stderr"), Held: text("held")}),
			chatui.EventMsg(chatui.StepEnd{Step: 2, Error: text("error")}),
			chatui.EventMsg(chatui.Refusal{Outcome: text("o"), Why: text("why")}),
			chatui.EventMsg(chatui.Changed{Status: chatui.Status{Model: text("model"), Targets: text("targets")}}),
		} {
			s.Update(msg)
			s.sound()
			lines := strings.Split(s.View().Content, "\n")
			if len(lines) > height {
				r.Fatalf("%d lines in a window of %d", len(lines), height)
			}
			for _, l := range lines {
				if w := max(ansi.StringWidth(l), ansi.StringWidthWc(l)); w > width {
					r.Fatalf("a line of %d cells in a window of %d: %q", w, width, l)
				}
			}
		}
	})
}

// What an agent thinks is shown with the details alone, cleaned and bounded.
func TestThoughts(t *testing.T) {
	open(t, func(s *screen) {
		s.keys("go", "enter")
		s.happens(chatui.Thought{Text: "first\x1b[2J\x1b]52;c;eA==\x07\n"}, chatui.Thought{Text: "second\n"}, chatui.Words{Text: "an answer"})
		s.shows("an answer")
		s.hides("first", "second", "thinks")
		s.keys("/trace", "enter")
		s.shows("thinks: first", "second", "an answer")
		s.sound()
		s.happens(chatui.Thought{Text: strings.Repeat("a long thought\n", 4000)}, chatui.Thought{Text: "its end\n"})
		s.shows("its end")
		if n := strings.Count(strings.Join(s.Model.(*chatui.Model).Said(), "\n"), "a long thought"); n < 300 || n > 8<<10/15 {
			t.Errorf("%d lines of 4000 are kept", n)
		}
		s.keys("/trace", "enter")
		s.hides("its end", "first")
		s.s.ends <- nil
		s.rest()
	})
}
