package hostrun

import (
	"context"
	"sync"
)

// Runner runs commands on this machine, as Run does. Its methods may be called from any goroutine.
//
// Half of what a short command costs is the start of its supervisor. While Ready holds, a runner has one supervisor started
// ahead of the next command of that profile. It is a process of the caller's that waits for what to run, in a control group of
// its own where there is one; it has taken none of the profile's steps, and ends with the caller.
type Runner struct {
	program *Program

	mu    sync.Mutex
	ready *row   // what is kept ready; nil for nothing
	spare *spare // nil if there is none
}

// spare is a supervisor that is started ahead. s and err are there once started is closed.
type spare struct {
	row     *row
	started chan struct{}
	s       *supervisor
	err     error
}

// NewRunner returns a runner whose commands are supervised by a program.
func NewRunner(p *Program) *Runner { return &Runner{program: p} }

// Ready has a supervisor ready for the next command of a profile, and for each after it, until rest is called, which waits for
// its end. Profiles that hold a command have none: its namespaces would keep file systems busy that the host unmounts
// meanwhile, and would not have those that it mounts.
func (r *Runner) Ready(p Profile) (rest func()) {
	row := rowOf(p)
	if row == nil || row.held {
		return func() {}
	}
	r.mu.Lock()
	r.ready = row
	r.mu.Unlock()
	r.prepare()
	return r.rest
}

func (r *Runner) rest() {
	r.mu.Lock()
	x := r.spare
	r.ready, r.spare = nil, nil
	r.mu.Unlock()
	x.drop()
}

// drop ends the supervisor.
func (x *spare) drop() {
	if x == nil {
		return
	}
	if <-x.started; x.err == nil {
		x.s.discard()
	}
}

// prepare starts a supervisor ahead, if one is to be ready and none is. That it cannot is said by the command that needs one.
func (r *Runner) prepare() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready == nil || r.spare != nil {
		return
	}
	x := &spare{row: r.ready, started: make(chan struct{})}
	r.spare = x
	go func() {
		defer close(x.started)
		x.s, x.err = start(r.program, x.row)
	}()
}

// take returns a supervisor for a profile: the one that is ready, or else a new one.
func (r *Runner) take(of *row) (*supervisor, error) {
	r.mu.Lock()
	x := r.spare
	if x == nil || x.row != of {
		r.mu.Unlock()
		return start(r.program, of)
	}
	r.spare = nil
	r.mu.Unlock()
	if <-x.started; x.err == nil && x.s.lives() {
		return x.s, nil
	}
	x.drop()
	return start(r.program, of)
}

// Run is the function Run, with a supervisor of the runner's program.
func (r *Runner) Run(ctx context.Context, c Command) (Result, error) {
	p, err := prepare(c)
	if err != nil {
		return Result{}, err
	}
	defer r.prepare() // if the command did not begin
	return p.run(ctx, r)
}
