package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// approvalText shows a person everything that decides about a question.
func approvalText(lang messages.Language, m *carrelv1.Approval) string {
	var b strings.Builder
	action := actionOf(m)
	if m.GetKind() == string(operation.RunPlan) { // a step a line
		steps := make([]string, 0, len(m.GetArgv()))
		for _, s := range m.GetArgv() {
			steps = append(steps, printable(s))
		}
		action = strings.Join(steps, "\n  ")
	}
	fmt.Fprintf(&b, "%s\n\n  %s\n\n", lang.Say(messages.QuestionHead, m.GetId(), m.GetState(), m.GetRiskScore()), action)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "  %s%s\n", termtext.Cell(name, 12), printable(text))
		}
	}
	row := func(name messages.Key, text string) { line(lang.Say(name), text) }
	where := m.GetKey()
	if name := m.GetWorkspace(); name != "" && name != where {
		where = strings.TrimSpace(where + " (" + name + ")")
	}
	if m.GetCwd() != "" {
		where += lang.Say(messages.InDirectory, m.GetCwd())
	}
	row(messages.RowWhere, where)
	row(messages.RowAs, m.GetUser())
	row(messages.RowVariables, strings.Join(m.GetEnv(), " "))
	wrote := messages.PersonTyped
	if m.GetSource() != carrel.SourceUser {
		wrote = messages.ModelWrote
	}
	row(messages.RowAskedBy, lang.Say(wrote, m.GetRequester()))
	row(messages.RowThread, m.GetThread())
	row(messages.RowRule, m.GetRule())
	row(messages.RowFiles, strings.Join(m.GetFiles(), ", "))
	isolation := m.GetIsolation()
	switch {
	case m.GetKind() != string(operation.ExecCommand) && m.GetKind() != string(operation.RunOnce): // they are judged by no profile
	case m.GetProfile() == "workspace":
		isolation += lang.Say(messages.AllVerified)
	case m.GetProfile() == "host" && len(m.GetArgv()) > 0:
		isolation += lang.Say(messages.NotVerified)
	}
	row(messages.RowIsolation, strings.TrimPrefix(strings.TrimPrefix(isolation, "; "), "；"))
	row(messages.RowMay, strings.Join(m.GetCapabilities(), ", "))
	for i, why := range m.GetReasons() {
		why = lang.Reason(why)
		if i == 0 {
			row(messages.RowBecause, why)
			continue
		}
		line("", why)
	}
	if len(m.GetSegments()) > 1 {
		for _, s := range m.GetSegments() {
			fmt.Fprintf(&b, "\n  %s  risk %d  %s\n", s.GetLevel(), s.GetRiskScore(), printable(s.GetText()))
			if s.GetVia() != "" {
				line("", lang.Say(messages.RunBy, s.GetVia()))
			}
			line("", strings.Join(s.GetCapabilities(), ", "))
		}
	}
	switch {
	case m.GetHost() != "":
		b.WriteString("\n  " + lang.Say(messages.HoldsMinute) + "\n")
	case m.GetKind() == string(operation.RunPlan) && threaded(m):
		b.WriteString("\n  " + lang.Say(messages.HoldsSession, m.GetId()) + "\n")
	case m.GetOnceOnly():
		b.WriteString("\n  " + lang.Say(messages.NeverKept) + "\n")
	}
	if isPending(m) {
		b.WriteString("\n  " + lang.Say(messages.ExpiresAt, untilText(m)) + "\n")
	}
	if w := m.GetAnswer(); w != nil {
		self := ""
		if w.GetSelf() {
			self = lang.Say(messages.Themselves)
		}
		when := at(w.GetUnixMs()).Local().Format(time.DateTime)
		b.WriteString("\n  " + lang.Say(messages.AnsweredBy, w.GetKind(), w.GetBy(), self, when) + "\n")
		row(messages.RowFiles, strings.Join(w.GetFiles(), ", "))
		row(messages.RowReason, w.GetReason())
	}
	return b.String()
}

// threaded reports whether an answer for the thread, or the session of an agent, is possible.
func threaded(m *carrelv1.Approval) bool { return m.GetThread() != "" && !m.GetOnceOnly() }

