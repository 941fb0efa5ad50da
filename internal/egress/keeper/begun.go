package keeper

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// begun are the connections of one process that have got through and not ended. What a process that was taken over can make it
// hold is bounded. It belongs to who reads the process.
type begun struct {
	open map[uint64]*egressapi.Connection
}

// add takes a connection. The error ends the process: it breaks what package egressapi promises.
func (b *begun) add(c *egressapi.Connection) error {
	switch {
	case c.ID == 0 || b.open[c.ID] != nil:
		return fmt.Errorf("it tells of a connection twice: %w", errdefs.ErrInvalidArgument)
	case len(b.open) >= egressapi.MostOpen:
		return fmt.Errorf("it tells of more connections than it can have: %w", errdefs.ErrInvalidArgument)
	case b.open == nil:
		b.open = map[uint64]*egressapi.Connection{}
	}
	b.open[c.ID] = c
	return nil
}

// moved takes what has passed.
func (b *begun) moved(all []egressapi.Moved) {
	for _, m := range all {
		if c := b.open[m.ID]; c != nil {
			c.SentBytes, c.ReceivedBytes = max(c.SentBytes, m.Sent), max(c.ReceivedBytes, m.Received)
		}
	}
}

// ended takes the end of a connection, and returns what is told of it.
func (b *begun) ended(c egressapi.Connection) egressapi.Connection {
	delete(b.open, c.ID)
	c.ID = 0
	return c
}

// WayEnd is the Way of what is told of the end of a process.
const WayEnd = "end"

// lost tells what was open when the process ended, and of the end itself if nobody asked for it. requests is how many requests to
// models were under way.
func (b *begun) lost(requests int, tell bool, since time.Time, connection func(egressapi.Connection)) {
	now := time.Now()
	if tell {
		connection(egressapi.Connection{
			Began: since, DurationMS: now.Sub(since).Milliseconds(), Way: WayEnd, Count: 1,
			Refused: fmt.Sprintf("carrel-egress ended by itself, with %d connections open and %d requests to models under way", len(b.open),
				requests),
		})
	}
	all := slices.SortedFunc(maps.Values(b.open), func(x, y *egressapi.Connection) int { return cmp.Compare(x.ID, y.ID) })
	for _, c := range all {
		end := b.ended(*c)
		end.DurationMS, end.Count = now.Sub(end.Began).Milliseconds(), 1
		end.Refused = "carrel-egress ended before the connection to " + net.JoinHostPort(end.Host, strconv.Itoa(int(end.Port))) +
			" did; more bytes may have passed than are counted"
		connection(end)
	}
}
