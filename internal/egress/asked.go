package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// A connection that the rules have a person asked about is parked: nothing is resolved or dialled for it until there is
// an answer. One question serves all connections to the same target. It ends with
//
//	the answer       those that wait go on, or are refused; the answer holds for the target for Limits.AnswerHolds
//	other rules      that allow or deny the target: each connection is judged anew
//	the last program which has closed its connection, or its direction of it
//	Limits.AskWithin as if the answer were no
//	the server
//
// A no holds as long as a yes, so that a program that tries again and again does not have a person asked each time.

// mostAnswers bounds the answers that are remembered. Those beyond it let the connections through that wait for them,
// and no others.
const mostAnswers = 1024

// question is one that connections wait for.
type question struct {
	end  context.CancelFunc // of Config.Ask
	done chan struct{}
	// err is set before done is closed: nil if the target may be reached, errAnew if it is to be judged anew.
	err error
	// waiting counts the connections. It is under the server's mutex.
	waiting int
}

// answered is an answer that still holds.
type answered struct {
	err   error
	until time.Time
}

// asked is what there is of questions. It is under the server's mutex.
type asked struct {
	parked  int // connections that wait
	open    map[netrule.Target]*question
	answers map[netrule.Target]answered
}

// unapproved is the refusal of a target that a person was asked about, or could not be.
type unapproved struct{ refusal }

func notApproved(t netrule.Target, why string, args ...any) error {
	return unapproved{refusal{t.String() + " was not approved: " + fmt.Sprintf(why, args...), errdefs.ErrPermissionDenied}}
}

// errAnew ends a question that other rules have decided.
var errAnew = errors.New("the rules have changed")

// decide judges a target for a session, and has a person asked if the rules say so. It returns the rules that let the
// session go on. The error is of kind permission denied, or unavailable if the program has gone or the server has ended.
func (x *session) decide(ctx context.Context, t netrule.Target) (*netrule.Rules, error) {
	s := x.s
	for {
		s.mu.Lock()
		rules := s.rules
		v := rules.Judge(t)
		var q *question
		err := x.judged(t, v)
		if err != nil && v.Action == netrule.Ask {
			q, err = s.ask(ctx, t, v.Rule)
			x.approved = q == nil && err == nil
		}
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if q == nil {
			x.c.Rule = v.Rule
			return rules, nil
		}
		switch err := x.await(ctx, t, q); {
		case err == nil:
			s.mu.Lock()
			x.approved = true
			s.mu.Unlock()
		case !errors.Is(err, errAnew):
			return nil, err
		}
	}
}

// judged is an error unless a verdict lets a session go on. The server's mutex is held.
func (x *session) judged(t netrule.Target, v netrule.Verdict) error {
	if v.Action == netrule.Allow || v.Action == netrule.Ask && x.approved {
		return nil
	}
	return refusal{v.Reason(t), errdefs.ErrPermissionDenied}
}

// ask returns the question about a target, which its caller waits for. Without one, the error says what is known
// already: nil if the target may be reached. The server's mutex is held.
func (s *Server) ask(ctx context.Context, t netrule.Target, rule string) (*question, error) {
	if a, known := s.asked.answers[t]; known {
		if time.Now().Before(a.until) {
			return nil, a.err
		}
		delete(s.asked.answers, t)
	}
	switch {
	case s.cfg.Ask == nil:
		return nil, notApproved(t, "nobody can be asked")
	case s.asked.parked >= s.cfg.Limits.Parked:
		return nil, notApproved(t, "%d connections wait for an answer already", s.asked.parked)
	}
	q := s.asked.open[t]
	if q == nil {
		q = &question{done: make(chan struct{})}
		ctx, q.end = context.WithTimeout(ctx, s.cfg.Limits.AskWithin)
		s.asked.open[t] = q
		s.wg.Go(func() {
			err := s.cfg.Ask(ctx, t, rule)
			s.settle(t, q, err, ctx.Err())
		})
	}
	q.waiting++
	s.asked.parked++
	return q, nil
}

// settle ends a question with what Config.Ask returned. ended is why its context had ended by then.
func (s *Server) settle(t netrule.Target, q *question, err, ended error) {
	if errors.Is(ended, context.DeadlineExceeded) {
		err = notApproved(t, "no answer within %s", s.cfg.Limits.AskWithin)
	} else if err != nil {
		err = notApproved(t, "%s", reason(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.finish(t, q, err) {
		return // nobody waits for it any more, or other rules have decided
	}
	now := time.Now()
	for t, a := range s.asked.answers {
		if !now.Before(a.until) {
			delete(s.asked.answers, t)
		}
	}
	if len(s.asked.answers) < mostAnswers {
		s.asked.answers[t] = answered{err, now.Add(s.cfg.Limits.AnswerHolds)}
	}
}

// finish ends a question for those who wait; false if it has ended before. The server's mutex is held.
func (s *Server) finish(t netrule.Target, q *question, err error) bool {
	if s.asked.open[t] != q {
		return false
	}
	delete(s.asked.open, t)
	q.err = err
	close(q.done)
	q.end()
	return true
}

// askAnew ends the questions that other rules decide, and forgets the answers that they may contradict: every no, and
// each yes to what is not asked about any more. The server's mutex is held.
func (s *Server) askAnew(r *netrule.Rules) {
	for t, q := range s.asked.open {
		if r.Judge(t).Action != netrule.Ask {
			s.finish(t, q, errAnew)
		}
	}
	for t, a := range s.asked.answers {
		if a.err != nil || r.Judge(t).Action != netrule.Ask {
			delete(s.asked.answers, t)
		}
	}
}

// await parks a session until its question ends. The last one that leaves a question ends it.
func (x *session) await(ctx context.Context, t netrule.Target, q *question) error {
	gone, stop := watch(x.client)
	defer stop()
	err := fmt.Errorf("the workspace's egress has ended: %w", errdefs.ErrUnavailable)
	select {
	case <-q.done:
		err = q.err
	case <-gone:
		err = refusal{"the program closed its connection before " + t.String() + " was approved", errdefs.ErrUnavailable}
	case <-ctx.Done():
	}
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked.parked--
	if q.waiting--; q.waiting == 0 {
		s.finish(t, q, errAnew)
	}
	return err
}

// watch returns a channel that is closed when the program has closed its connection or its direction of it, without
// reading any of what it sent. stop is called before something else is done with the connection, which has no deadline
// then: that of a request does not hold for a person.
func watch(c net.Conn) (gone <-chan struct{}, stop func()) {
	_ = c.SetDeadline(time.Time{})
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, func() {}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		// The poller wakes this at each change; what is unread is none.
		err := raw.Read(func(fd uintptr) bool { return !established(int(fd)) })
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			close(over)
		}
	}()
	return over, func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-ended
		_ = c.SetReadDeadline(time.Time{})
	}
}

// established reports whether both directions of a TCP connection are open (TCP_ESTABLISHED in Linux's tcp_states.h).
func established(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == 1
}
