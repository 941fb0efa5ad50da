package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// planShown is the body of a message of kind plan.
type planShown struct {
	Number int    `json:"number"`
	Digest string `json:"digest"`
	Goal   string `json:"goal"`
	Asks   bool   `json:"asks"`
	Undoes int    `json:"undoes"`
	Steps  []struct {
		Part     string `json:"part"`
		Target   string `json:"target"`
		Command  string `json:"shell"`
		ReadOnly bool   `json:"read_only"`
		Profile  string `json:"profile"`
		Level    string `json:"level"`
		Job      bool   `json:"background"`
		LimitMS  int64  `json:"limit_ms"`
		Risk     int    `json:"risk"`
		FirstRun bool   `json:"first_run"`
		As       string `json:"as"`
		Together int    `json:"together"`
		Order    string `json:"order"`
	} `json:"steps"`
	Rollback []string `json:"rollback"`
	Purposes []string `json:"purposes"`
	// Says is what the agent says of it beside its goal.
	Says []string `json:"says"`
	Diff string   `json:"diff"`
	// OnlyFirstRun: a person is asked about the plan only because a model wrote it.
	OnlyFirstRun bool `json:"only_first_run"`
	// Session: its commands can be allowed for the session.
	Session bool `json:"session"`
}

// several reports whether the plan has more than one step that can be approved by itself.
func (p *planShown) several() bool {
	return len(p.Steps) > 0 && max(p.Steps[0].Together, 1) < len(p.Steps)
}

// plans are the plans of a turn that were shown, by the digest by which a person is asked about them.
type plans struct {
	mu    sync.Mutex
	of    map[string]*planShown
	added chan struct{}
}

func newPlans() *plans { return &plans{of: map[string]*planShown{}, added: make(chan struct{})} }

func (p *plans) add(x *planShown) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[x.Digest] = x
	close(p.added)
	p.added = make(chan struct{})
}

