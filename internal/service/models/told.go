package models

import (
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways/endpoints"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// each is how often what a workspace uses is recorded. A refusal is recorded at once, and those that follow within that
// time are counted.
const each = time.Minute

// mostCalls is how many calls one record lists: with names of the longest kind, in the list and in the sums, it is full then.
// Of a turn, a record that is full is written at once, mostEarly times within each. More calls are only counted, so that
// who has a model that costs nothing cannot fill the disk.
const (
	mostCalls = 24
	mostEarly = 16
)

// settle is how long after the end of a turn its last request may still be told.
const settle = 2 * time.Second

// told records what workspaces have used of models.
type told struct {
	to  Log
	log *slog.Logger

	mu   sync.Mutex
	open map[id.Workspace]*untold
	// turns are those that run, or have ended less than settle ago, in the order in which they began.
	turns map[id.Workspace][]*turn
}

// turn is a turn of an agent.
type turn struct {
	trace id.Trace
	over  bool
	timer *time.Timer // nil while it runs
}

// untold is what is not recorded yet of one workspace: one of a model's for each that it used.
type untold struct {
	owner string
	trace id.Trace
	// used are by the names of models, which a workspace has workspace.MaxModels of; order is theirs.
	used  map[string]*endpoints.Used
	order []string
	// refused are the models of which a refusal was recorded.
	refused map[string]bool
	timer   *time.Timer
	// early is how many records were written because their list was full.
	early int
}

func newTold(to Log, log *slog.Logger) *told {
	return &told{to: to, log: log, open: map[id.Workspace]*untold{}, turns: map[id.Workspace][]*turn{}}
}

// turn notes that a turn begins. over is called at its end.
func (t *told) turn(name id.Workspace, trace id.Trace) (over func()) {
	t.end(name) // what was used before is none of its
	x := &turn{trace: trace}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns[name] = append(t.turns[name], x)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		x.over = true
		x.timer = time.AfterFunc(settle, func() { t.settled(name, x) })
	}
}

// settled records what a turn has used, and lets go of it.
func (t *told) settled(name id.Workspace, x *turn) {
	t.end(name)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns[name] = slices.DeleteFunc(t.turns[name], func(y *turn) bool { return y == x })
	if len(t.turns[name]) == 0 {
		delete(t.turns, name)
	}
}

// traceOf is the trace of what a workspace uses now: that of the one turn that runs, or of the last if none does. t.mu is held.
func (t *told) traceOf(name id.Workspace) (trace id.Trace) {
	running := 0
	for _, x := range t.turns[name] {
		if !x.over {
			running++
		}
		if running == 0 || running == 1 && !x.over {
			trace = x.trace
		}
	}
	if running > 1 {
		return ""
	}
	return trace
}

// of returns what is not recorded of a model. t.mu is held.
func (t *told) of(k workspace.Kept, of conf.Model) (*untold, *endpoints.Used) {
	x := t.open[k.Name]
	if x == nil {
		x = &untold{owner: k.Owner, trace: t.traceOf(k.Name), used: map[string]*endpoints.Used{}, refused: map[string]bool{}}
		x.timer = time.AfterFunc(each, func() { t.end(k.Name) })
		t.open[k.Name] = x
	}
	u := x.used[of.Name]
	if u == nil {
		u = &endpoints.Used{Endpoint: of.Name, URL: of.URL, Models: map[string]budget.Sum{}}
		x.used[of.Name] = u
		x.order = append(x.order, of.Name)
	}
	return x, u
}

// used notes a request that has ended, and records what is noted if the list of calls is full.
func (t *told) used(k workspace.Kept, of conf.Model, model string, sum budget.Sum, told egressapi.Usage) {
	t.mu.Lock()
	x, u := t.of(k, of)
	plus(&u.Sum, sum)
	if told.Unknown {
		u.Estimated++
	}
	if model != "" {
		count(u, model, sum)
	}
	if told.Call != nil && len(u.Calls) < mostCalls {
		u.Calls = append(u.Calls, endpoints.Call{Model: model, Call: *told.Call})
	} else if told.Call != nil {
		u.NotListed++
	}
	full := x.trace != "" && len(u.Calls) == mostCalls && x.early < mostEarly
	if full {
		x.early++
		delete(x.used, of.Name)
		x.order = slices.DeleteFunc(x.order, func(name string) bool { return name == of.Name })
	}
	t.mu.Unlock()
	if full {
		t.record(k.Name, x, *u, nil)
	}
}

// count adds to what was used of a model that a program names.
func count(u *endpoints.Used, model string, sum budget.Sum) {
	if _, known := u.Models[model]; !known && len(u.Models) >= budget.MaxModels {
		model = budget.Others
	}
	now := u.Models[model]
	plus(&now, sum)
	u.Models[model] = now
}

func plus(to *budget.Sum, x budget.Sum) {
	to.Requests += x.Requests
	to.Tokens += x.Tokens
	to.Money += x.Money
}

// refused notes a request that was not made, and records the first one.
func (t *told) refused(k workspace.Kept, of conf.Model, why error) {
	t.mu.Lock()
	x, u := t.of(k, of)
	first := !x.refused[of.Name]
	x.refused[of.Name] = true
	if !first {
		u.Refused++
	}
	t.mu.Unlock()
	if first {
		t.record(k.Name, x, endpoints.Used{Endpoint: of.Name, URL: of.URL, Refused: 1}, why)
	}
}

// end records what is not yet of a workspace.
func (t *told) end(name id.Workspace) {
	t.mu.Lock()
	x := t.open[name]
	delete(t.open, name)
	t.mu.Unlock()
	if x == nil {
		return
	}
	x.timer.Stop()
	for _, model := range x.order {
		if u := x.used[model]; u.Requests+u.Refused > 0 { // each in a record: programs choose names that fill most of one
			t.record(name, x, *u, nil)
		}
	}
}

// close is end for all.
func (t *told) close() {
	t.mu.Lock()
	var names []id.Workspace
	for name := range t.open {
		names = append(names, name)
	}
	for _, all := range t.turns {
		for _, x := range all {
			if x.timer != nil {
				x.timer.Stop()
			}
		}
	}
	t.mu.Unlock()
	for _, name := range names {
		t.end(name)
	}
}

func (t *told) record(name id.Workspace, of *untold, x endpoints.Used, why error) {
	data, _ := json.Marshal(struct { // texts and numbers always marshal
		Models []endpoints.Used `json:"models"`
	}{[]endpoints.Used{x}})
	r := audit.Record{
		Trace: of.trace, Type: audit.Usage, Principal: principal.InWorkspace(name, of.owner).String(), Owner: of.owner, Workspace: name,
		Status: audit.StatusOK, Data: data,
	}
	if why != nil {
		r.Status, r.Error = audit.StatusDenied, why.Error()
	}
	if err := t.to.AppendAsync(r); err != nil {
		t.log.Warn("cannot record what a workspace used of models", "workspace", name, "error", err)
	}
}
