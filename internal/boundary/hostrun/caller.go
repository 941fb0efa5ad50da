package hostrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// stageName is argv[0] of the supervisor.
const stageName = "carrel-hostrun"

const (
	// startTime is how long the supervisor may take until it has proved the controls.
	startTime = 20 * time.Second
	// endTime is how long it may take beyond the grace until all has ended; after that it is ended itself.
	endTime = killTime + 5*time.Second
	// drainTime is how long output is waited for that a process holds which could not be ended.
	drainTime = 500 * time.Millisecond
)

// session is one command with its supervisor, as the caller has them.
type session struct {
	*plan
	*supervisor
	runner  *Runner
	streams [2]*stream
}

// stream is one of the command's outputs.
type stream struct {
	from *os.File
	keeper
	also io.Writer // nil if nobody else gets it
	done chan struct{}
}

func (s *stream) read() {
	defer close(s.done)
	b := make([]byte, 32<<10)
	for {
		n, err := s.from.Read(b)
		_, _ = s.Write(b[:n]) // it keeps, and cannot fail
		if s.also != nil && n > 0 {
			_, _ = s.also.Write(b[:n]) // it takes all it is given
		}
		if err != nil {
			return
		}
	}
}

func (p *plan) run(ctx context.Context, r *Runner) (res Result, err error) {
	if err := ctx.Err(); err != nil {
		return res, fmt.Errorf("cannot run the command: %w", context.Cause(ctx))
	}
	if p.row.writes {
		remove, err := p.protect()
		defer func() { err = errors.Join(err, remove()) }()
		if err != nil {
			return res, err
		}
	}
	s, err := p.begin(r)
	if err != nil {
		return res, err
	}
	defer func() {
		s.end()
		res.Stdout, res.Stderr = s.streams[0].output(), s.streams[1].output()
		if err == nil {
			res.Hint = p.hint(res)
		}
	}()
	if res.Controls, err = s.prove(ctx); err != nil {
		return res, err
	}
	ctx, over := context.WithCancelCause(ctx)
	defer over(nil)
	timed, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	e, err := s.wait(timed, res.Controls, over)
	// The kernel may have ended the supervisor, which then says nothing.
	if full := s.filled(); full != nil && (ctx.Err() == nil || errors.Is(context.Cause(ctx), errExceeded)) {
		return res, fmt.Errorf("the command was ended before its time: %w", full)
	}
	if err != nil {
		return res, err
	}
	res.Code, res.Signal, res.Left = e.Code, unix.Signal(e.Signal), e.Left
	if e.Stopped && ctx.Err() != nil {
		return res, fmt.Errorf("the command was ended before its time: %w", context.Cause(ctx))
	}
	res.TimedOut = e.Stopped
	return res, nil
}

// begin takes a supervisor for the command. Its streams are read from now on.
func (p *plan) begin(r *Runner) (*session, error) {
	v, err := r.take(p.row)
	if err != nil {
		return nil, err
	}
	s := &session{plan: p, supervisor: v, runner: r}
	s.boundGroup(&s.spec)
	for i := range s.streams {
		s.streams[i] = &stream{
			from: v.outputs[i], keeper: keeper{max: p.MaxOutput}, also: []io.Writer{p.Stdout, p.Stderr}[i], done: make(chan struct{}),
		}
		go s.streams[i].read()
	}
	return s, nil
}

// prove has the supervisor take the profile's steps and returns what holds. It is an error if that is not all that is
// required.
func (s *session) prove(ctx context.Context) ([]workspace.Control, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime,
		fmt.Errorf("cannot run the command: its supervisor did not begin within %v: %w", startTime, errdefs.ErrUnavailable))
	defer cancel()
	if err := writeLine(s.control, s.spec); err != nil {
		if _, said := s.next(ctx); s.over { // why it reads nothing
			return nil, said
		}
		return nil, fmt.Errorf("cannot tell the supervisor what to run: %w: %w", err, errdefs.ErrUnavailable)
	}
	grouped := s.grouped() // while the supervisor takes its steps: it was born in its group
	w, err := s.next(ctx)
	if err != nil {
		return nil, err
	}
	if w.Findings == nil {
		return nil, fmt.Errorf("cannot run the command: its supervisor said something else than what holds: %w", errdefs.ErrInternal)
	}
	found := append(*w.Findings, grouped...)
	if s.plan.row.held {
		found = append(found, outside(s.command.Process.Pid, &s.spec, s.plan.row)...)
	}
	report := workspace.Report{Controls: s.plan.row.judge(found, s.ungrouped)}
	if unmet := report.Unmet(); len(unmet) > 0 {
		var why []string
		for _, c := range unmet {
			why = append(why, fmt.Sprintf("control %s is %s (%s); to mend it: %s", c.ID, c.State, c.Evidence, c.Remedy))
		}
		return report.Controls, fmt.Errorf("cannot run the command under %s, so it was not run: %s: %w", s.plan.row.name, strings.Join(why, "; "),
			errdefs.ErrFailedPrecondition)
	}
	return report.Controls, writeLine(s.control, order{Go: true})
}

// wait waits for the command's end, and brings it about when ctx ends.
// over ends ctx where the command exceeds its bounds.
func (s *session) wait(ctx context.Context, controls []workspace.Control, over context.CancelCauseFunc) (ended, error) {
	w, err := s.next(ctx)
	if w.Began && err == nil {
		s.runner.prepare() // beside the command
		if s.spec.Memory > 0 || s.spec.Processes > 0 {
			go s.watch(ctx, over)
		}
		if s.Began != nil {
			s.Began(controls)
		}
		w, err = s.next(ctx)
	}
	if err != nil && ctx.Err() != nil && w.Failed == nil {
		_ = writeLine(s.control, order{Stop: true, Now: errors.Is(context.Cause(ctx), errExceeded)}) // if it has ended, it said so
		late, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.Grace+endTime,
			fmt.Errorf("cannot say how the command ended: its supervisor does not answer, and was ended: %w", errdefs.ErrUnavailable))
		defer cancel()
		if w, err = s.next(late); w.Began && err == nil { // its time was over meanwhile
			w, err = s.next(late)
		}
	}
	if err != nil {
		return ended{}, err
	}
	if w.Ended == nil {
		return ended{}, fmt.Errorf("cannot say how the command ended: its supervisor said something else: %w", errdefs.ErrInternal)
	}
	return *w.Ended, nil
}

// end ends the supervisor, if it has not ended, and reads the rest of the output.
func (s *session) end() {
	defer s.dropGroup()
	s.supervisor.end()
	late := time.After(drainTime)
	for _, st := range s.streams {
		select {
		case <-st.done:
		case <-late: // somebody who was left holds it
			late = time.After(0)
		}
		st.from.Close()
		<-st.done
	}
}

// asking are programs that ask for a password.
var asking = []string{"sudo", "su", "doas", "pkexec", "ssh", "runuser"}

// hint says what the failure of a command probably means.
func (p *plan) hint(res Result) string {
	program := filepath.Base(p.Argv[0])
	if res.Code == 0 || res.TimedOut || !slices.Contains(asking, program) {
		return ""
	}
	if p.row.held && program != "ssh" {
		return program + " gains no rights under profile " + string(p.row.name) + ", which forbids new privileges; use another profile"
	}
	for _, sign := range []string{"password", "terminal", "askpass", "Authentication"} {
		if strings.Contains(res.Stderr.Text(), sign) {
			return program + " would ask for a password, and there is nobody and no terminal to answer; " +
				"use sudo -n with a rule NOPASSWD, or a key"
		}
	}
	return ""
}
