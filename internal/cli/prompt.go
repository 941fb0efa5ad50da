package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/approval"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// text shows a person what they are asked: all that decides, and every character of it.
func (v *approvalView) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  risk %d of 100\n\n  %s\n\n", v.ID, v.State, v.RiskScore, v.what())
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "  %-12s%s\n", name, printable(text))
		}
	}
	where := v.Key
	if v.Workspace != "" && v.Workspace != v.Key {
		where = strings.TrimSpace(where + " (" + v.Workspace + ")")
	}
	if v.Cwd != "" {
		where += ", in " + v.Cwd
	}
	row("where", where)
	row("as", v.User)
	row("variables", strings.Join(v.Env, " "))
	wrote := "a person typed it"
	if v.Source != carrel.SourceUser {
		wrote = "a model or a program wrote it"
	}
	row("asked by", v.Requester+"; "+wrote)
	row("thread", v.Thread)
	isolation := v.Isolation
	switch v.Profile {
	case "workspace":
		isolation += "; all that is required of it was verified"
	case "host":
		if len(v.Argv) > 0 {
			isolation += "; not all that is required of it was verified, so it is judged as on the host"
		}
	}
	row("isolation", strings.TrimPrefix(isolation, "; "))
	row("may", strings.Join(v.Capabilities, ", "))
	for i, why := range v.Reasons {
		row(map[bool]string{true: "because"}[i == 0], why)
	}
	if len(v.Segments) > 1 {
		for _, s := range v.Segments {
			fmt.Fprintf(&b, "\n  %s  risk %d  %s\n", s.Level, s.RiskScore, printable(s.Text))
			if s.Via != "" {
				row("", "run by "+s.Via)
			}
			row("", strings.Join(s.Capabilities, ", "))
		}
	}
	if v.OnceOnly {
		b.WriteString("\n  An answer to it is never remembered.\n")
	}
	if v.State == string(approval.Pending) {
		fmt.Fprintf(&b, "\n  Taken for denied at %s.\n", v.Until.Local().Format("15:04:05"))
	}
	if w := v.Answer; w != nil {
		self := ""
		if w.Self {
			self = ", themselves"
		}
		fmt.Fprintf(&b, "\n  %s by %s%s at %s\n", w.Kind, w.By, self, w.At.Local().Format(time.DateTime))
		row("reason", w.Reason)
	}
	return b.String()
}

// readLine reads a line from the terminal, and no byte more: what follows is the command's.
// When ctx ends first, nothing was read that is not part of a begun line.
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

// await returns when one of two files can be read, or was closed at its other end.
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

// forgetTyped throws away what was typed before a question was shown: it is no answer to it.
func (a *app) forgetTyped() {
	_ = withFD(a.In, func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }) // no terminal has none
}

// prompt shows a question and reads the answer. threads says that one for the thread can be
// given.
func (a *app) prompt(ctx context.Context, v *approvalView, threads bool) (approval.Kind, string, error) {
	keys := "[y] once  [n] no"
	if threads {
		keys = "[y] once  [t] in this thread  [n] no"
	}
	a.forgetTyped()
	fmt.Fprintf(a.Err, "carrel: the policy asks for your answer before this runs\n\n%s\nRun it?  %s: ", v.text(), keys)
	for range 3 {
		line, err := a.readLine(ctx)
		if err != nil {
			return "", "", fmt.Errorf("cannot read your answer: %w", err)
		}
		switch key := strings.ToLower(strings.TrimSpace(line)); {
		case key == "y":
			return approval.Once, "", nil
		case key == "t" && threads:
			return approval.Thread, "", nil
		case key == "n" || key == "d":
			fmt.Fprint(a.Err, "Why not (may be left empty): ")
			why, err := a.readLine(ctx)
			if err != nil && !errors.Is(err, io.EOF) {
				return "", "", fmt.Errorf("cannot read your reason: %w", err)
			}
			return approval.Deny, strings.TrimSpace(why), nil
		}
		fmt.Fprintf(a.Err, "Answer with one of %s: ", keys)
	}
	return "", "", fmt.Errorf("cannot go on without an answer: %w", errdefs.ErrAborted)
}

