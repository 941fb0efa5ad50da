package serve

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// asks are the questions that were put to who started the process.
type asks struct {
	report func(egressapi.Report)

	mu   sync.Mutex // of what follows
	last uint64
	open map[uint64]chan egressapi.Answer
}

func newAsks(report func(egressapi.Report)) *asks {
	return &asks{report: report, open: map[uint64]chan egressapi.Answer{}}
}

// ask is egress.Config.Ask.
func (a *asks) ask(ctx context.Context, t netrule.Target, rule string) error {
	answer := make(chan egressapi.Answer, 1)
	a.mu.Lock()
	a.last++
	id := a.last
	a.open[id] = answer
	a.mu.Unlock()
	a.report(egressapi.Report{Ask: &egressapi.Ask{ID: id, Host: t.Host.String(), Port: t.Port, Rule: rule}})
	select {
	case got := <-answer:
		if got.Allow {
			return nil
		}
		return fmt.Errorf("%s: %w", got.Reason, errdefs.ErrPermissionDenied)
	case <-ctx.Done():
	}
	if a.take(id) != nil { // else the answer is on its way
		a.report(egressapi.Report{Gone: &egressapi.Gone{ID: id}})
	}
	return ctx.Err()
}

// take returns where the answer to a question is awaited, once.
func (a *asks) take(id uint64) chan egressapi.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.open[id]
	delete(a.open, id)
	return answer
}

// answer takes an answer. It does not block.
func (a *asks) answer(x *egressapi.Answer) {
	if answer := a.take(x.ID); answer != nil {
		answer <- *x
	}
}
