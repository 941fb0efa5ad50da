package chatui_test

import (
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/chatui"
	"github.com/carrel-dev/carrel/internal/words"
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
		m := chatui.NewModel(t.Context(), &session{}, words.English, func(tea.Msg) {})
		s := &screen{t: t, Model: m}
		p := plan(text("command"), text("command"))
		p.Goal, p.Diff, p.Rollback = text("goal"), text("diff"), []string{text("rollback")}
		p.Steps[0].Target, p.Steps[0].Level, p.Steps[0].Purpose = text("target"), text("level"), text("purpose")
		q := question()
		q.Reasons, q.Details, q.Rule, q.Until = []string{text("reason")}, text("details"), text("rule"), text("until")
		for _, msg := range []tea.Msg{
			tea.WindowSizeMsg{Width: width, Height: height},
			chatui.EventMsg(chatui.Words{Text: text("words")}),
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