// wait returns the plan with a digest once it was shown.
func (p *plans) wait(ctx context.Context, digest string) (*planShown, error) {
	for {
		p.mu.Lock()
		x, added := p.of[digest], p.added
		p.mu.Unlock()
		if x != nil {
			return x, nil
		}
		select {
		case <-added:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// stepShown is the body of a message of kind step.
type stepShown struct {
	Step   int    `json:"step"`
	Target string `json:"target"`
	// Command is that of a step, or a call of a tool.
	Command string `json:"command"`
	Code    *int   `json:"exit_code"`
	Error   string `json:"error"`
	Stderr  string `json:"stderr"`
	Held    string `json:"held"`
	Undo    string `json:"undo"`
	Job     string `json:"job"`
	// Merged are files that had changed elsewhere since the plan was shown.
	Merged []string `json:"merged"`
}

// show shows one message of a turn.
func (t *turnView) show(m *carrelv1.TaskMessage) error {
	t.foreign = t.foreign || readsForeign(m)
	if t.out == asJSON {
		var p planShown
		switch {
		case m.GetKind() == "plan" && json.Unmarshal(m.GetBody(), &p) == nil:
			t.plans.add(&p)
		case m.GetKind() == "asks":
			t.stepAsked(m)
		}
		return t.a.printMessage(m, asJSON)
	}
	switch m.GetKind() {
	case "message":
		var u struct {
			Update  string `json:"sessionUpdate"`
			Content struct {
				Text string `json:"text"`
			} `json:"content"`
		}
		if json.Unmarshal(m.GetBody(), &u) != nil {
			return nil
		}
		switch u.Update {
		case "agent_message_chunk":
			return t.to.words(u.Content.Text)
		case "agent_thought_chunk":
			return t.to.thought(u.Content.Text)
		}
	case "plan":
		var p planShown
		if json.Unmarshal(m.GetBody(), &p) == nil {
			err := t.to.plan(&p)
			t.plans.add(&p) // once it is on the screen
			return err
		}
	case "asks":
		t.stepAsked(m)
	case "step":
		var s stepShown
		if json.Unmarshal(m.GetBody(), &s) == nil {
			return t.to.step(&s)
		}
	case "tool":
		var s stepShown
		if json.Unmarshal(m.GetBody(), &s) == nil {
			return t.to.tool(&s)
		}
	case "not_begun":
		var n notBegunShown
		if json.Unmarshal(m.GetBody(), &n) == nil {
			return t.to.notBegun(&n)
		}
	case "part":
		var p partShown
		if json.Unmarshal(m.GetBody(), &p) == nil {
			return t.to.note(p.text(t.a.lang))
		}
	case "remembered":
		var r rememberedShown
		if json.Unmarshal(m.GetBody(), &r) == nil {
			return t.to.note(r.text(t.a.lang))
		}
	case "remember":
		return t.offer(m)
	case "refusal":
		var r struct{ Outcome, Why string }
		if json.Unmarshal(m.GetBody(), &r) == nil {
			return t.to.refusal(r.Outcome, r.Why)
		}
	}
	return nil
}

// readsForeign reports whether a message says that the session has read what others wrote: the rule of notes that an agent proposes.
func readsForeign(m *carrelv1.TaskMessage) bool {
	var x struct {
		Foreign bool `json:"foreign"`
	}
	switch m.GetKind() {
	case "plan", "tool", "step", "refusal", "permission":
		return true
	case "message": // a program in the place of carrel's agent has tools of its own
		var u struct {
			Update string `json:"sessionUpdate"`
		}
		return json.Unmarshal(m.GetBody(), &u) == nil && strings.HasPrefix(u.Update, "tool_call")
	case "prompt":
		return json.Unmarshal(m.GetBody(), &x) != nil || x.Foreign
	}
	return false
}

// stepAsked takes it that a person is asked about one step of a plan, which the question itself shows.
func (t *turnView) stepAsked(m *carrelv1.TaskMessage) {
	var x struct {
		Digest string `json:"digest"`
	}
	if json.Unmarshal(m.GetBody(), &x) == nil {
		t.plans.add(&planShown{Digest: x.Digest})
	}
}

// partShown is the body of a message of kind part.
type partShown struct {
	Files   []string `json:"files"`
	LeftOut []string `json:"left_out"`
}

func (p *partShown) text(lang messages.Language) string {
	return lang.Say(messages.ChosenFiles, printable(strings.Join(p.Files, ", ")),
		cmp.Or(printable(strings.Join(p.LeftOut, ", ")), lang.Say(messages.NoFiles)))
}

// rememberedShown is the body of a message of kind remembered.
type rememberedShown struct {
	Plan        int      `json:"plan"`
	Permissions []string `json:"permissions"`
}

func (r *rememberedShown) text(lang messages.Language) string {
	return lang.Say(messages.Remembered, r.Plan, printable(strings.Join(r.Permissions, " ")))
}

// notBegunShown is the body of a message of kind not_begun.
type notBegunShown struct {
	Steps []struct {
		Step   int    `json:"step"`
		Target string `json:"target"`
		Why    string `json:"why"`
	} `json:"steps"`
}

// notBegunText names the steps that were not begun, a line for each reason.
func notBegunText(lang messages.Language, n *notBegunShown) string {
	var b strings.Builder
	for i, s := range n.Steps {
		if i == 0 || s.Why != n.Steps[i-1].Why {
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString("  " + lang.Say(messages.NotBegun, printable(lang.Known(s.Why))))
		} else {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, " %d. %s", s.Step, printable(s.Target))
	}
	return b.String() + "\n"
}

func planText(lang messages.Language, p *planShown) string {
	var b strings.Builder
	b.WriteString(lang.Say(messages.PlanHead, p.Number, undoing(lang, p.Undoes), printable(p.Goal)) + "\n")
	order, last := "", -1
	for i, s := range p.Steps {
		if s.Together > 1 {
			order, last = "  "+lang.Say(messages.Together, i+1, i+s.Together, printable(s.Order))+"\n", i+s.Together-1
		}
		word := s.Level
		if s.ReadOnly {
			word += lang.Say(messages.OnlyReads)
		}
		if s.Profile != "" {
			word += ", profile " + printable(s.Profile)
		}
		if s.As != "" {
			word += ", as " + printable(s.As)
		}
		if s.Job {
			word += lang.Say(messages.Background, time.Duration(s.LimitMS)*time.Millisecond)
		}
		fmt.Fprintf(&b, "  %d. %s: %s  [%s]\n", i+1, printable(s.Target), printable(s.Command), word)
		if i == last {
			b.WriteString(order)
		}
	}
	for _, s := range p.Says {
		b.WriteString("  " + printable(lang.Reason(s)) + "\n")
	}
	if len(p.Rollback) > 0 {
		b.WriteString("  " + lang.Say(messages.ToUndo) + printable(strings.Join(p.Rollback, "; ")) + "\n")
	}
	return b.String()
}

// undoing says of a plan that it has the rollback steps of another one, which runs only if the person says so.
func undoing(lang messages.Language, other int) string {
	if other == 0 {
		return ""
	}
	return lang.Say(messages.PlanUndoes, other)
}

func stepText(lang messages.Language, s *stepShown) string {
	head := fmt.Sprintf("  %d. %s: ", s.Step, printable(s.Target))
	switch {
	case s.Error != "":
		return head + printable(lang.Known(s.Error)) + "\n"
	case s.Code != nil && *s.Code != 0:
		text := head + lang.Say(messages.StepExit, *s.Code)
		if line := lastLine(s.Stderr); line != "" {
			text += ": " + cut(printable(line), 200)
		}
		return text + "\n"
	}
	if s.Job != "" {
		return head + lang.Say(messages.StepJob, printable(s.Job)) + "\n"
	}
	if len(s.Merged) > 0 {
		return head + lang.Say(messages.StepMerged, cut(printable(strings.Join(s.Merged, ", ")), 200)) + "\n"
	}
	return head + lang.Say(messages.StepDone) + "\n"
}

// toolText is a call of a tool in one line.
func toolText(lang messages.Language, s *stepShown) string {
	end := lang.Say(messages.ToolRead)
	switch {
	case s.Error != "":
		end = cut(printable(lang.Known(s.Error)), 200)
	case s.Code != nil && *s.Code != 0:
		if end = lang.Say(messages.StepExit, *s.Code); s.Stderr != "" {
			end = cut(printable(lastLine(s.Stderr)), 200)
		}
	}
	return fmt.Sprintf("%s: %s: %s", printable(s.Target), cut(printable(s.Command), 200), end)
}

// lastLine is the last line of a text that is not empty.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