// asking starts a command and sees to the answer that it may need. Without one that is
// needed, start fails with the question's id, and is called again once it was answered here;
// or, where nobody is at a terminal, to wait.
func (a *app) asking(ctx context.Context, client *carrel.Client, spec *carrel.Spec, signals <-chan os.Signal, start func(context.Context) error) error {
	wait := spec.ApprovalWait
	spec.ApprovalWait = carrel.DoNotWait
	err := start(ctx)
	name, ok := carrel.ApprovalOf(err)
	if !ok {
		return err
	}
	spec.ApprovalWait = wait
	if wait < 0 {
		return err
	}
	if spec.Source != carrel.SourceUser || !isTerminal(a.In) || !isTerminal(a.Err) {
		fmt.Fprintf(a.Err, "carrel: waiting for a person: approval %s; see it with \"carrel approvals show %s\", answer it with \"carrel approvals approve %s\" or deny\n", name, name, name)
		return a.waiting(ctx, signals, start)
	}
	v, err := a.approval(ctx, name)
	if err != nil {
		return err
	}
	type reply struct {
		kind   approval.Kind
		reason string
		err    error
	}
	got := make(chan reply, 1)
	prompting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		kind, reason, err := a.prompt(prompting, &v, v.Thread != "" && !v.OnceOnly)
		got <- reply{kind, reason, err}
	}()
	go func() {
		if a.untilAnswered(prompting, client, name) == nil {
			stop(errSettled)
		}
	}()
	var r reply
	select {
	case r = <-got:
	case s := <-signals:
		return fmt.Errorf("cannot go on: %v; nothing was run, and approval %s stays open until %s: %w", s, name, v.Until.Local().Format("15:04:05"), errdefs.ErrAborted)
	}
	if errors.Is(r.err, errSettled) {
		fmt.Fprintln(a.Err)
		return a.settled(ctx, name, start)
	}
	if r.err != nil {
		return r.err
	}
	_, err = client.Approvals().AnswerApproval(ctx, connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: name, Kind: string(r.kind), Reason: r.reason, Terminal: true}))
	if connect.CodeOf(err) == connect.CodeFailedPrecondition { // somebody was faster
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

// errSettled ends a prompt whose question is not open any more.
var errSettled = errors.New("it was answered, or its time is over")

// untilAnswered returns nil once a question is open no more. An error says nothing of it.
func (a *app) untilAnswered(ctx context.Context, client *carrel.Client, name string) error {
	err := (&approvalSource{client}).stream(ctx, func(m *carrelv1.Approval) error {
		if m == nil { // it may have been answered before the stream began
			v, err := a.approval(ctx, name)
			if err == nil && v.State != string(approval.Pending) {
				err = errSettled
			}
			return err
		}
		if m.GetId() == name && m.GetState() != string(approval.Pending) {
			return errSettled
		}
		return nil
	})
	if errors.Is(err, errSettled) {
		return nil
	}
	return err
}

// settled goes on as somebody else answered a question, or nobody did.
func (a *app) settled(ctx context.Context, name string, start func(context.Context) error) error {
	v, err := a.approval(ctx, name)
	if err != nil {
		return err
	}
	switch w := v.Answer; approval.State(v.State) {
	case approval.Approved:
		fmt.Fprintf(a.Err, "carrel: %s let it pass\n", w.By)
		return start(ctx)
	case approval.Denied:
		why := ""
		if w.Reason != "" {
			why = ": " + w.Reason
		}
		return fmt.Errorf("cannot go on: %s denied it%s, and nothing was run: %w", w.By, why, errdefs.ErrPermissionDenied)
	case approval.Expired:
		return fmt.Errorf("cannot go on: the time of approval %s was over at %s, and nothing was run; ask for it again: %w", name, v.Until.Local().Format("15:04:05"), errdefs.ErrPermissionDenied)
	case approval.Pending, approval.Spent:
	}
	return fmt.Errorf("cannot go on: approval %s is %s, and nothing was run; ask for it again: %w", name, v.State, errdefs.ErrFailedPrecondition)
}

// waiting calls start, which a signal ends.
func (a *app) waiting(ctx context.Context, signals <-chan os.Signal, start func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-signals: // nil waits for ever: then the signal ends the process
			cancel(fmt.Errorf("cannot go on waiting: %v: %w", s, errdefs.ErrAborted))
		case <-started:
		}
	}()
	return start(ctx)
}