// untilText is when a question expires, in local time; with the date if that is not today.
func untilText(m *carrelv1.Approval) string {
	t := at(m.GetUntilUnixMs()).Local()
	if t.Format(time.DateOnly) != time.Now().Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// readLine reads a line from the terminal and no byte after it, because those are the
// command's. If ctx ends first, it has read at most a part of a line.
func (a *app) readLine(ctx context.Context) (string, error) {
	woken, wake, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer woken.Close()
	defer context.AfterFunc(ctx, func() { _ = wake.Close() })()
	defer wake.Close()
	var line []byte
	one := make([]byte, 1)
	for len(line) < 4096 {
		if err := await(a.In, woken); err != nil {
			return "", err
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := a.In.Read(one)
		if n == 1 && one[0] == '\n' {
			return string(line), nil
		}
		if n == 1 {
			line = append(line, one[0])
		}
		if errors.Is(err, io.EOF) && len(line) > 0 {
			return string(line), nil
		}
		if err != nil {
			return "", err
		}
	}
	return string(line), nil
}

// await returns when one of two files can be read, or its other end was closed.
func await(one, other *os.File) error {
	return withFD(one, func(a int) error {
		return withFD(other, func(b int) error {
			for {
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(a), Events: unix.POLLIN}, {Fd: int32(b), Events: unix.POLLIN}}, -1)
				if !errors.Is(err, unix.EINTR) {
					return err
				}
			}
		})
	})
}

// forgetTyped discards what was typed before a question was shown, which cannot answer it.
func (a *app) forgetTyped() {
	_ = withFD(a.In, func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }) // a file has nothing to discard
}

// reply is what a person answered.
type reply struct {
	kind   approval.Kind
	reason string
	// files are those of an answer of kind files.
	files []string
	err   error
	// sent gets the error of sending the answer; nil if nobody waits for it.
	sent chan<- error
}

// prompt shows a question and reads the answer. threads: an answer for the thread is possible. steps: so is one for
// the steps of a plan one at a time.
func (a *app) prompt(ctx context.Context, m *carrelv1.Approval, threads, steps bool) reply {
	var shown []string
	add := func(offered bool, key messages.Key) {
		if offered {
			shown = append(shown, a.lang.Say(key))
		}
	}
	plan := m.GetKind() == string(operation.RunPlan)
	add(steps, messages.KeySteps)
	add(threads && plan, messages.KeySession)
	add(true, messages.KeyOnce)
	add(threads && !plan, messages.KeyThread)
	add(len(m.GetFiles()) > 0, messages.KeyFiles)
	add(true, messages.KeyNo)
	keys := strings.Join(shown, "  ")
	a.forgetTyped()
	_ = say(a.Err, "%s", a.lang.Say(messages.AsksYou, approvalText(a.lang, m), keys))
	for range 3 {
		line, err := a.readLine(ctx)
		if err != nil {
			return reply{err: fmt.Errorf("cannot read your answer: %w", err)}
		}
		switch key := strings.ToLower(strings.TrimSpace(line)); {
		case key == "y":
			return reply{kind: approval.Once}
		case steps && (key == "s" || key == "step"):
			return reply{kind: approval.Steps}
		case key == "f" && len(m.GetFiles()) > 0:
			return a.chooseFiles(ctx, m.GetFiles())
		case key == "t" && threads:
			return reply{kind: approval.Thread}
		case key == "n" || key == "d":
			_ = say(a.Err, "%s", a.lang.Say(messages.WhyNot))
			why, err := a.readLine(ctx)
			if err != nil && !errors.Is(err, io.EOF) {
				return reply{err: fmt.Errorf("cannot read your reason: %w", err)}
			}
			return reply{kind: approval.Deny, reason: strings.TrimSpace(why)}
		}
		_ = say(a.Err, "%s", a.lang.Say(messages.AnswerWith, keys))
	}
	return reply{err: fmt.Errorf("cannot go on: there is no answer, and nothing was run: %w", errdefs.ErrAborted)}
}

// chooseFiles asks about each file of a change, and returns the answer that comes of it.
func (a *app) chooseFiles(ctx context.Context, files []string) reply {
	var yes []string
	for i, f := range files {
		_ = say(a.Err, "%s", a.lang.Say(messages.ChangeFile, i+1, len(files), printable(f)))
		for tries := 1; ; tries++ {
			line, err := a.readLine(ctx)
			if err != nil {
				return reply{err: fmt.Errorf("cannot read your answer: %w", err)}
			}
			key := strings.ToLower(strings.TrimSpace(line))
			if key == "y" {
				yes = append(yes, f)
			}
			if key == "y" || key == "n" {
				break
			}
			if tries == 3 {
				return reply{err: fmt.Errorf("cannot go on: there is no answer, and nothing was run: %w", errdefs.ErrAborted)}
			}
			_ = say(a.Err, "%s", a.lang.Say(messages.AnswerYesNo))
		}
	}
	switch len(yes) {
	case 0:
		return reply{kind: approval.Deny, reason: "none of its files is to be changed"}
	case len(files):
		return reply{kind: approval.Once}
	}
	return reply{kind: approval.Files, files: yes}
}

