package jsonrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
)

// incoming is a request or notification of the peer that is being handled.
type incoming struct {
	Request
	id []byte // as it stands on the wire; empty for a notification
	// answered: the reply is about to be written. The peer may use the id again once it has
	// the reply, which can be before the write returns. Guarded by Conn.mu.
	answered bool
}

// serve runs the handler for one message and writes the reply.
func (c *Conn) serve(in *incoming) {
	ctx := c.ctx
	if c.cfg.Timeout != nil {
		if d := c.cfg.Timeout(in.Method); d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, d,
				fmt.Errorf("cannot finish %s: it took longer than %v: %w", in.Method, d, context.DeadlineExceeded))
			defer cancel()
		}
	}
	result, fds, err := c.cfg.Handler(ctx, c, &in.Request)
	closeAll(in.FDs)
	if result == any(Later) && err == nil {
		return
	}
	c.respond(in, result, fds, err)
}

// respond writes the reply and removes the message from those in flight.
func (c *Conn) respond(in *incoming, result any, fds []*os.File, err error) {
	if !in.Notification {
		c.mu.Lock()
		in.answered = true
		c.mu.Unlock()
		if err == nil {
			e := new(encoder)
			err = e.reply(in.id, "result", result, len(fds))
			if err == nil {
				if err = c.w.send(context.Background(), e, fds); err != nil && errdefs.IsResourceExhausted(err) {
					err = undelivered(in.Method, err)
				}
			} else {
				err = fmt.Errorf("cannot write the result of %s: %w: %w", in.Method, err, errdefs.ErrInternal)
			}
		}
		// The peer waits for an answer, also if the result cannot be sent.
		if err != nil {
			_ = c.answerError(in.id, err)
		}
	}
	closeAll(fds)
	if _, ok := errors.AsType[*hangup](err); ok {
		c.end(err)
	}
	c.finished(in)
}

// finished removes a message from those in flight.
func (c *Conn) finished(in *incoming) {
	c.mu.Lock()
	for i, o := range c.inFlight {
		if o == in {
			last := len(c.inFlight) - 1
			c.inFlight[i] = c.inFlight[last]
			c.inFlight[last] = nil
			c.inFlight = c.inFlight[:last]
			break
		}
	}
	last := c.draining && len(c.inFlight) == 0
	c.mu.Unlock()
	<-c.slots
	if last {
		c.end(io.EOF)
	}
}

// answer refuses one request and goes on with the connection.
func (c *Conn) answer(id []byte, bad *violation) error {
	return c.answerError(id, bad.err())
}

func (c *Conn) answerError(id []byte, err error) error {
	e := new(encoder)
	if bad := e.reply(id, "error", toWire(err), 0); bad != nil {
		return bad
	}
	return c.w.send(context.Background(), e, nil)
}
