package hostrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// parent is the thread that supervisors are children of. It lives as long as this process: when it ends, the kernel
// believes that the parent has ended (PR_SET_PDEATHSIG in prctl(2)).
var parent = sync.OnceValue(sandbox.NewThread)

// supervisor is a process that holds one command. It waits for what to run once it was started.
type supervisor struct {
	row     *row
	command *exec.Cmd
	control *os.File
	// outputs are what is read of the command's streams.
	outputs [2]*os.File
	words   chan word
	exited  chan struct{} // closed when it has ended
	over    bool          // it said its last word
	// group is its control group, nil if there is none, which ungrouped says the reason of.
	group     *cgroup.Step
	ungrouped string
}

// start starts a supervisor for a profile.
func start(program *Program, r *row) (*supervisor, error) {
	s := &supervisor{row: r, words: make(chan word, 4), exited: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	fail := func(err error) (*supervisor, error) {
		s.closeFiles()
		return nil, fmt.Errorf("cannot run the command: %w: %w", err, errdefs.ErrUnavailable)
	}
	for i := range s.outputs {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		s.outputs[i] = r
		theirs = append(theirs, w)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	unix.SetNonblock(pair[0], true) // so that a close ends a read
	s.control = os.NewFile(uintptr(pair[0]), "control")
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "supervisor"))
	if s.command, err = program.Supervisor(stageName, theirs[2:]...); err != nil {
		return fail(err)
	}
	s.command.Stdout, s.command.Stderr, s.command.SysProcAttr = theirs[0], theirs[1], attributes(r)
	s.takeGroup()
	parent().Do(func() { err = s.born() })
	if err != nil {
		s.dropGroup()
		hint := startHint(err)
		if hint == "" || !r.held {
			return fail(err)
		}
		_, _ = fail(err)
		return nil, fmt.Errorf("cannot run the command under %s, so it was not run: %w%s: %w", r.name, err, hint, errdefs.ErrFailedPrecondition)
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
func (s *supervisor) listen() {
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
func (s *supervisor) next(ctx context.Context) (w word, err error) {
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

// lives reports whether the supervisor has not ended.
func (s *supervisor) lives() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// end ends the supervisor, if it has not ended.
func (s *supervisor) end() {
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
}

// discard ends a supervisor that was given nothing to run.
func (s *supervisor) discard() {
	s.end()
	s.dropGroup()
	s.closeFiles()
}

func (s *supervisor) closeFiles() {
	for _, f := range append(s.outputs[:], s.control) {
		if f != nil {
			f.Close()
		}
	}
}
