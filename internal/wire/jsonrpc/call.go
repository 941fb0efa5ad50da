package jsonrpc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// call is a request of ours that waits for its reply.
type call struct{ reply chan reply }

type reply struct {
	result []byte
	fds    []*os.File
	err    error
}

// Call sends a request, waits for the reply and decodes its result into result,
// unless that is nil. The caller keeps the fds given and owns the fds returned; on
// an error there are none. When ctx ends first, Call returns its cause at once. The
// peer is not told, and descriptors of a late reply are closed.
//
// An error of the peer is an *Error. If the connection has ended the error is of
// kind unavailable.
func (c *Conn) Call(ctx context.Context, method string, params, result any, fds ...*os.File) ([]*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	k := &call{reply: make(chan reply, 1)}
	id, err := c.register(k)
	if err != nil {
		return nil, err
	}
	e := new(encoder)
	if err := e.call(id, method, params, len(fds)); err != nil {
		c.forget(id, k)
		return nil, err
	}
	if err := c.w.send(ctx, e, fds); err != nil {
		c.forget(id, k)
		return nil, err
	}
	select {
	case r := <-k.reply:
		return r.take(method, result)
	case <-ctx.Done():
		c.forget(id, k)
		return nil, context.Cause(ctx)
	}
}

func (r *reply) take(method string, result any) ([]*os.File, error) {
	if r.err != nil {
		return nil, r.err
	}
	if result != nil {
		if err := strictjson.UnmarshalNewer(r.result, result); err != nil {
			closeAll(r.fds)
			return nil, fmt.Errorf("cannot read the result of %s: %w", method, err)
		}
	}
	return r.fds, nil
}

// Notify sends a notification and returns when it is written. The caller keeps the
// fds.
func (c *Conn) Notify(ctx context.Context, method string, params any, fds ...*os.File) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := new(encoder)
	if err := e.call(0, method, params, len(fds)); err != nil {
		return err
	}
	return c.w.send(ctx, e, fds)
}

func (c *Conn) register(k *call) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return 0, unreachable(c.err)
	case c.peerGone != nil:
		return 0, unreachable(c.peerGone)
	}
	c.nextID++
	c.calls[c.nextID] = k
	return c.nextID, nil
}

// forget gives up on a reply. If the call is no longer listed, its reply is in the channel or
// about to be, and has descriptors to close.
func (c *Conn) forget(id uint64, k *call) {
	c.mu.Lock()
	_, waiting := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	if !waiting {
		r := <-k.reply
		closeAll(r.fds)
	}
}

// deliver passes a reply to the call it answers; lost is why its descriptors could not be taken. A reply to a call that was given
// up is dropped; a reply to an id that was never used is a violation.
func (c *Conn) deliver(e *envelope, fds []*os.File, lost error) *violation {
	n, err := strconv.ParseUint(string(e.id), 10, 64)
	c.mu.Lock()
	known := err == nil && n >= 1 && n <= c.nextID
	k := c.calls[n]
	if k != nil {
		delete(c.calls, n)
	}
	c.mu.Unlock()
	if !known {
		closeAll(fds)
		return invalid("the reply has an id that was never sent")
	}
	if k == nil {
		closeAll(fds)
		return nil
	}
	if lost != nil {
		closeAll(fds)
		k.reply <- reply{err: lost}
		return nil
	}
	if e.errObj != nil {
		err, bad := fromWire(e.errObj)
		if bad != nil {
			k.reply <- reply{err: fmt.Errorf("cannot read the error of a reply: %w", bad)}
			return invalid("the error does not have the form of an error object")
		}
		k.reply <- reply{err: err}
		return nil
	}
	// The reader reuses its buffer.
	k.reply <- reply{result: bytes.Clone(e.result), fds: fds}
	return nil
}
