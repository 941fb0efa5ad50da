package fleet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"
)

// Outcome is how a step that was started went.
type Outcome string

const (
	// Ended: Exit or Signal says how.
	Ended Outcome = "ended"
	// TimedOut and Canceled: it was killed; Kill says whether that is certain.
	TimedOut Outcome = "timed-out"
	Canceled Outcome = "canceled"
	// Lost: the connection was lost, or the host did not say how it ended. Whether it still runs is unknown.
	Lost Outcome = "lost"
)

// Result is what is known of a step.
type Result struct {
	Host    string
	Outcome Outcome
	// Exit is the exit status of an ended step, -1 if there is none.
	Exit int
	// Signal is the signal that ended it, such as "KILL"; "" for none.
	Signal string
	// Stdout and Stderr are hostile bytes.
	Stdout, Stderr Output
	// Kill says what became of the processes of a step that was to end.
	Kill Kill
	// Why is set for Lost, in words for a person.
	Why string
	// Banner is what the host shows before a login, and Noise what its login shell wrote before the step. Both are bounded,
	// and hostile.
	Banner, Noise []byte
	// Duration is from when the step was sent until its end was known.
	Duration time.Duration
}

// OK reports whether the step ended with status 0.
func (r *Result) OK() bool { return r.Outcome == Ended && r.Exit == 0 && r.Signal == "" }

// Kill is what became of the processes of a step.
type Kill struct {
	// Tried is set where they were to end.
	Tried bool
	// Confirmed says that the host was asked and no process of the group is left, and that nothing holds the output open.
	// A process that left both the group and the output is not seen.
	Confirmed bool
	// Why says why it is not confirmed, in words for a person.
	Why string
}

const (
	maxNoise = 64 << 10 // bytes that a login shell may write before the step
	maxMark  = 256      // bytes of the line with the mark
	// killTime is how long the killing of a step may take beside the grace.
	killTime = 20 * time.Second
)

// What became of the line by which a step begins.
const (
	undecided = iota
	let
	withheld
)

// Run runs one step on one host. It ends when the step does, at its timeout, or with ctx; then the step's process group
// is killed, for which Run may take 25 s and the grace longer.
//
// An error says that the step did not run: the host was not let begin it. Whatever happens later is in the result and no
// error. Nothing is ever run twice.
func (c *Client) Run(ctx context.Context, h Host, s Step) (Result, error) {
	if err := s.Check(&h); err != nil {
		return Result{}, err
	}
	t, err := c.target(&h)
	if err != nil {
		return Result{}, err
	}
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("cannot run the step on %s: %w", h.Name, err)
	}
	leave, err := c.pool.enter()
	if err != nil {
		return fail(err)
	}
	defer leave()
	l, ch, requests, err := c.begin(ctx, t)
	if _, ended := errors.AsType[*endedError](err); ended { // nothing was sent, so a new connection may be tried
		l, ch, requests, err = c.begin(ctx, t)
	}
	if err != nil {
		return fail(err)
	}
	defer c.end(l)
	mark := "carrel-" + rand.Text()
	r := &running{
		client: c, link: l, ch: ch, ended: make(chan struct{}), asked: make(chan struct{}), exit: -1,
		out: newStream(mark, cmp.Or(s.MaxOutput, DefaultOutput)), err: newStream(mark, cmp.Or(s.MaxOutput, DefaultOutput)),
	}
	result, err := r.run(ctx, requests, s.script(&h, mark), s.Input, cmp.Or(s.Timeout, DefaultTimeout))
	if err != nil {
		return fail(err)
	}
	if result.Outcome == Lost {
		c.pool.retire(l) // it may be seen to have ended only now
	}
	result.Host, result.Banner = h.Name, bytes.Clone(l.banner)
	return result, nil
}

// endedError is that of a connection which had ended when it was to be used.
type endedError struct{ err error }

func (e *endedError) Error() string { return e.err.Error() }
func (e *endedError) Unwrap() error { return e.err }

// begin returns a session with a shell that waits for its text. Call end after its use.
func (c *Client) begin(ctx context.Context, t *target) (*link, ssh.Channel, <-chan *ssh.Request, error) {
	l, err := c.pool.acquire(ctx, t)
	if err != nil {
		return nil, nil, nil, err
	}
	select {
	case l.sessions <- struct{}{}:
	case <-ctx.Done():
		c.pool.release(l)
		return nil, nil, nil, context.Cause(ctx)
	}
	open, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	ch, requests, err := c.session(open, l)
	if err != nil {
		c.end(l)
		return nil, nil, nil, err
	}
	return l, ch, requests, nil
}

