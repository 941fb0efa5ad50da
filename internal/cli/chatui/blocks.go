package chatui

import (
	"fmt"
	"strings"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// Styles, as SGR of ECMA-48. The renderer removes colours for a terminal without them.
const (
	bold, dim, reverse, underline     = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[4m"
	red, green, yellow, cyan, nothing = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", ""
	off                               = "\x1b[m"
)

// block is a part of what was said. Its lines are no wider than width, and nothing in them but styles is obeyed.
type block interface {
	lines(width int, trace bool) []string
}

// drawn keeps the lines of a block until it changes.
type drawn struct {
	width int
	trace bool
	kept  []string
}

func (d *drawn) changed() { d.width = 0 }

func (d *drawn) draw(width int, trace bool, f func() []string) []string {
	if d.width != width || d.trace != trace {
		d.width, d.trace, d.kept = width, trace, f()
	}
	return d.kept
}

// styled puts a style around a text that was made visible.
func styled(style, visible string) string {
	if style == nothing || visible == "" {
		return visible
	}
	return style + visible + off
}

// hang wraps a text behind first, and its further lines behind indent, which is as wide.
func hang(first, indent, text, style string, width int) (out []string) {
	first = termtext.Visible(first)
	room := width - termtext.Width(first)
	if room < 8 { // a window that has hardly room for words has none for what leads them
		first, indent, room = "", "", width
	}
	for i, l := range termtext.Wrapped(spaced(text), room) {
		lead := indent
		if i == 0 {
			lead = first
		}
		out = append(out, lead+styled(style, l))
	}
	return out
}

// blank are as many blanks as a text has cells.
func blank(s string) string { return strings.Repeat(" ", termtext.Width(s)) }

// spaced has blanks for tabs.
func spaced(s string) string { return strings.ReplaceAll(s, "\t", "    ") }

type textBlock struct {
	drawn
	text, first, indent, style string
}

func (b *textBlock) lines(width int, trace bool) []string {
	return b.draw(width, trace, func() []string {
		first := b.first
		if first == "" {
			first = b.indent
		}
		return hang(first, b.indent, b.text, b.style, width)
	})
}

// wordsBlock is an answer of the agent, which may grow.
type wordsBlock struct {
	drawn
	text strings.Builder
}

func (b *wordsBlock) take(text string) {
	b.text.WriteString(text)
	b.changed()
}

func (b *wordsBlock) lines(width int, trace bool) []string {
	return b.draw(width, trace, func() []string { return markdown(b.text.String(), width) })
}

// maxThought bounds what a person is shown of one thought, in bytes: its end.
const maxThought = 8 << 10

// thoughtBlock is what the agent thinks, which may grow. It is a detail.
type thoughtBlock struct {
	drawn
	lang messages.Language
	text string
	cut  bool
}

func (b *thoughtBlock) take(text string) {
	b.text += text
	if more := len(b.text) - maxThought; more > 0 {
		b.cut = true
		b.text = b.text[more:]
		if i := strings.IndexByte(b.text, '\n'); i >= 0 { // half a line, or half a character, is none
			b.text = b.text[i+1:]
		}
	}
	b.changed()
}

func (b *thoughtBlock) lines(width int, trace bool) []string {
	if !trace {
		return nil
	}
	return b.draw(width, trace, func() []string {
		text := b.text
		if b.cut {
			text = "…\n" + text
		}
		lead := b.lang.Say(messages.Thinks)
		return hang("  "+lead, "  "+blank(lead), text, dim, width)
	})
}

// planBlock is a plan, with what becomes of it.
type planBlock struct {
	drawn
	p     Plan
	lang  messages.Language
	ends  []StepEnd
	waits bool // for the person
	over  bool
	short bool // the diff is its heads alone
}

func newPlan(p Plan, lang messages.Language) *planBlock {
	return &planBlock{p: p, lang: lang, ends: make([]StepEnd, len(p.Steps))}
}

// end takes what became of a step.
func (b *planBlock) end(e StepEnd) bool {
	if e.Step < 1 || e.Step > len(b.ends) {
		return false
	}
	b.ends[e.Step-1] = e
	b.changed()
	return true
}

// state is what a step is at, in words, with a style. The daemon says when a step has ended; the first that has not is the
// one that runs, unless the person is asked.
func (b *planBlock) state(i int) (word, style string) {
	e := b.ends[i]
	switch {
	case e.NotBegun != "":
		return b.lang.Say(messages.StateNotBegun, b.lang.Known(e.NotBegun)), dim
	case e.Error != "":
		return b.lang.Say(messages.StateFailed, b.lang.Known(e.Error)), red
	case e.Step > 0 && e.Code != nil && *e.Code != 0:
		word = b.lang.Say(messages.StepExit, *e.Code)
		if said := lastLine(e.Stderr); said != "" {
			word += ": " + said
		}
		return word, red
	case e.Step > 0 && e.Job != "":
		return b.lang.Say(messages.StateJob, e.Job), green
	case e.Step > 0 && e.Merged != "":
		return b.lang.Say(messages.StepMerged, e.Merged), green
	case e.Step > 0:
		return b.lang.Say(messages.StepDone), green
	case b.over:
		return b.lang.Say(messages.StateNotRun), dim
	case b.waits:
		return b.lang.Say(messages.StateWaitsForYou), yellow
	}
	for _, before := range b.ends[:i] {
		if before.Step == 0 {
			return b.lang.Say(messages.StateWaits), dim
		}
	}
	return b.lang.Say(messages.StateRuns), cyan
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func (b *planBlock) lines(width int, trace bool) []string {
	return b.draw(width, trace, func() []string {
		out := hang(b.lang.Say(messages.PlanHead, b.p.Number, b.p.Note, ""), "  ", b.p.Goal, bold, width)
		order, end := "", -1
		for i, s := range b.p.Steps {
			last := i == len(b.p.Steps)-1 && len(b.p.Rollback) == 0
			first, indent := "├─ ", "│  "
			if last {
				first, indent = "└─ ", "   "
			}
			if s.Together > 1 {
				order, end = b.lang.Say(messages.Together, i+1, i+s.Together, s.Order), i+s.Together-1
			}
			verdict := s.Level
			if s.ReadOnly {
				verdict += b.lang.Say(messages.OnlyReads)
			}
			if s.Profile != "" {
				verdict += ", profile " + s.Profile
			}
			if s.As != "" {
				verdict += ", as " + s.As
			}
			if s.Background > 0 {
				verdict += b.lang.Say(messages.Background, s.Background)
			}
			out = append(out, hang(first, indent, fmt.Sprintf("%d. %s: %s", i+1, s.Target, s.Command), nothing, width)...)
			word, style := b.state(i)
			out = append(out, hang(indent+"   ["+verdict+"] ", indent+"   ", word, style, width)...)
			if i == end {
				out = append(out, hang(indent, indent, order, nothing, width)...)
			}
			if !trace {
				continue
			}
			detail := func(name, text string) {
				if text != "" {
					out = append(out, hang(indent+"   ", indent+"   ", name+text, dim, width)...)
				}
			}
			e := b.ends[i]
			why := b.lang.Say(messages.RiskIs, s.Risk)
			if s.FirstRun {
				why += b.lang.Say(messages.FirstRun)
			}
			detail("", why)
			detail(b.lang.Say(messages.DetailFor), s.Purpose)
			detail(b.lang.Say(messages.DetailHeld), e.Held)
			detail(b.lang.Say(messages.DetailStderr), strings.TrimSpace(e.Stderr))
			detail("carrel undo ", e.Undo)
		}
		for i, r := range b.p.Rollback {
			first := "├─ "
			if i == len(b.p.Rollback)-1 {
				first = "└─ "
			}
			out = append(out, hang(first, "   ", b.lang.Say(messages.ToUndo)+r, dim, width)...)
		}
		return append(out, diffLines(b.p.Diff, width, b.short)...)
	})
}

// questionBlock is a question, and what was answered.
type questionBlock struct {
	drawn
	q       Question
	lang    messages.Language
	details bool // the plan is not shown above it
	mine    string
	over    string
}

func (b *questionBlock) answered(kind Kind, why string) {
	b.mine = b.lang.Say(map[Kind]messages.Key{
		Once: messages.YouOnce, Steps: messages.YouSteps, Files: messages.YouFiles, Thread: messages.YouThread, Always: messages.YouAlways,
		Deny: messages.YouDeny,
	}[kind])
	if kind == Steps && len(b.q.Files) > 0 {
		b.mine = b.lang.Say(messages.YouStepsAll)
	}
	if why != "" {
		b.mine += ": " + why
	}
	b.changed()
}

func (b *questionBlock) lines(width int, trace bool) []string {
	return b.draw(width, trace, func() []string {
		var out []string
		if b.details || trace {
			out = append(out, hang("  ", "  ", b.q.Details, nothing, width)...)
		}
		head := b.lang.Say(messages.RunIt, b.q.Risk, b.q.Until)
		out = append(out, hang("? ", "  ", head, yellow, width)...)
		because := b.lang.Say(messages.Because)
		for i, why := range b.q.Reasons {
			name := because
			if i > 0 {
				name = b.lang.Say(messages.AndBecause)
			}
			out = append(out, hang("  "+name, "  "+blank(because), b.lang.Reason(why), nothing, width)...)
		}
		if b.q.Session {
			out = append(out, hang("  ", "  ", b.lang.Say(messages.SessionKept), nothing, width)...)
		}
		if trace && b.q.Rule != "" {
			rule := "  " + b.lang.Say(messages.RuleLead)
			out = append(out, hang(rule, blank(rule), b.q.Rule, dim, width)...)
		}
		if b.mine != "" {
			out = append(out, hang("  ", "  ", b.mine, bold, width)...)
		} else if b.over != "" {
			out = append(out, hang("  ", "  ", b.over, dim, width)...)
		}
		return out
	})
}
