package hostrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/workspace"
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

// parent is the thread that supervisors are children of. It lives as long as this process: when it ends, the kernel
// believes that the parent has ended (PR_SET_PDEATHSIG in prctl(2)).
var parent = sync.OnceValue(sandbox.NewThread)

// session is one supervisor as its caller has it.
type session struct {
	*plan
	command *exec.Cmd
	control *os.File
	words   chan word
	exited  chan struct{} // closed when the supervisor has ended
	over    bool          // it said its last word
	streams [2]*stream
	// group is the command's control group, nil if there is none, which ungrouped says the reason of.
	group     *cgroup.Step
	ungrouped string
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

func (p *plan) run(ctx context.Context) (res Result, err error) {
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
	s, err := p.start()
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

// start starts the supervisor.
func (p *plan) start() (*session, error) {
	s := &session{plan: p, words: make(chan word, 4), exited: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	fail := func(err error) (*session, error) {
		for _, st := range s.streams {
			if st != nil {
				st.from.Close()
			}
		}
		if s.control != nil {
			s.control.Close()
		}
		return nil, fmt.Errorf("cannot run the command: %w: %w", err, errdefs.ErrUnavailable)
	}
	for i := range s.streams {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		s.streams[i] = &stream{from: r, keeper: keeper{max: p.MaxOutput}, also: []io.Writer{p.Stdout, p.Stderr}[i], done: make(chan struct{})}
		theirs = append(theirs, w)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	unix.SetNonblock(pair[0], true) // so that a close ends a read
	s.control = os.NewFile(uintptr(pair[0]), "control")
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "supervisor"))

	s.command = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{stageName}, Env: []string{}, Dir: "/",
		Stdout: theirs[0], Stderr: theirs[1], ExtraFiles: theirs[2:],
		SysProcAttr: p.attributes(),
	}
	s.takeGroup()
	parent().Do(func() { err = s.born() })
	if err != nil {
		s.dropGroup()
		hint := startHint(err)
		if hint == "" || !p.row.held {
			return fail(err)
		}
		_, _ = fail(err)
		return nil, fmt.Errorf("cannot run the command under %s, so it was not run: %w%s: %w",
			p.row.name, err, hint, errdefs.ErrFailedPrecondition)
	}
	for _, st := range s.streams {
		go st.read()
	}
	go func() {
		_ = s.command.Wait() // it says how the command ended on the socket
		close(s.exited)
	}()
	go s.listen()
	return s, nil
}

// startHint says what an errno of the clone usually means.
func startHint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "; a namespace limit is reached: see /proc/sys/user/max_*_namespaces"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "; the host forbids user namespaces: see carrel doctor"
	case errors.Is(err, unix.EAGAIN):
		return "; a process limit is reached: see ulimit -u"
	}
	return ""
}

// listen hands on what the supervisor says until its end.
func (s *session) listen() {
	defer close(s.words)
	r := lines(s.control)
	for range cap(s.words) { // it says less
		var w word
		if readLine(r, &w) != nil {
			return
		}
		s.words <- w
	}
}

// next waits for what the supervisor says.
func (s *session) next(ctx context.Context) (w word, err error) {
	select {
	case w, ok := <-s.words:
		switch {
		case !ok:
			<-s.exited
			return w, fmt.Errorf("cannot say how the command ended: its supervisor has ended (%s): %w",
				s.command.ProcessState, errdefs.ErrUnavailable)
		case w.Failed != nil:
			s.over = true
			return w, w.Failed.err()
		}
		s.over = w.Ended != nil
		return w, nil
	case <-ctx.Done():
		return w, context.Cause(ctx)
	}
}

// prove has the supervisor take the profile's steps and returns what holds. It is an error if that is not all that is
// required.
func (s *session) prove(ctx context.Context) ([]workspace.Control, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime,
		fmt.Errorf("cannot run the command: its supervisor did not begin within %v: %w", startTime, errdefs.ErrUnavailable))
	defer cancel()
	if err := writeLine(s.control, s.spec); err != nil {
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
	if s.row.held {
		found = append(found, outside(s.command.Process.Pid, &s.spec, s.row)...)
	}
	report := workspace.Report{Controls: s.row.judge(found, s.ungrouped)}
	if unmet := report.Unmet(); len(unmet) > 0 {
		var why []string
		for _, c := range unmet {
			why = append(why, fmt.Sprintf("control %s is %s (%s); to mend it: %s", c.ID, c.State, c.Evidence, c.Remedy))
		}
		return report.Controls, fmt.Errorf("cannot run the command under %s, so it was not run: %s: %w", s.row.name, strings.Join(why, "; "),
			errdefs.ErrFailedPrecondition)
	}
	return report.Controls, writeLine(s.control, order{Go: true})
}

// wait waits for the command's end, and brings it about when ctx ends.
// over ends ctx where the command exceeds its bounds.
func (s *session) wait(ctx context.Context, controls []workspace.Control, over context.CancelCauseFunc) (ended, error) {
	w, err := s.next(ctx)
	if w.Began && err == nil {
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
	_ = s.control.Close() // at which it ends all and itself
	if s.over {
		_ = s.command.Process.Kill() // there is nothing else for it to do
	}
	select {
	case <-s.exited:
	case <-time.After(endTime):
		_ = s.command.Process.Kill() // its namespace ends with it
		<-s.exited
	}
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
