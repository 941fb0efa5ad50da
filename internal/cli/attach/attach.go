// Package attach is what the command line does beside the streams of a command that it waits for: it passes signals
// on, and says how the command ended.
//
// It must stay small: the front of the command line starts with it.
package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Signals catches the signals that are passed on to the command. It is called before the
// command starts, so that none of them ends this process instead. It is not undone: the process
// ends with the command, and undoing it costs more than the start of the command.
func Signals(terminal bool) <-chan os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
	if terminal {
		all = append(all, syscall.SIGWINCH)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, all...)
	return signals
}

// Interrupt is the error of what a signal ended.
type Interrupt struct{ by os.Signal }

func (i *Interrupt) Error() string { return i.by.String() }

// Unwrap makes it an aborted error.
func (i *Interrupt) Unwrap() error { return errdefs.ErrAborted }

// Signal is its number.
func (i *Interrupt) Signal() int { return int(i.by.(syscall.Signal)) }

// Interruptible calls f, whose context a signal ends: until a command is there to pass it on to, a signal is for
// this process. That a window has another size ends nothing. A nil channel has no signals: they end the process.
func Interruptible(ctx context.Context, signals <-chan os.Signal, f func(context.Context) error) error {
	if signals == nil {
		return f(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	done, caught := make(chan struct{}), make(chan *Interrupt, 1)
	go func() {
		by := next(signals, done)
		if by != nil {
			end(by)
		}
		caught <- by
	}()
	err := f(ctx)
	close(done)
	by := <-caught
	if by == nil {
		return err
	}
	if bare, _ := err.(*Interrupt); bare == nil && errors.Is(err, error(by)) { //nolint:errorlint // a bare one says too little
		return err
	}
	// Also if f was done just then.
	return fmt.Errorf("cannot go on: %w; \"carrel ps\" and \"carrel approvals list\" show what is under way", by)
}

// next returns the first signal that ends what waits, nil once done is closed.
func next(signals <-chan os.Signal, done <-chan struct{}) *Interrupt {
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return &Interrupt{s}
			}
		case <-done:
			return nil
		}
	}
}

// deliverWithin is how long a signal may take to reach the command.
const deliverWithin = 5 * time.Second

// PassOn passes signals on to a command: send sends one, and resize tells it that the window has another size. One that
// carrel does not take in time ends the wait for the command, so that whoever presses Ctrl-C never waits for a daemon
// that answers nothing.
func PassOn(
	ctx context.Context, signals <-chan os.Signal, send func(ctx context.Context, signal int) error, resize func(context.Context),
	giveUp context.CancelCauseFunc,
) {
	for s := range signals {
		if s == syscall.SIGWINCH {
			resize(ctx)
			continue
		}
		timed, cancel := context.WithTimeout(ctx, deliverWithin)
		err := send(timed, int(s.(syscall.Signal))) // it may just have ended
		if err != nil && ctx.Err() == nil && timed.Err() != nil {
			giveUp(fmt.Errorf("cannot pass %v on to the command: carrel has not answered for %v; the command may still run, and is hung up when "+
				"carrel answers again; see \"carrel doctor\": %w", s, deliverWithin, errdefs.ErrUnavailable))
		}
		cancel()
	}
}

// End is how a command ended.
type End struct {
	Code          int
	TimedOut, OOM bool
	Stuck         int
}

// Said is what a person is told of an end, "" if the code says it all. timeout is the one that was asked for.
func (e End) Said(workspace string, timeout time.Duration) (text string) {
	switch {
	case e.TimedOut:
		text = fmt.Sprintf("carrel: the command was ended after its timeout of %s\n", timeout)
	case e.OOM && e.Code != 0:
		text = "carrel: the workspace ran out of memory while the command ran; see \"carrel inspect\" for its limit\n"
	}
	if e.Stuck > 0 {
		text += fmt.Sprintf("carrel: KILL did not end %d of the command's processes: the kernel waits for a file system or a device "+
			"that does not answer, and they end when it does; \"carrel stop %s\" names them and what to do\n", e.Stuck, workspace)
	}
	return text
}

// The exit codes for failures of carrel's own while it runs a command: those of shells and container tools.
const (
	OwnFailure    = 125
	NotExecutable = 126
	NotFound      = 127
)

// Failure is the exit code for an error. command: it is about the command itself and not about the workspace.
func Failure(err error, command bool) int {
	switch {
	case !command:
		return OwnFailure
	case errdefs.IsNotFound(err):
		return NotFound
	default:
		return NotExecutable
	}
}