// asking starts a command and gets the answer that it may need. If one is needed, start fails
// with the id of the question. It is called again once the question was answered here, or to wait
// where that was asked for. Without a terminal and without that it fails at once: a script that
// waits for nobody looks as if it hung. A signal ends all of it.
func (a *app) asking(
	ctx context.Context, client *carrel.Client, spec *carrel.Spec, signals <-chan os.Signal, start func(context.Context) error,
) error {
	return attach.Interruptible(ctx, signals, func(ctx context.Context) error { return a.started(ctx, client, spec, start) })
}

// started is asking without the signals, which end ctx.
func (a *app) started(ctx context.Context, client *carrel.Client, spec *carrel.Spec, start func(context.Context) error) error {
	wait := spec.ApprovalWait
	spec.ApprovalWait = carrel.DoNotWait
	answered := a.tellSlow(client)
	err := start(ctx)
	answered()
	name, ok := carrel.ApprovalOf(err)
	if !ok {
		return err
	}
	asks := spec.Source == carrel.SourceUser && isTerminal(a.In) && isTerminal(a.Err)
	if wait == 0 && !asks {
		return err
	}
	spec.ApprovalWait = wait
	if !asks {
		a.tellWaiting(name)
		return start(ctx)
	}
	m, askErr := a.approval(ctx, name)
	if askErr != nil {
		return askErr
	}
	if strings.HasPrefix(m.GetRequester(), "token:") { // who comes with a token is not asked, as no token approves
		if wait == 0 {
			return err
		}
		a.tellWaiting(name)
		return start(ctx)
	}
	open, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if a.untilAnswered(open, client, name) == nil {
			stop(errSettled)
		}
	}()
	r := a.prompt(open, m, threaded(m), false)
	if by, ok := errors.AsType[*attach.Interrupt](r.err); ok {
		return fmt.Errorf("cannot go on: %w; nothing was run; approval %s stays open and expires at %s", by, name, untilText(m))
	}
	if errors.Is(r.err, errSettled) {
		fmt.Fprintln(a.Err)
		return a.settled(ctx, name, start)
	}
	if r.err != nil {
		return r.err
	}
	_, err = askOf(ctx, client, approvals.AnswerApproval,
		&carrelv1.AnswerApprovalRequest{Id: name, Kind: string(r.kind), Reason: r.reason, Terminal: true})
	if errdefs.IsFailedPrecondition(err) { // somebody was faster
		return a.settled(ctx, name, start)
	}
	if err != nil {
		return err
	}
	if r.kind == approval.Deny {
		return fmt.Errorf("cannot go on: you denied it, and nothing was run: %w", errdefs.ErrPermissionDenied)
	}
	return start(ctx)
}

// errSettled ends a prompt whose question is no longer open.
var errSettled = errors.New("it was answered, or its time is over")

// untilAnswered returns nil once a question is no longer open.
func (a *app) untilAnswered(ctx context.Context, client *carrel.Client, name string) error {
	err := (&approvalSource{client}).stream(ctx, func(m *carrelv1.Approval) error {
		if m == nil { // it may have been answered before the stream began
			m, err := a.approval(ctx, name)
			if err == nil && !isPending(m) {
				err = errSettled
			}
			return err
		}
		if m.GetId() == name && !isPending(m) {
			return errSettled
		}
		return nil
	})
	if errors.Is(err, errSettled) {
		return nil
	}
	return err
}

// settled goes on with the answer that somebody else gave, if there is one.
func (a *app) settled(ctx context.Context, name string, start func(context.Context) error) error {
	m, err := a.approval(ctx, name)
	if err != nil {
		return err
	}
	switch w := m.GetAnswer(); approval.State(m.GetState()) {
	case approval.Approved:
		_ = say(a.Err, "carrel: %s let it pass\n", w.GetBy())
		return start(ctx)
	case approval.Denied:
		why := ""
		if w.GetReason() != "" {
			why = ": " + w.GetReason()
		}
		return fmt.Errorf("cannot go on: %s denied it%s, and nothing was run: %w", w.GetBy(), why, errdefs.ErrPermissionDenied)
	case approval.Expired:
		return fmt.Errorf("cannot go on: approval %s expired at %s, and nothing was run; ask for it again: %w",
			name, untilText(m), errdefs.ErrPermissionDenied)
	case approval.Pending, approval.Spent:
	}
	return fmt.Errorf("cannot go on: approval %s is %s, and nothing was run; ask for it again: %w",
		name, m.GetState(), errdefs.ErrFailedPrecondition)
}
