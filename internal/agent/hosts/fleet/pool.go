package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"
)

// maxSessions bounds the steps that run at once over one connection. sshd allows ten sessions by default (MaxSessions), and
// each step may need a second one to be killed.
const maxSessions = 5

// pool holds one connection for each way to a host. A connection is made outside the lock, once for all who want it.
type pool struct {
	mu      sync.Mutex
	all     map[string]*link // those that new steps may use, made or being made
	open    int              // those of all, and those that are retired and not yet closed
	most    int
	idle    time.Duration
	closed  bool
	ctx     context.Context // ends with the client
	cancel  context.CancelFunc
	running sync.WaitGroup
	files   hostFiles
}

// link is one connection. A link that is retired is used by nobody new, and closes when its last user leaves.
type link struct {
	key      string
	sessions chan struct{}

	ready  chan struct{} // closed when it is made, or cannot be
	cancel context.CancelFunc
	gone   chan struct{} // closed when a made connection has ended

	// Set before ready is closed.
	err    error
	client *ssh.Client
	banner []byte
	via    *link

	// Under the lock of the pool.
	users   int
	retired bool
	since   time.Time // of being idle
	timer   *time.Timer
}

func (p *pool) init(most int, idle time.Duration) {
	p.all, p.most, p.idle = map[string]*link{}, most, idle
	p.ctx, p.cancel = context.WithCancel(context.Background())
}

// close ends every connection and waits for the goroutines of all.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
}

// enter counts a run, for close to wait for. Call what it returns at the end.
func (p *pool) enter() (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("the client is closed: %w", errdefs.ErrFailedPrecondition)
	}
	p.running.Add(1)
	return p.running.Done, nil
}

// acquire returns a connection to a host, which is made if there is none. Give it back with release.
func (p *pool) acquire(ctx context.Context, t *target) (*link, error) {
	key := t.key()
	for try := 1; ; try++ {
		l, err := p.join(key, t)
		if err != nil {
			return nil, err
		}
		select {
		case <-l.ready:
		case <-ctx.Done():
			p.release(l)
			return nil, fmt.Errorf("cannot connect to %s: %w", t.name, context.Cause(ctx))
		}
		if l.err != nil {
			p.release(l)
			return nil, l.err
		}
		select {
		case <-l.gone: // it ended before anything was sent over it
			p.retire(l)
			p.release(l)
			if try < 3 {
				continue
			}
			return nil, fmt.Errorf("cannot connect to %s: it ends every connection after the login: %w", t.name, errdefs.ErrUnavailable)
		default:
		}
		return l, nil
	}
}

// join counts the caller as a user of the connection with a key, and begins to make it if there is none.
func (p *pool) join(key string, t *target) (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed { // while the caller was on its way
		return nil, fmt.Errorf("cannot connect to %s: the client is closed: %w", t.name, errdefs.ErrFailedPrecondition)
	}
	if l := p.all[key]; l != nil {
		l.users++
		if l.timer != nil {
			l.timer.Stop()
			l.timer = nil
		}
		return l, nil
	}
	if p.open >= p.most && !p.evict() {
		return nil, fmt.Errorf("cannot connect to %s: %d connections are open and in use; run on fewer hosts at once: %w",
			t.name, p.open, errdefs.ErrResourceExhausted)
	}
	ctx, cancel := context.WithTimeout(p.ctx, t.timeout*time.Duration(t.hops()))
	l := &link{
		key: key, users: 1, cancel: cancel, sessions: make(chan struct{}, maxSessions),
		ready: make(chan struct{}), gone: make(chan struct{}),
	}
	p.all[key] = l
	p.open++
	p.running.Go(func() { p.run(ctx, l, t) })
	return l, nil
}

// evict retires the connection that has been idle for longest; false if none is idle. The caller holds the lock.
func (p *pool) evict() bool {
	var oldest *link
	for _, l := range p.all {
		if l.users == 0 && l.client != nil && (oldest == nil || l.since.Before(oldest.since)) {
			oldest = l
		}
	}
	if oldest == nil {
		return false
	}
	p.drop(oldest)
	return true
}

// drop retires a link, and ends it if nobody uses it. The caller holds the lock.
func (p *pool) drop(l *link) {
	if !l.retired {
		l.retired = true
		delete(p.all, l.key)
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.users == 0 {
		l.cancel()
	}
}

// retire keeps new users from a connection.
func (p *pool) retire(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(l)
}

// release ends a use. A connection that is not wanted any more ends, and one without users ends when it has been idle.
func (p *pool) release(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	select {
	case <-l.ready:
	default: // nobody waits for it any more
		p.drop(l)
		return
	}
	if l.retired {
		l.cancel()
		return
	}
	l.since = time.Now()
	l.timer = time.AfterFunc(p.idle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.users == 0 {
			p.drop(l)
		}
	})
}

// run makes a connection, keeps it alive, and ends with it. ctx bounds the making only.
func (p *pool) run(ctx context.Context, l *link, t *target) {
	defer func() {
		p.mu.Lock()
		p.open--
		p.mu.Unlock()
	}()
	end := l.cancel
	life, stop := context.WithCancel(p.ctx)
	defer stop()
	if t.via != nil {
		if l.via, l.err = p.acquire(ctx, t.via); l.err != nil {
			l.err = fmt.Errorf("cannot reach %s by way of %s: %w", t.name, t.via.name, l.err)
		} else {
			defer p.release(l.via)
		}
	}
	if l.err == nil {
		l.client, l.banner, l.err = dial(ctx, t, l.via, &p.files, p.running.Go)
	}
	p.mu.Lock()
	if l.err != nil && !l.retired {
		p.drop(l)
	}
	unwanted := l.retired && l.users == 0
	l.cancel = stop // from here on cancel ends the connection
	close(l.ready)
	p.mu.Unlock()
	end()
	if l.err != nil {
		close(l.gone)
		return
	}
	if unwanted {
		stop()
	}
	var inner sync.WaitGroup
	ended := make(chan struct{})
	inner.Go(func() {
		_ = l.client.Wait() // how it ended is seen by what ran over it
		close(ended)
	})
	inner.Go(func() { keepAlive(l.client, t, ended) })
	select {
	case <-life.Done():
	case <-ended:
	}
	p.retire(l)
	l.client.Close()
	<-ended
	close(l.gone)
	inner.Wait()
}

// keepAlive asks a host for an answer from time to time, and ends the connection if none comes.
func keepAlive(client *ssh.Client, t *target, ended <-chan struct{}) {
	if t.alive <= 0 {
		return
	}
	tick := time.NewTicker(t.alive)
	defer tick.Stop()
	answered := make(chan struct{}, 1)
	waiting, missed := false, 0
	for {
		select {
		case <-ended:
			if waiting {
				<-answered
			}
			return
		case <-answered:
			waiting, missed = false, 0
		case <-tick.C:
			if !waiting {
				waiting = true
				go func() {
					_, _, _ = client.SendRequest("keepalive@openssh.com", true, nil) // any answer will do
					answered <- struct{}{}
				}()
				continue
			}
			if missed++; missed >= t.aliveMax {
				client.Close()
			}
		}
	}
}
