package carrel

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/fdapi/client"
)

// guarded ends requests to a daemon on a Unix socket that has answered nothing at all for as long as patience. Over TLS the pings of
// HTTP/2 do that.
type guarded struct {
	http.RoundTripper
	socket   string
	patience time.Duration
}

func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := client.Guard(g.socket, g.patience, func(err error) { cancel(&reachError{err}) })
	res, err := g.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		err = lostOr(ctx, err)
		cancel(nil)
		return nil, err
	}
	res.Body = &guardedBody{res.Body, ctx, func() {
		stop()
		cancel(nil)
	}}
	return res, nil
}

// lostOr is err, or why the daemon was given up before.
func lostOr(ctx context.Context, err error) error {
	if lost, ok := errors.AsType[*reachError](context.Cause(ctx)); ok && err != nil && !errors.Is(err, io.EOF) {
		return lost
	}
	return err
}

// guardedBody is an answer that is guarded until it is closed.
type guardedBody struct {
	io.ReadCloser
	ctx  context.Context
	done func()
}

func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, lostOr(b.ctx, err)
}

func (b *guardedBody) Close() error {
	b.done()
	return b.ReadCloser.Close()
}
