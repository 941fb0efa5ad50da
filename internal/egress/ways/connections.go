package ways

import (
	"context"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// listWithin bounds a list of open connections.
const listWithin = 3 * time.Second

// Connections returns what a workspace is connected to, and its newest connections that have ended or were refused,
// whose number is greater than after. Those are kept since this daemon began, 64 for each workspace.
//
// Errors: unavailable or the context's where carrel-egress does not tell in time; what has ended is returned too then.
func (w *Ways) Connections(ctx context.Context, name id.Workspace, after uint64) (c workspace.Connections, err error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	err = w.do(ctx, name, "look at", func(ctx context.Context, x *way) error {
		if x.keeper == nil {
			return nil
		}
		open, err := x.keeper.Open(ctx)
		for _, one := range open {
			c.Open = append(c.Open, connection(one))
		}
		return err
	})
	for _, e := range w.recent.After(name, after) {
		one := connection(e.Connection)
		one.Number = e.Number
		c.Ended = append(c.Ended, one)
	}
	return c, err
}

func connection(c egressapi.Connection) workspace.Connection {
	return workspace.Connection{
		Began: c.Began, Duration: time.Duration(c.DurationMS) * time.Millisecond, Way: c.Way, Host: c.Host, Port: c.Port, Address: c.Address,
		Rule: c.Rule, Refused: c.Refused, SentBytes: c.SentBytes, ReceivedBytes: c.ReceivedBytes, Secrets: c.Secrets, Requests: c.Requests,
		Count: c.Count,
	}
}
