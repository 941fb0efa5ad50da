package turns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/service/commands"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// while is a context that ends with the turn.
func (turn *Turn) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if turn.Gone != nil {
		go func() {
			select {
			case <-turn.Gone:
				cancel(fmt.Errorf("cannot go on with the plan: its turn was stopped: %w", errdefs.ErrAborted))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// run runs one step. It passes the gate by itself, as it was judged before.
func (t *Turns) run(ctx context.Context, turn *Turn, s *step) StepResult {
	out := StepResult{Part: s.shown.Part, Target: s.shown.Target, Command: s.shown.Command}
	if err := t.valid(turn.By); err != nil {
		out.Error = errtext.Text(err)
		return out
	}
	switch {
	case s.patch != nil:
		return t.apply(ctx, turn, s, out)
	case s.written != "":
		out.Code, out.Stdout = new(int), t.text([]byte(s.written))
		return out
	}
	var status *execapi.Status
	var stdout, stderr []byte
	var err error
	if s.shown.Background {
		return t.begin(ctx, turn, s, out)
	}
	if s.on.Kind == operation.Workspace {
		var res execapi.ExecResult
		_, res, err = t.cfg.Commands.Run(ctx, turn.By, string(s.on.Name), s.exec)
		status, stdout, stderr, out.Lost = res.Status, res.Stdout, res.Stderr, res.StdoutLost+res.StderrLost
	} else {
		var res runtime.HostResult
		res, err = t.onHost(ctx, turn, s, "")
		status, stdout, stderr, out.Lost, out.Held = res.Status, res.Stdout, res.Stderr, res.Lost, oneLine(res.Held)
	}
	if elsewhere, ok := errors.AsType[*leads](err); ok {
		return t.follow(ctx, turn, s, elsewhere)
	}
	if s.call != nil {
		stdout = s.readable(stdout)
	}
	out.Stdout, out.Stderr = t.text(stdout), t.text(stderr)
	switch {
	case err != nil:
		out.Error = t.cfg.Redact.Text(errtext.Text(err))
	case status == nil:
		out.Error = "it is not known how the command ended"
	default:
		out.Code = &status.Code
		switch {
		case status.TimedOut:
			out.Error = fmt.Sprintf("it did not end within %v, and was ended", time.Duration(s.exec.TimeoutMS)*time.Millisecond)
		case status.OOM:
			out.Error = "the workspace ran out of memory"
		case status.Signal != 0:
			out.Error = fmt.Sprintf("it was ended by signal %d", status.Signal)
		}
	}
	return out
}

// begin begins a step that runs in the background. Its result is at once that it runs.
func (t *Turns) begin(ctx context.Context, turn *Turn, s *step, out StepResult) StepResult {
	var err error
	if s.on.Kind == operation.Workspace {
		e := s.exec
		e.Stdin = execapi.Null
		out.Job, err = t.cfg.Commands.Detach(ctx, turn.By, string(s.on.Name), e, false)
	} else {
		var res runtime.HostResult
		job := id.NewCommand()
		if res, err = t.onHost(ctx, turn, s, job); err == nil && res.Status == nil {
			err = errors.New("it is not known whether it runs; \"carrel job ls\" says")
		}
		out.Job, out.Held = job, oneLine(res.Held)
	}
	if err != nil {
		out.Job, out.Error = "", t.cfg.Redact.Text(errtext.Text(err))
		return out
	}
	crashpoint.Here("daemon.plan.job-begun")
	out.Code = new(int)
	out.Stdout = fmt.Sprintf("it runs in the background as job %s, for at most %v; its output and end are not part of this turn\n", out.Job,
		time.Duration(s.exec.TimeoutMS)*time.Millisecond)
	return out
}

// startTime is how long a client may take to begin a step in the background.
const startTime = 2 * time.Minute

// onHost runs a step on a host, by the process of the user who asked. With a job it only begins there.
func (t *Turns) onHost(ctx context.Context, turn *Turn, s *step, job id.Command) (res runtime.HostResult, err error) {
	op := s.op
	op.ID = job
	limit := startTime
	if job == "" {
		op.ID, limit = id.NewCommand(), time.Duration(s.exec.TimeoutMS)*time.Millisecond
	}
	a, err := t.cfg.Gate.Admit(ctx, operation.Request{By: turn.By, Op: op, On: s.on, Wait: -1, Trace: turn.Trace}, nil)
	if err != nil {
		return res, err
	}
	return res, a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		ctx, cancel := late(ctx, limit)
		defer cancel()
		by := turn.Hosts()
		if by == nil {
			return nil, fmt.Errorf("cannot run the step on %s: who served it has gone: %w", s.shown.Target, errdefs.ErrUnavailable)
		}
		res, err = by.RunOn(ctx, runtime.HostCommand{
			Remote: s.on.Kind == operation.Remote, Name: string(s.on.Name), Argv: s.exec.Argv, ReadOnly: s.shown.ReadOnly,
			Timeout: time.Duration(s.exec.TimeoutMS) * time.Millisecond, MaxOutput: MaxOutput, Path: s.path(), Job: job,
			Limits: t.cfg.Limits, Profile: s.shown.Profile,
		})
		how := held{Profile: s.shown.Profile, Held: oneLine(res.Held), As: s.shown.As}
		if job != "" { // it was started, as a detached command: how it ends is not known here
			return how, err
		}
		if err == nil && s.path() != "" && res.Path != "" && res.Status == nil {
			err = &leads{from: s.path(), to: res.Path}
		}
		return endedOn{commands.Ended{Status: res.Status}, how}, err
	})
}

// held is what the outcome of a step on a host says of how it ran.
type held struct {
	// Profile is the profile that it ran under on the user's machine, and Held what of it was verified.
	Profile string `json:"profile,omitempty"`
	Held    string `json:"held,omitempty"`
	As      string `json:"as,omitempty"`
}

// endedOn is what the outcome of a step on a host says.
type endedOn struct {
	commands.Ended
	held
}

// grace is how long after its time the client that serves a step may take to say how it ended.
const grace = time.Minute

// late ends what takes longer than it may.
func late(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit+grace, fmt.Errorf("cannot wait any longer: the client that serves it has said nothing for %v "+
		"after its time: %w", grace, errdefs.ErrUnavailable))
}

// half is how much of the end of an output is left out that has no line end where it was cut: half a secret would not be
// found in it.
const half = 512

// text is output as an agent is told it: UTF-8, without secrets.
func (t *Turns) text(b []byte) string {
	if len(b) >= MaxOutput {
		b = b[:MaxOutput]
		if i := bytes.LastIndexByte(b, '\n'); i >= MaxOutput/2 {
			b = b[:i+1]
		} else {
			b = b[:MaxOutput-half]
		}
	}
	return t.cfg.Redact.Text(strings.ToValidUTF8(string(b), "\uFFFD"))
}

// fit shortens the outputs of a reply until all of them together are short enough. Those of the last steps stay longest.
func fit(r *Reply) {
	left := maxReply
	for i := len(r.Steps) - 1; i >= 0; i-- {
		for _, s := range []*string{&r.Steps[i].Stderr, &r.Steps[i].Stdout} {
			if short := shorten(*s, left); len(short) < len(*s) {
				r.Steps[i].Lost += int64(len(*s) - len(short))
				*s = short
			}
			left -= len(*s)
		}
	}
}

// shorten is the beginning of a text, of whole characters.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := max(most, 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