func (c *Client) end(l *link) {
	<-l.sessions
	c.pool.release(l)
}

// session opens a session and starts a shell in it, which waits for its text. A host that does not answer in time gets
// nothing new over this connection.
//
// Package ssh never answers who opens a session between its last look at them and the end of the connection. So the end is waited for here
// too, and such a goroutine is left to itself.
func (c *Client) session(ctx context.Context, l *link) (ssh.Channel, <-chan *ssh.Request, error) {
	type opened struct {
		ch       ssh.Channel
		requests <-chan *ssh.Request
		err      error
	}
	done := make(chan opened, 1)
	go func() {
		ch, requests, err := l.client.OpenChannel("session", nil)
		var refusal *ssh.OpenChannelError
		if err != nil && !errors.As(err, &refusal) {
			c.pool.retire(l)
			done <- opened{err: &endedError{unavailable("the connection has ended: %w", said(err))}}
			return
		}
		if err != nil {
			done <- opened{err: unavailable("the host opens no session: %w", said(err))}
			return
		}
		ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"exec /bin/sh"}))
		if err == nil && !ok {
			err = errors.New("it refuses commands")
		}
		if err != nil {
			ch.Close()
			go ssh.DiscardRequests(requests)
			done <- opened{err: unavailable("the host starts no shell: %w", said(err))}
			return
		}
		done <- opened{ch: ch, requests: requests}
	}()
	select {
	case o := <-done:
		return o.ch, o.requests, o.err
	case <-l.gone:
		c.pool.retire(l)
		return nil, nil, &endedError{unavailable("the connection has ended")}
	case <-ctx.Done():
		c.pool.retire(l)
		c.pool.running.Go(func() { // until the host answers, or the connection ends
			select {
			case o := <-done:
				if o.err == nil {
					o.ch.Close()
					ssh.DiscardRequests(o.requests)
				}
			case <-l.gone:
			}
		})
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, nil, unavailable("the host does not answer in time")
		}
		return nil, nil, context.Cause(ctx)
	}
}

// stream is one stream of a step: what the login shell wrote, the line with the mark, and the output.
type stream struct {
	mark []byte

	mu     sync.Mutex
	begun  chan struct{} // closed at the mark, or when there is none to come
	found  bool
	none   bool   // too much came without it
	says   string // what follows the mark
	before []byte
	over   bool // nothing more is taken
	output *capture
}

func newStream(mark string, limit int) *stream {
	return &stream{mark: []byte(mark), begun: make(chan struct{}), output: newCapture(limit)}
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p)
	if s.over {
		return n, nil
	}
	if s.found {
		return s.output.Write(p)
	}
	if s.none {
		return n, nil
	}
	room := min(maxNoise+maxMark-len(s.before), n)
	s.before = append(s.before, p[:room]...)
	i, end := bytes.Index(s.before, s.mark), -1
	if i >= 0 {
		end = bytes.IndexByte(s.before[i:], '\n')
	}
	if end < 0 {
		if s.none = len(s.before) == maxNoise+maxMark; s.none {
			close(s.begun)
		}
		return n, nil
	}
	s.found = true
	s.says = string(s.before[i+len(s.mark) : i+end])
	rest := bytes.Clone(s.before[i+end+1:])
	s.before = s.before[:i]
	close(s.begun)
	if len(rest) > 0 {
		_, _ = s.output.Write(rest)
	}
	if room < n {
		_, _ = s.output.Write(p[room:])
	}
	return n, nil
}

// running is a step on a host.
type running struct {
	client   *Client
	link     *link
	ch       ssh.Channel
	out, err *stream
	ended    chan struct{} // closed when the host has closed the channel, or the connection has ended
	asked    chan struct{} // closed when there is no output to come
	gone     atomic.Int32  // undecided, let or withheld

	mu     sync.Mutex
	exit   int
	signal string
	told   bool // the host said how it ended
}

