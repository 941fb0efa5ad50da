package ports

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// How many connections one workspace, one owner and all together may have, and how many published ports. A connection costs
// the daemon a descriptor and two buffers.
const (
	maxOfWorkspace = 256
	maxOfOwner     = 512
	maxConnections = 1024
	maxPublished   = 128
	maxAllPorts    = 1024
)

// key is what one principal has published.
type key struct {
	by   string
	name id.Workspace
	port int
}

// publication is a port that is open for one principal.
type publication struct {
	key   key
	owner string
	// ctx ends with it, when its connections have ended, and its cause is why.
	ctx context.Context
	end context.CancelCauseFunc
	// ready is closed once it has passed the gate, or err is set; again: another caller may pass.
	ready chan struct{}
	err   error
	again bool

	// The lock of the table guards the rest.
	holders int
	why     error // set once it ends
	expires *time.Timer
	conns   map[*portconn.Conn]struct{}
	total   Done
}

// Done is what the outcome of a publication says: the connections that there were, and their bytes.
type Done struct {
	Connections int64 `json:"connections"`
	BytesIn     int64 `json:"bytes_in"`
	BytesOut    int64 `json:"bytes_out"`
}

// table has what is open. Nothing is waited for under its lock.
type table struct {
	linger time.Duration

	mu     sync.Mutex
	of     map[key]*publication
	owners map[string]int // published ports by owner
	conns  map[string]int // connections by workspace, owner, and all together under ""
	closed bool
}

func newTable(linger time.Duration) *table {
	return &table{linger: linger, of: map[key]*publication{}, owners: map[string]int{}, conns: map[string]int{}}
}

// held holds a publication that is there and open, nil if there is none.
func (t *table) held(k key) *publication {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.of[k]
	if x == nil {
		return nil
	}
	select {
	case <-x.ready:
	default:
		return nil
	}
	x.holders++
	return x
}

// hold holds a publication; pass is called for a new one, and is the gate. Callers at the same time share one.
func (t *table) hold(ctx context.Context, k key, owner string, pass func(*publication) error) (*publication, error) {
	for {
		x, fresh, err := t.place(k, owner)
		if err != nil {
			return nil, err
		}
		if !fresh {
			select {
			case <-x.ready:
			case <-ctx.Done():
				t.leave(x, t.linger)
				return nil, context.Cause(ctx)
			}
			switch {
			case x.err == nil && x.ctx.Err() == nil:
				return x, nil
			case x.err == nil || x.again:
				continue
			}
			return nil, x.err
		}
		if x.err = pass(x); x.err != nil {
			x.again = ctx.Err() != nil // its caller has gone, which says nothing of the others
			t.end(x, x.err)
		}
		close(x.ready)
		if x.err != nil {
			return nil, x.err
		}
		return x, nil
	}
}

// place finds a publication, or makes place for one.
func (t *table) place(k key, owner string) (x *publication, fresh bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false, errClosing
	}
	if x := t.of[k]; x != nil {
		x.holders++
		return x, false, nil
	}
	if n := t.owners[owner]; n >= maxPublished || len(t.of) >= maxAllPorts {
		return nil, false, fmt.Errorf("cannot open port %d of workspace %s: %s has %d ports open of %d, and all together %d of %d; end some, or "+
			"wait for %v after their last connection: %w", k.port, k.name, owner, n, maxPublished, len(t.of), maxAllPorts, t.linger,
			errdefs.ErrResourceExhausted)
	}
	x = &publication{key: k, owner: owner, ready: make(chan struct{}), holders: 1, conns: map[*portconn.Conn]struct{}{}}
	x.ctx, x.end = context.WithCancelCause(context.Background())
	t.of[k] = x
	t.owners[owner]++
	return x, true, nil
}

var errClosing = fmt.Errorf("cannot open a port: the daemon is stopping: %w", errdefs.ErrUnavailable)

// errLeft ends a publication that nobody holds.
var errLeft = fmt.Errorf("cannot reach the port any longer: nobody has it open: %w", errdefs.ErrUnavailable)

// leave lets go of a publication. Nobody's ends after a while, 0 is at once.
func (t *table) leave(x *publication, after time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.holders--
	switch {
	case x.holders > 0 || t.of[x.key] != x:
	case after == 0:
		t.cut(x, errLeft)
		x.end(errLeft)
	default:
		if x.expires != nil {
			x.expires.Stop()
		}
		x.expires = time.AfterFunc(after, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if x.holders == 0 { // so it has no connections: each of them holds it
				t.cut(x, errLeft)
				x.end(errLeft)
			}
		})
	}
}

// end ends a publication and its connections.
func (t *table) end(x *publication, why error) {
	t.mu.Lock()
	all := t.cut(x, why)
	t.mu.Unlock()
	for _, c := range all {
		c.End(why) // which returns when it has been counted
	}
	x.end(why)
}

// cut lets nobody have a publication any more, and returns the connections that are to end. The lock is held.
func (t *table) cut(x *publication, why error) []*portconn.Conn {
	if t.of[x.key] == x {
		delete(t.of, x.key)
		if t.owners[x.owner]--; t.owners[x.owner] == 0 {
			delete(t.owners, x.owner)
		}
	}
	if x.expires != nil {
		x.expires.Stop()
	}
	if x.why == nil {
		x.why = why
	}
	return slices.Collect(maps.Keys(x.conns))
}

// add counts a connection among those of a publication. It may have ended meanwhile.
func (t *table) add(x *publication, c *portconn.Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.why != nil {
		return x.why
	}
	x.conns[c] = struct{}{}
	x.total.Connections++
	return nil
}

// remove takes a connection out that has ended.
func (t *table) remove(x *publication, c *portconn.Conn, in, out int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(x.conns, c)
	x.total.BytesIn += in
	x.total.BytesOut += out
}

// sum is what an ended publication carried.
func (t *table) sum(x *publication) Done {
	t.mu.Lock()
	defer t.mu.Unlock()
	return x.total
}

// enter takes a place for a connection, which done gives back.
func (t *table) enter(name id.Workspace, owner string) (done func(), err error) {
	bounds := []struct {
		who, words string
		most       int
	}{
		{"workspace " + string(name), "workspace " + string(name) + " has", maxOfWorkspace},
		{"owner " + owner, owner + " has", maxOfOwner},
		{"", "there are", maxConnections},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range bounds {
		if t.conns[b.who] >= b.most {
			return nil, fmt.Errorf("cannot connect to a port of workspace %s: %s %d connections to ports open, the most there may be; end some: %w",
				name, b.words, b.most, errdefs.ErrResourceExhausted)
		}
	}
	for _, b := range bounds {
		t.conns[b.who]++
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, b := range bounds {
			if t.conns[b.who]--; t.conns[b.who] == 0 {
				delete(t.conns, b.who)
			}
		}
	}, nil
}

// ClosePorts ends all publications and connections. No other can be opened from then on.
func (t *table) ClosePorts() {
	t.mu.Lock()
	t.closed = true
	all := make([]*publication, 0, len(t.of))
	for _, x := range t.of {
		all = append(all, x)
	}
	t.mu.Unlock()
	for _, x := range all {
		t.end(x, errClosing)
	}
}

// OpenPorts are how many ports are published, and how many connections there are.
func (t *table) OpenPorts() (published, connections int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of), t.conns[""]
}
