package linerpc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// MaxCalls is how many requests of a Peer may be open at once.
const MaxCalls = 64

// Peer sends what this side says to the other one, and finds for each answer the request that waits for it. Whoever reads hands it the
// answers. It may be used by several goroutines.
type Peer struct {
	out sync.Mutex
	w   io.Writer

	mu      sync.Mutex
	last    int
	waiting map[string]chan<- Message
}

// NewPeer returns a Peer that writes to w.
func NewPeer(w io.Writer) *Peer { return &Peer{w: w, waiting: map[string]chan<- Message{}} }

// send writes a message. Messages are never mixed.
func (p *Peer) send(m Message) error {
	p.out.Lock()
	defer p.out.Unlock()
	return Write(p.w, m)
}

// Notify sends a notification.
func (p *Peer) Notify(method string, params any) error {
	b, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("cannot write a message: %w", err)
	}
	return p.send(Message{Method: method, Params: b})
}

// Reply answers a request. A notification has no answer.
func (p *Peer) Reply(to Message, result any) error {
	if to.ID == nil {
		return nil
	}
	b, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("cannot write a message: %w", err)
	}
	return p.send(Message{ID: to.ID, Result: b})
}

// Refuse answers a request with an error.
func (p *Peer) Refuse(to Message, code int, why string) error {
	if to.ID == nil {
		return nil
	}
	return p.send(Message{ID: to.ID, Error: &Error{Code: code, Message: why}})
}

// Call sends a request and waits for its answer, which may be an error of the other side's. Once ctx has ended it waits no longer,
// and an answer that comes later is passed over.
func (p *Peer) Call(ctx context.Context, method string, params any) (Message, error) {
	b, err := json.Marshal(params)
	if err != nil {
		return Message{}, fmt.Errorf("cannot write a message: %w", err)
	}
	answer := make(chan Message, 1)
	id, err := p.open(answer)
	if err != nil {
		return Message{}, err
	}
	defer p.close(id)
	if err := p.send(Message{ID: json.RawMessage(id), Method: method, Params: b}); err != nil {
		return Message{}, err
	}
	select {
	case m := <-answer:
		return m, nil
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
}

func (p *Peer) open(answer chan<- Message) (id string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) >= MaxCalls {
		return "", fmt.Errorf("it has left %d requests without an answer", MaxCalls)
	}
	p.last++
	id = strconv.Itoa(p.last)
	p.waiting[id] = answer
	return id, nil
}

func (p *Peer) close(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// Answered hands an answer to the call that waits for it. One that nobody waits for is passed over.
func (p *Peer) Answered(m Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to := p.waiting[string(m.ID)]; to != nil {
		delete(p.waiting, string(m.ID))
		to <- m // it has room for one
	}
}
