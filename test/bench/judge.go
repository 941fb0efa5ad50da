package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// typicalLines are what agents and administrators run, a line of each kind. They are judged
// in turn.
var typicalLines = []string{
	"git status --short", "ls -la /srv/app", "cat go.mod | head -20", "grep -rn 'func main' --include='*.go' .",
	"kubectl -n prod get pods -o wide",
	"systemctl status nginx --no-pager", "find . -name '*.py' -not -path './venv/*' | xargs wc -l | tail -1", "cd /srv/app && npm test",
	"docker compose up -d --build", "curl -fsS http://localhost:8080/healthz", "rm -rf build dist", "sed -i 's/foo/bar/g' src/main.c",
	"for f in *.log; do tail -n 3 \"$f\"; done", "sudo apt-get install -y nginx", "python3 -m pytest -q tests/unit",
	"git log --oneline -n 20 -- internal/",
	"make -j2 test 2>&1 | tee build.log", "ssh deploy@web-1 'uptime; df -h'", "tar -czf backup.tgz --exclude=.git .",
	"jq -r '.items[].name' out.json",
}

// userRules are how many a policy has beside the built-in ones.
const userRules = 10_000

// ruleForms are what users match by, one of each kind in turn; %d tells one from the next.
var ruleForms = []string{
	"{command: [tool%d]}",
	"{command: [git], subcommand_any: [verb%d]}",
	"{path_regex: ['^/srv/team-%d(/|$)']}",
	"{argv: [{prefix: [kubectl, verb%d]}]}",
	"{embedded_regex: ['secret-project-%d']}",
	"{command: [kubectl], args_regex: ['^--namespace=team-%d$']}",
	"{args_any: [--flag-%d]}",
}

// decide judges the typical lines in turn. There is no memory of what was said before.
func decide(name string, e *rules.Engine) measure.Contestant {
	i := 0
	return measure.Contestant{Name: name, Op: func() (time.Duration, error) {
		q := rules.Question{Command: typicalLines[i%len(typicalLines)], Profile: rules.Host, Source: rules.User}
		i++
		began := time.Now()
		d := e.Decide(q)
		took := time.Since(began)
		if d.Policy == "" {
			return 0, fmt.Errorf("%q was not judged", q.Command)
		}
		return took, nil
	}}
}

// policy measures the judgement of a line, with the built-in rules and with many of a user's.
func (b *bench) policy() error {
	builtin, err := rules.New(rules.Config{})
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("version: 1\nrules:\n")
	for i := range userRules {
		fmt.Fprintf(&text,
			"  - {id: bench.r%d, level: CONFIRM, risk_score: 40, reason: a rule of a user, match: "+ruleForms[i%len(ruleForms)]+"}\n", i, i)
	}
	many, err := rules.New(rules.Config{Rules: &rules.Source{Name: "rules", Data: []byte(text.String())}})
	if err != nil {
		return err
	}
	got := measure.Interleave(b.ctx, b.pace(0), []measure.Contestant{
		decide("a typical line, judged", builtin), decide(fmt.Sprintf("a typical line, %d user rules", userRules), many),
		decide(report.Builtin, builtin),
	})
	if err := b.times(report.Policy, time.Microsecond, got[0], nil); err != nil {
		return err
	}
	if err := b.times(report.PolicyMany, time.Microsecond, got[1], got[2:]); err != nil {
		return err
	}
	return b.policyRate(builtin)
}

// policyRate measures lines a second by the time that processors spent, the collection of
// garbage too, so that it is that of a core whatever else runs.
func (b *bench) policyRate(e *rules.Engine) error {
	const times = 200
	one := decide("", e)
	rate := measure.Interleave(b.ctx, measure.Pace{Rounds: 9, Warm: 1},
		[]measure.Contestant{{Name: "lines judged, a core", Op: spent(func() error {
			for range times * len(typicalLines) {
				if _, err := one.Op(); err != nil {
					return err
				}
			}
			return nil
		})}})[0]
	for _, r := range rate.Rounds {
		rate.Rates = append(rate.Rates, times*float64(len(typicalLines))/r[0].Seconds())
	}
	return b.rates(report.PolicyRate, "lines/s", rate, nil)
}

// asked is a command that a person has to approve, for what it could do, and that does
// nothing.
var asked = []string{"/bin/sh", "-c", "if false; then git push https://example.com x; fi"}

// answered measures from a person's answer, as its request is sent, until the command runs,
// by the executor's clock, which is this host's. Who asks is a program with a token, who
// answers is somebody else with a connection of its own, who is told of the question on a
// stream.
func (b *bench) answered() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	// Of another user: nobody answers for what their own token asks.
	token, err := h.client.Tokens().CreateToken(
		b.ctx, connect.NewRequest(&carrelv1.CreateTokenRequest{Name: "bench", Roles: []string{"operator"}, Owner: "uid:65534"}),
	)
	if err != nil {
		return err
	}
	asker, err := carrel.New(carrel.Options{Host: h.address(), Token: token.Msg.GetSecret()})
	if err != nil {
		return err
	}
	defer asker.Close()
	if _, err := asker.Workspaces().Create(b.ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: "asking"})); err != nil {
		return err
	}
	approver, err := carrel.New(carrel.Options{Host: h.address()})
	if err != nil {
		return err
	}
	defer approver.Close()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	questions, err := watchQuestions(ctx, approver)
	if err != nil {
		return err
	}
	op := func() (time.Duration, error) {
		type reply struct {
			started time.Time
			err     error
		}
		done := make(chan reply, 1)
		go func() {
			res, err := asker.Commands().Exec(
				ctx, connect.NewRequest(&carrelv1.ExecRequest{Workspace: "asking", Command: &carrelv1.Command{Argv: asked}, DiscardOutput: true}),
			)
			r := reply{err: err}
			if err == nil {
				if st := res.Msg.GetStatus(); st.GetCode() != 0 || st.GetStartedUnixNs() == 0 {
					r.err = fmt.Errorf("the command ended with %v", st)
				}
				r.started = time.Unix(0, res.Msg.GetStatus().GetStartedUnixNs())
			}
			done <- r
		}()
		var id string
		select {
		case q, ok := <-questions:
			if !ok {
				return 0, fmt.Errorf("nobody is told of questions any more: %w", context.Cause(ctx))
			}
			id = q
		case r := <-done:
			return 0, fmt.Errorf("nobody was asked: %w", r.err)
		}
		began := time.Now()
		if _, err := approver.Approvals().AnswerApproval(ctx,
			connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: id, Kind: "once"})); err != nil {
			return 0, err
		}
		r := <-done
		return r.started.Sub(began.Round(0)), r.err // by the clock that both have
	}
	got := measure.Interleave(b.ctx, b.pace(slowest), []measure.Contestant{{Name: "approval answered, command started", Op: op}})
	return b.times(report.Answered, time.Millisecond, got[0], nil)
}

// watchQuestions passes the ids of new questions on until ctx ends.
func watchQuestions(ctx context.Context, c *carrel.Client) (<-chan string, error) {
	s, err := c.Approvals().WatchApprovals(ctx, connect.NewRequest(&carrelv1.WatchApprovalsRequest{}))
	if err != nil {
		return nil, err
	}
	for s.Receive() && !s.Msg().GetCaughtUp() {
	}
	if err := s.Err(); err != nil {
		_ = s.Close()
		return nil, err
	}
	ids := make(chan string)
	go func() {
		defer close(ids)
		defer s.Close()
		for s.Receive() {
			if a := s.Msg().GetApproval(); a.GetState() == "pending" {
				select {
				case ids <- a.GetId():
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return ids, nil
}
