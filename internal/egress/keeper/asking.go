package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Question is what a person is asked.
type Question struct {
	Target netrule.Target
	// Rule is the text of the rule that asks.
	Rule string
}

// Answer is the answer to a Question.
type Answer struct {
	Allow bool
	// Reason says why not, for the program and the record.
	Reason string
}

// A program that connects again and again, and a carrel-egress that was taken over, have a person asked no more often than
// this for one workspace. What is beyond is answered with no.
var questions = bucket.Bound{Burst: 2 * egressapi.MostAsked, Every: 5 * time.Second}

// answerWithin bounds a write to the process, which reads all the time.
const answerWithin = 5 * time.Second

// asked is what the Keeper knows for questions. It is under its mutex.
type asked struct {
	full    time.Time      // see questions
	rules   *netrule.Rules // nil until the first question by the Setup of version
	version int
}

// question is what a process asks about, if the rules do: it may have been taken over, and have a person asked about what
// nobody tries to reach. Otherwise why says what the answer is.
func (k *Keeper) question(t netrule.Target) (q Question, why string) {
	if k.cfg.Ask == nil {
		return q, "nobody can be asked"
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked.rules == nil || k.asked.version != k.version {
		rules, err := netrule.New(k.setup.Rules, netrule.Options{Public: k.setup.Public})
		if err != nil {
			return q, "its rules cannot be read"
		}
		k.asked.rules, k.asked.version = rules, k.version
	}
	v := k.asked.rules.Judge(t)
	if v.Action != netrule.Ask {
		return q, "the rules have changed" // the process hears of them, if it has not made this up
	}
	full, wait := questions.Take(k.asked.full, time.Now())
	if wait > 0 {
		return q, fmt.Sprintf("too many questions were asked; the next may be in %s", wait.Round(time.Second))
	}
	k.asked.full = full
	return Question{t, v.Rule}, ""
}

// asking are the questions of one process.
type asking struct {
	k *Keeper
	p *process
	// answers are what is to be written. Who asks faster than it reads answers waits for that: see ask.
	answers chan egressapi.Answer

	mu     sync.Mutex // of what follows
	open   map[uint64]context.CancelFunc
	asked  int // goroutines
	ending bool
}

func newAsking(k *Keeper, p *process) *asking {
	return &asking{k: k, p: p, open: map[uint64]context.CancelFunc{}}
}

// ask takes a question. The error ends the process: it breaks what package egressapi promises. If many answers are still
// to be written, ask waits, and so do the reports of a process that asks without end. One that does not read is ended by
// write.
func (a *asking) ask(q *egressapi.Ask) error {
	host, err := netrule.ParseHost(q.Host)
	if err != nil || host.String() != q.Host || q.Port == 0 {
		return fmt.Errorf("it asks about no target: %w", errdefs.ErrInvalidArgument)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[q.ID] != nil {
		return fmt.Errorf("it asks the same question twice: %w", errdefs.ErrInvalidArgument)
	}
	if a.answers == nil { // most processes ask nothing
		a.answers = make(chan egressapi.Answer, egressapi.MostAsked)
		a.k.asking.Go(a.write)
	}
	question, why := Question{}, "too many questions wait for an answer already"
	if a.asked < egressapi.MostAsked {
		question, why = a.k.question(netrule.Target{Host: host, Port: q.Port})
	}
	if why != "" {
		a.say(egressapi.Answer{ID: q.ID, Reason: why})
		return nil
	}
	ctx, cancel := context.WithCancel(a.k.alive)
	a.open[q.ID] = cancel
	a.asked++
	a.k.asking.Go(func() {
		got := a.k.cfg.Ask(ctx, question)
		short := strings.ToValidUTF8(got.Reason[:min(len(got.Reason), egressapi.MaxReason)], "")
		a.answer(egressapi.Answer{ID: q.ID, Allow: got.Allow, Reason: short})
		cancel()
	})
	return nil
}

// gone ends a question for which nobody waits any more.
func (a *asking) gone(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.open[id]; cancel != nil {
		cancel()
		delete(a.open, id)
	}
}

// answer takes the answer to a question, which is only said if it is still open.
func (a *asking) answer(x egressapi.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked--
	if a.open[x.ID] == nil {
		return
	}
	delete(a.open, x.ID)
	a.say(x)
}

// say has an answer written. a.mu is held.
func (a *asking) say(x egressapi.Answer) {
	if !a.ending {
		a.answers <- x // write takes it, also when the process has ended
	}
}

// write writes answers until the process has ended.
func (a *asking) write() {
	for x := range a.answers {
		line, err := json.Marshal(egressapi.Line{Setup: egressapi.Setup{Version: egressapi.Version}, Answer: &x})
		if err == nil {
			ctx, cancel := context.WithTimeout(a.k.alive, answerWithin)
			err = a.p.write(ctx, append(line, '\n'))
			cancel()
		}
		if err != nil {
			a.p.Kill() // half a line may be written
		}
	}
}

// end ends every question of a process that has ended.
func (a *asking) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = true
	for id, cancel := range a.open {
		cancel()
		delete(a.open, id)
	}
	if a.answers != nil {
		close(a.answers)
	}
}
