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
func (a *app) readLine() (string, error) {
	var line []byte
	one := make([]byte, 1)
	for len(line) < 4096 {
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

// prompt shows a question and reads the answer. threads says that one for the thread can be
// given.
func (a *app) prompt(v *approvalView, threads bool) (approval.Kind, string, error) {
	keys := "[y] once  [n] no"
	if threads {
		keys = "[y] once  [t] in this thread  [n] no"
	}
	fmt.Fprintf(a.Err, "carrel: the policy asks for your answer before this runs\n\n%s\nRun it?  %s: ", v.text(), keys)
	for range 3 {
		line, err := a.readLine()
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
			why, err := a.readLine()
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
	go func() {
		kind, reason, err := a.prompt(&v, v.Thread != "" && !v.OnceOnly)
		got <- reply{kind, reason, err}
	}()
	var r reply
	select {
	case r = <-got:
	case s := <-signals:
		return fmt.Errorf("cannot go on: %v; nothing was run, and approval %s stays open until %s: %w", s, name, v.Until.Local().Format("15:04:05"), errdefs.ErrAborted)
	}
	if r.err != nil {
		return r.err
	}
	if _, err := client.Approvals().AnswerApproval(ctx, connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: name, Kind: string(r.kind), Reason: r.reason, Terminal: true})); err != nil {
		return err
	}
	if r.kind == approval.Deny {
		return fmt.Errorf("cannot go on: you denied it, and nothing was run: %w", errdefs.ErrPermissionDenied)
	}
	return start(ctx)
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
