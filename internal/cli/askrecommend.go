package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/agent/recommend"
	"github.com/carrel-dev/carrel/internal/agent/vitals"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

const (
	// maxRecalled is how many of the person's newest turns are looked at, and recallTime how long that may take: it is advice alone.
	maxRecalled = 16
	recallTime  = 2 * time.Second
)

func (a *app) agentRecommendCommand() *cobra.Command {
	var agent string
	c := &cobra.Command{
		Use:   "recommend [flags]",
		Short: "Say what may be worth doing, from your own turns",
		Long: `Say what may be worth doing, in at most three lines: a threshold of this machine that is over,
a command that you approved again and again on one target, with the line that lets it pass, and
a runbook that fits your last question and was not read. It is found in the questions that you
asked, the commands that you approved and the tools that were called, in the 16 newest turns of
the agent that are yours. Nothing of it is told to the model, and nothing is done. agent.yaml
with "recommendations: false" has nothing said after a turn.`,
		Example: "  carrel agent recommend\n  carrel agent recommend -o json",
		Args:    exactly(),
	}
	c.Flags().StringVar(&agent, "agent", "agent", "the workspace that the agent runs in")
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		own, err := ownSettings()
		if err != nil {
			return nil, nil, err
		}
		a.lang = messages.Choose(own.Language, os.Getenv)
		client, err := a.client()
		if err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithTimeout(c.Context(), recallTime)
		defer cancel()
		past, err := recalled(ctx, client, agent, "uid:"+fmt.Sprint(os.Geteuid()))
		if err != nil {
			return nil, nil, err
		}
		list := []object{}
		var said []string
		for _, r := range advice(past, vitals.Over(readings(ctx, own.Thresholds, nil))) {
			said = append(said, adviceText(a.lang, r))
			list = append(list, object{{"text", adviceText(messages.English, r)}, {"line", r.Line}})
		}
		return list, lines(said), nil
	})
}

// recommend says what may be worth doing after a turn, to the person alone. Nothing is said in a session that has read what others
// wrote, as with notes that the agent proposes.
func (k *asker) recommend(ctx context.Context, question string, t *carrelv1.Task) error {
	if !k.attended || !k.own.Recommendations || k.foreign || *k.output == asJSON {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recallTime)
	defer cancel()
	past, err := recalled(ctx, k.client, k.ws, t.GetPrincipal())
	if err != nil {
		return nil // advice is worth no error
	}
	past = slices.Insert(past, 0, recommend.Turn{Question: question})
	for _, r := range advice(past, k.over) {
		if err := k.to.note(adviceText(k.lang, r)); err != nil {
			return err
		}
	}
	return nil
}

func advice(past []recommend.Turn, over []string) []recommend.Advice {
	books, _, err := readRunbooks(runbooksDir)
	if err != nil {
		books = nil
	}
	return recommend.Of(past, books, over)
}

func adviceText(lang messages.Language, r recommend.Advice) string {
	text := printable(r.Text)
	switch r.Kind {
	case recommend.Threshold:
		return lang.Say(messages.AdviceThreshold, text)
	case recommend.Allow:
		return lang.Say(messages.AdviceAllow, r.Count, printable(r.Target), text, printable(r.Line))
	case recommend.Session:
		return lang.Say(messages.AdviceSession, r.Count, printable(r.Target), text)
	case recommend.Runbook:
		return lang.Say(messages.AdviceRunbook, text, text)
	}
	return ""
}

// recalled are the newest turns of a principal, the newest first, as the daemon keeps them.
func recalled(ctx context.Context, client *carrel.Client, ws, by string) (all []recommend.Turn, err error) {
	m, err := askOf(ctx, client, tasks.ListTasks, &carrelv1.ListTasksRequest{Workspace: ws})
	if err != nil {
		return nil, err
	}
	for _, t := range m.GetTasks() {
		if t.GetProtocol() != "agent" || t.GetPrincipal() != by || len(all) == maxRecalled {
			continue
		}
		var past pastTurn
		req := &carrelv1.FollowTaskRequest{Workspace: ws, TaskId: t.GetId(), Now: true}
		if err := receiveOf(ctx, client, tasks.FollowTask, req, func(m *carrelv1.FollowTaskResponse) error {
			past.take(m.GetMessage())
			return nil
		}); err != nil {
			return nil, err
		}
		past.end()
		all = append(all, past.turn)
	}
	return all, nil
}

// pastTurn reads what is kept of a turn. Of the agent's own words it takes nothing.
type pastTurn struct {
	turn recommend.Turn
	// plan is the last one, and ran are its steps that ended; by hand: a person approved it.
	plan   planShown
	ran    map[int]bool
	byHand bool
}

func (p *pastTurn) take(m *carrelv1.TaskMessage) {
	switch m.GetKind() {
	case "prompt":
		var x struct {
			Text    string `json:"text"`
			Foreign bool   `json:"foreign"`
		}
		if json.Unmarshal(m.GetBody(), &x) == nil && !x.Foreign { // else not all of it are the person's words
			p.turn.Question = x.Text
		}
	case "plan":
		p.end()
		*p = pastTurn{turn: p.turn, ran: map[int]bool{}}
		p.byHand = json.Unmarshal(m.GetBody(), &p.plan) == nil && p.plan.Asks && p.plan.Session
	case "remembered":
		p.byHand = false
	case "step":
		var s stepShown
		if json.Unmarshal(m.GetBody(), &s) == nil && s.Code != nil && p.ran != nil {
			p.ran[s.Step] = true
		}
	case "tool":
		var s stepShown
		if json.Unmarshal(m.GetBody(), &s) == nil {
			if name, ok := strings.CutPrefix(s.Command, "runbook name="); ok {
				name, _, _ = strings.Cut(name, " ")
				p.turn.Read = append(p.turn.Read, name)
			}
		}
	}
}

// end counts the commands of the last plan that a person approved. What the policy never remembers is not in such a plan.
func (p *pastTurn) end() {
	for i, s := range p.plan.Steps {
		if p.byHand && p.ran[i+1] && s.Level == rules.Confirm.String() {
			p.turn.Approved = append(p.turn.Approved, recommend.Command{Target: s.Target, Text: s.Command})
		}
	}
	p.byHand = false
}
