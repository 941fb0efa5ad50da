package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/agent/sessions"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/surface/acp"
)

// editorRisk is up to which risk a plan may be approved in the editor: what deletes, takes other rights or ends services has more.
const editorRisk = 69

// maxRisk is the highest risk score that there is.
const maxRisk = 100

func (a *app) acpCommand() *cobra.Command {
	var x askFlags
	risk := editorRisk
	c := &cobra.Command{
		Use:   "acp [flags]",
		Short: "Serve the agent to an editor (ACP)",
		Long: `Serve the Agent Client Protocol on stdin and stdout, for editors such as Zed: prompts are
questions to the agent of "carrel ask", which works in the directory of the editor's project.
Its plans are shown as calls of tools, and the editor asks you about those that need an answer.

Editors can be set to allow everything, so that nobody looks. A plan with a risk above
--max-risk is not approved in the editor: it waits for "carrel approvals" at a terminal, and
the editor shows the command that answers it. With --max-risk -1 all plans do.

An editor that was closed may open a former session: it is told again, and goes on.

Files that you add to a prompt are sent as data: up to 8 of 64 KiB. The editor's servers of
tools are not started, and its files and terminals are not used.`,
		Example: `  carrel acp --llm gpt-5
  carrel acp --llm gpt-5 --on none --max-risk -1`,
		Args: exactly(),
	}
	a.addAskFlags(c, &x)
	c.Flags().IntVar(&risk, "max-risk", risk, "the highest risk score, up to 100, of a plan that may be approved in the editor")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if risk < -1 || risk > maxRisk {
			return usage(c, "cannot use --max-risk %d: scores are 0 to %d, and -1 has every plan answered at a terminal", risk, maxRisk)
		}
		if isTerminal(a.In) {
			return usage(c, "cannot serve an editor at a terminal: it starts this command by itself; for yourself use \"carrel chat\"")
		}
		if _, err := a.newAsker(c, &x); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
		defer stop()
		e := editors{app: a, cmd: c, flags: x, risk: int32(risk)}
		defer e.close()
		err := acp.Serve(ctx, build.Version(), sessions.NewID, e.open, a.In, a.Out)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // a signal is how it is ended
		}
		return err
	}
	return c
}

// editors makes the sessions of one editor.
type editors struct {
	app   *app
	cmd   *cobra.Command
	flags askFlags
	risk  int32
	// dir is the directory of the project, "" before the first session.
	dir    string
	askers []*asker
}

func (e *editors) close() {
	for _, k := range e.askers {
		k.close()
	}
}

// open makes a session, or opens a former one of the same user. All of an editor's are for one directory, as the commands on this
// machine are.
func (e *editors) open(ctx context.Context, dir, id string, former bool) (acp.Session, error) {
	if e.dir != "" && e.dir != dir {
		return nil, fmt.Errorf("cannot work in %s: this carrel works in %s; have the editor start another one for it: %w", dir, e.dir,
			errdefs.ErrFailedPrecondition)
	}
	if err := os.Chdir(dir); err != nil {
		return nil, fmt.Errorf("cannot work in the project's directory: %w", err)
	}
	e.dir = dir
	at, err := sessionsDir()
	if err != nil {
		return nil, plainly(err)
	}
	var from sessions.Session
	if former {
		if from, err = sessions.Find(at, id); err != nil {
			return nil, plainly(err)
		}
	}
	own, flags, table := *e.app, e.flags, asTable
	flags.output = &table
	flags.resume = flags.resume && !former
	k, err := own.newAsker(e.cmd, &flags)
	if err != nil {
		return nil, plainly(err)
	}
	if err := k.connect(ctx); err != nil {
		return nil, plainly(err)
	}
	e.askers = append(e.askers, k)
	if err := k.ready(ctx); err != nil {
		return nil, plainly(err)
	}
	k.attended = true
	if former {
		if err := k.goOnFrom(ctx, from); err != nil {
			return nil, plainly(err)
		}
	}
	k.began = func(task string) error { return sessions.Keep(at, id, sessions.Session{Workspace: k.ws, Task: task}) }
	s := &editorSession{k: k, risk: e.risk}
	s.planOnly.Store(flags.planOnly)
	return s, nil
}

// editorSession is a session of package acp, of one asker.
type editorSession struct {
	k        *asker
	risk     int32
	planOnly atomic.Bool
}

var _ acp.Session = (*editorSession)(nil)

// Commands implements acp.Session. They are those of a chat that keep notes: only a person writes a line.
func (s *editorSession) Commands() []acp.Command {
	const remember = "keep a note that the agent is told when a session begins; without a text the one that it proposed"
	return []acp.Command{
		{Name: "remember", Description: remember, Hint: "text"},
		{Name: "forget", Description: "forget a note", Hint: "number"},
		{Name: "memory", Description: "list the notes"},
	}
}

// note carries out a prompt that is a line about notes. The agent is not asked, and is told nothing of it. With anything added to it, it is
// a question like any other: what others wrote is no note.
func (s *editorSession) note(p acp.Prompt, to *acp.Turn) (done bool, err error) {
	name, arg, _ := strings.Cut(strings.TrimSpace(p.Text), " ")
	if len(p.Data)+len(p.Files) > 0 || !slices.ContainsFunc(s.Commands(), func(c acp.Command) bool { return name == "/"+c.Name }) {
		return false, nil
	}
	arg = strings.TrimSpace(arg)
	if name == "/memory" && arg != "" {
		return true, fmt.Errorf("cannot do %.40q: %s takes nothing: %w", p.Text, name, errdefs.ErrInvalidArgument)
	}
	text, err := s.k.memoryCommand(name, arg)
	if err != nil {
		return true, err
	}
	return true, to.Words(strings.TrimSpace(text) + "\n")
}

