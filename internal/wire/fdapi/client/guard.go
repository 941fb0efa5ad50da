package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Patience is how long a daemon may answer nothing at all, because it was stopped or its host hangs, before a call to it fails.
const Patience = 2 * time.Minute

// Guard watches the daemon behind a socket while a call has no answer, and calls lost, once, when the daemon has answered nothing
// for as long as patience. A call that takes long is none that was lost: after a quarter of patience, and again and again, the
// daemon is asked something that takes no right and leaves no trace, which it answers whatever it does. A daemon that has ended or
// refuses is not lost: the connection of the call tells that.
func Guard(socket string, patience time.Duration, lost func(error)) (stop func()) {
	g := &guard{socket: socket, patience: patience, lost: lost}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(patience/4, g.look)
	return g.stop
}

// guarded is ctx until the daemon behind a socket is lost, which is its cause then.
func guarded(ctx context.Context, socket string, patience time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := Guard(socket, patience, cancel)
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

type guard struct {
	socket   string
	patience time.Duration
	lost     func(error)
	ctx      context.Context
	cancel   context.CancelFunc

	mu    sync.Mutex
	timer *time.Timer
}

func (g *guard) stop() {
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer.Stop()
}

func (g *guard) look() {
	timed, cancel := context.WithTimeout(g.ctx, g.patience-g.patience/4)
	defer cancel()
	err := answers(timed, g.socket)
	g.mu.Lock()
	stopped := g.ctx.Err() != nil
	if err == nil && !stopped {
		g.timer.Reset(g.patience / 4)
	}
	g.mu.Unlock()
	if err != nil && !stopped {
		g.lost(NoAnswer("unix://"+g.socket, g.patience))
	}
}

// NoAnswer is the error for a daemon that has not answered for some time.
func NoAnswer(host string, patience time.Duration) error {
	return fmt.Errorf("cannot get an answer from carrel at %s: nothing came for %v, and it may still do what it was asked; see "+
		"\"carrel doctor\" and its log: %w", host, patience.Round(time.Second), errdefs.ErrUnavailable)
}

// question is answered by the daemon's HTTP server itself (RFC 9110, 9.3.7), for everybody.
const question = "OPTIONS * HTTP/1.1\r\nHost: carrel\r\nConnection: close\r\n\r\n"

// answers asks the daemon behind a socket for any sign of life. The error is that of ctx if there was none until its end.
func answers(ctx context.Context, socket string) error {
	for {
		conn, err := Dial(ctx, socket)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return ctx.Err()
		case errors.Is(err, syscall.EAGAIN): // nobody has taken the last connections
			continue
		case err != nil:
			return nil //nolint:nilerr // there is no daemon, or none for this user: the call itself is told
		}
		return replies(ctx, conn)
	}
}

func replies(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_, err := io.WriteString(conn, question)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return nil // the end of the connection is a sign too
}