// run sends the script and follows the step to its end.
func (r *running) run(ctx context.Context, requests <-chan *ssh.Request, script, input []byte, timeout time.Duration) (Result, error) {
	begin := time.Now()
	var parts sync.WaitGroup
	start := func(f func()) {
		parts.Add(1)
		r.client.pool.running.Go(func() { defer parts.Done(); f() })
	}
	start(func() { r.requests(requests) })
	start(func() {
		_, _ = io.Copy(r.out, r.ch) // an end by an error is an end
		close(r.asked)
	})
	start(func() { _, _ = io.Copy(r.err, r.ch.Stderr()) })
	start(func() {
		if _, err := r.ch.Write(script); err == nil && r.lets() {
			_, _ = r.ch.Write([]byte("go\n")) // whether it arrived is seen by what follows
			_, _ = r.ch.Write(input)          // a step that does not read all of it ends the channel
		}
		_ = r.ch.CloseWrite()
	})
	r.client.pool.running.Go(func() { parts.Wait(); close(r.ended) })

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	result := Result{Outcome: Ended}
	select {
	case <-r.ended:
	case <-timer.C:
		result.Outcome = TimedOut
	case <-ctx.Done():
		result.Outcome = Canceled
	}
	if r.gone.CompareAndSwap(undecided, withheld) {
		return r.never(ctx, result.Outcome)
	}
	if result.Outcome != Ended {
		result.Kill = r.kill(ctx)
	}
	result.Duration = time.Since(begin)
	r.ch.Close()
	if result.Outcome != Ended && !r.waits(2*time.Second) {
		// The host does not close the channel: nothing new goes over the connection, and it ends with its last user.
		r.client.pool.retire(r.link)
	}
	return r.result(result), nil
}

// lets waits until the host has said that the step is about to begin, and reports whether it may.
func (r *running) lets() bool {
	select {
	case <-r.out.begun:
	case <-r.asked: // all of the host's output has been read
	}
	r.out.mu.Lock()
	ok := r.out.found && strings.HasPrefix(r.out.says, " run ")
	r.out.mu.Unlock()
	return ok && r.gone.CompareAndSwap(undecided, let)
}

// never ends a step that was not let go, and says why.
func (r *running) never(ctx context.Context, outcome Outcome) (Result, error) {
	r.ch.Close()
	if outcome != Ended && !r.waits(2*time.Second) {
		r.client.pool.retire(r.link)
	}
	for _, s := range []*stream{r.out, r.err} {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	text := plain(string(append(bytes.Clone(r.out.before), r.err.before...)))
	switch {
	case r.out.found && strings.TrimSpace(r.out.says) == "cwd":
		return Result{}, fmt.Errorf("its directory cannot be entered: %s: %w", plain(string(r.err.before)), errdefs.ErrFailedPrecondition)
	case outcome == Canceled:
		return Result{}, fmt.Errorf("it had not begun: %w", context.Cause(ctx))
	case outcome == TimedOut:
		return Result{}, fmt.Errorf("it had not begun at its timeout: %w; the host's shell wrote %q", context.DeadlineExceeded, text)
	case r.told:
		how := "status " + strconv.Itoa(r.exit)
		if r.signal != "" {
			how = "signal " + r.signal
		}
		return Result{}, unavailable("the host's shell ended with %s before the step: %q; see that the user has a shell there, and that "+
			"its start-up files write little", how, text)
	}
	return Result{}, unavailable("the connection was lost before it had begun")
}

// requests takes what the host says of the end.
func (r *running) requests(requests <-chan *ssh.Request) {
	for req := range requests {
		r.mu.Lock()
		switch req.Type {
		case "exit-status":
			var m struct{ Status uint32 }
			if ssh.Unmarshal(req.Payload, &m) == nil && !r.told {
				r.told, r.exit = true, int(m.Status)
			}
		case "exit-signal":
			var m struct { // RFC 4254, section 6.10
				Signal        string
				Core          bool
				Message, Lang string
			}
			if ssh.Unmarshal(req.Payload, &m) == nil && !r.told {
				if r.told = true; len(m.Signal) > 32 || !letters(m.Signal, "@._-+") {
					m.Signal = "unknown"
				}
				r.signal = m.Signal
			}
		}
		r.mu.Unlock()
		if req.WantReply {
			_ = req.Reply(false, nil) // the connection may have ended
		}
	}
}

// waits reports whether the channel ends within a time.
func (r *running) waits(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.ended:
		return true
	case <-timer.C:
		return false
	}
}

// result takes down what there is of a step that was let go.
func (r *running) result(result Result) Result {
	for _, s := range []*stream{r.out, r.err} {
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	result.Exit, result.Signal = r.exit, r.signal
	if result.Outcome == Ended && !r.told {
		result.Outcome, result.Exit = Lost, -1
		result.Why = "the connection was lost, or the host did not say how the step ended; it may still run: " +
			"look at the host before it is run again"
	}
	if !r.err.found { // the login shell may have sent it elsewhere
		_, _ = r.err.output.Write(r.err.before)
		r.err.before = nil
	}
	result.Stdout, result.Stderr = r.out.output.output(), r.err.output.output()
	noise := append(bytes.Clone(r.out.before), r.err.before...)
	result.Noise = noise[:min(len(noise), MaxBanner)]
	return result
}