// PlanOnly implements acp.Session.
func (s *editorSession) PlanOnly() bool { return s.planOnly.Load() }

// SetPlanOnly implements acp.Session.
func (s *editorSession) SetPlanOnly(on bool) { s.planOnly.Store(on) }

// Prompt implements acp.Session.
func (s *editorSession) Prompt(ctx context.Context, p acp.Prompt, to *acp.Turn) error {
	if done, err := s.note(p, to); done {
		return plainly(err)
	}
	question, err := s.question(p)
	if err != nil {
		return plainly(err)
	}
	s.k.planOnly = s.planOnly.Load()
	s.k.to = &editorTeller{turn: to, risk: s.risk, planOnly: s.k.planOnly, lang: s.k.lang}
	err = s.k.turn(ctx, question)
	s.k.code = 0 // of a turn without an answer, which was said
	return plainly(err)
}

// question is a prompt with what came with it, as data.
func (s *editorSession) question(p acp.Prompt) (string, error) {
	if n := len(p.Data) + len(p.Files); n > maxAskFiles {
		return "", fmt.Errorf("cannot add %d files to the question: it may have %d: %w", n, maxAskFiles, errdefs.ErrInvalidArgument)
	}
	s.k.told = ""
	for _, d := range p.Data {
		if len(d.Text) > maxAskFile {
			return "", fmt.Errorf("cannot add %.200q to the question: it has more than 64 KiB; have the agent look for what is in it: %w", d.Name,
				errdefs.ErrInvalidArgument)
		}
		s.k.told += asData(fmt.Sprintf("text %q", d.Name), d.Text)
	}
	for _, f := range p.Files {
		content, _, err := s.k.askFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("cannot add %.200q to the question: there is no such file: %w", f, errdefs.ErrNotFound)
		}
		if err != nil {
			return "", err
		}
		s.k.told += asData(fmt.Sprintf("file %q", f), content)
	}
	return s.k.question(p.Text)
}

// editorTeller shows a turn in an editor.
type editorTeller struct {
	turn     *acp.Turn
	risk     int32
	planOnly bool
	lang     messages.Language
}

var _ teller = (*editorTeller)(nil)

func (t *editorTeller) words(text string) error { return t.turn.Words(text) }

func (t *editorTeller) thought(text string) error { return t.turn.Thought(text) }

func (t *editorTeller) over() error { return nil }

func (t *editorTeller) plan(p *planShown) error {
	e := acp.Plan{Digest: p.Digest, Goal: printable(p.Goal), Text: planText(t.lang, p), Asks: p.Asks, Shown: t.planOnly}
	e.Edits = p.Diff != ""
	if p.Diff != "" {
		e.Text += p.Diff
	}
	for _, s := range p.Steps {
		e.Steps = append(e.Steps, printable(s.Target)+": "+printable(s.Command))
	}
	return t.turn.Plan(e)
}

func (t *editorTeller) step(s *stepShown) error {
	return t.turn.StepEnd(s.Step, stepText(t.lang, s), s.Error != "" || s.Code != nil && *s.Code != 0)
}

func (t *editorTeller) notBegun(n *notBegunShown) error {
	for _, x := range n.Steps {
		text := fmt.Sprintf("  %d. %s: ", x.Step, printable(x.Target)) + t.lang.Say(messages.StepNotBegun, printable(t.lang.Known(x.Why)))
		if err := t.turn.StepEnd(x.Step, text, true); err != nil {
			return err
		}
	}
	return nil
}

func (t *editorTeller) tool(s *stepShown) error {
	return t.turn.Read(toolText(t.lang, s), s.Error != "" || s.Code != nil && *s.Code != 0)
}

func (t *editorTeller) refusal(outcome, why string) error {
	return t.turn.Note(t.lang.Known(outcome) + ": " + cut(printable(t.lang.Known(why)), 400))
}

func (t *editorTeller) note(text string) error { return t.turn.Note(text) }

// ask implements teller. What is too risky for an editor that may allow everything is answered elsewhere.
func (t *editorTeller) ask(ctx context.Context, m *carrelv1.Approval, _ bool) reply {
	q := acp.Question{Digest: m.GetActionDigest(), Text: approvalText(t.lang, m)}
	if m.GetKind() == string(operation.AskTask) { // no plan was shown
		if err := t.turn.Wish(q.Digest, "a wish of the agent's program, in its own workspace"); err != nil {
			return reply{err: err}
		}
	}
	if m.GetRiskScore() > t.risk {
		err := t.turn.Elsewhere(q, fmt.Sprintf("Its risk is %d of 100. Answer it at a terminal, until %s: `carrel approvals show %s`",
			m.GetRiskScore(), untilText(m), m.GetId()))
		if err != nil {
			return reply{err: err}
		}
		<-ctx.Done()
		return reply{err: context.Cause(ctx)}
	}
	shown := map[string]string{} // what the editor shows is the name of one file alone
	for _, f := range m.GetFiles() {
		if name := cut(printable(f), 200); shown[name] == "" {
			shown[name] = f
			q.Files = append(q.Files, name)
		}
	}
	if len(q.Files) != len(m.GetFiles()) {
		q.Files = nil
	}
	allowed, only, err := t.turn.Ask(ctx, q)
	switch {
	case err != nil:
		return reply{err: err}
	case allowed && only != "":
		return reply{kind: approval.Files, files: []string{shown[only]}}
	case allowed:
		return reply{kind: approval.Once}
	}
	return reply{kind: approval.Deny, reason: "denied in the editor"}
}

func (t *editorTeller) settled(m *carrelv1.Approval) error {
	return t.turn.Settled(m.GetActionDigest())
}
