package cli

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

// forwarded catches the signals that are passed on to the command. It is called before the
// command starts, so that none of them ends this process instead. It is not undone: the process
// ends with the command, and undoing it costs more than the start of the command.
func forwarded(terminal bool) <-chan os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
	if terminal {
		all = append(all, syscall.SIGWINCH)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, all...)
	return signals
}

// interrupt is the error of what a signal ended.
type interrupt struct{ by os.Signal }

func (i *interrupt) Error() string { return i.by.String() }

// Unwrap makes it an aborted error.
func (i *interrupt) Unwrap() error { return errdefs.ErrAborted }

// interruptible calls f, whose context a signal ends: until a command is there to pass it on to, a signal is for
// this process. That a window has another size ends nothing. A nil channel has no signals: they end the process.
func interruptible(ctx context.Context, signals <-chan os.Signal, f func(context.Context) error) error {
	if signals == nil {
		return f(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	done, caught := make(chan struct{}), make(chan *interrupt, 1)
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
	if bare, _ := err.(*interrupt); bare == nil && errors.Is(err, error(by)) { //nolint:errorlint // a bare one says too little
		return err
	}
	// Also if f was done just then.
	return fmt.Errorf("cannot go on: %w; \"carrel ps\" and \"carrel approvals list\" show what is under way", by)
}

// next returns the first signal that ends what waits, nil once done is closed.
func next(signals <-chan os.Signal, done <-chan struct{}) *interrupt {
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return &interrupt{s}
			}
		case <-done:
			return nil
		}
	}
}

// deliverWithin is how long a signal may take to reach the command.
const deliverWithin = 5 * time.Second

// passOn passes signals on to a command. One that carrel does not take in time ends the wait for the command, so that
// whoever presses Ctrl-C never waits for a daemon that answers nothing.
func (a *app) passOn(ctx context.Context, cmd attended, signals <-chan os.Signal, giveUp context.CancelCauseFunc) {
	for s := range signals {
		if s == syscall.SIGWINCH {
			_ = cmd.Resize(ctx, a.windowSize()) // the next one corrects it
			continue
		}
		timed, cancel := context.WithTimeout(ctx, deliverWithin)
		err := cmd.Signal(timed, int(s.(syscall.Signal))) // it may just have ended
		if err != nil && ctx.Err() == nil && timed.Err() != nil {
			giveUp(fmt.Errorf("cannot pass %v on to the command: carrel has not answered for %v; the command may still run, and is hung up when "+
				"carrel answers again; see \"carrel doctor\": %w", s, deliverWithin, errdefs.ErrUnavailable))
		}
		cancel()
	}
}
