package daemon

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// reload reads everything that "carrel policy reload" is about: the rules, files of secrets, runbooks and what holds for the network. All
// of it can be used, or nothing of it comes into force.
type reload struct {
	cfg      *config.Config
	log      *slog.Logger
	secrets  heldSecrets
	ways     *ways.Ways
	runbooks *atomic.Pointer[func() []*runbooks.Runbook]

	mu     sync.Mutex
	loaded bool
	// next puts what was read last into force.
	next func() error
}

// read reads it. The first time it puts it into force at once, but for the network, which the daemon began with.
func (r *reload) read() (*rules.Engine, error) {
	know, err := r.secrets.readFiles()
	if err != nil {
		return nil, err
	}
	e, err := loadPolicy(r.cfg, r.log)
	if err != nil {
		return nil, err
	}
	network, err := readNetwork(r.cfg)
	if err != nil {
		return nil, err
	}
	books := openRunbooks(r.cfg.RunbooksDir, e, r.log)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.loaded {
		r.loaded = true
		know()
		r.runbooks.Store(&books)
		return e, nil
	}
	r.next = func() error {
		know()
		r.runbooks.Store(&books)
		return r.ways.Reload(network)
	}
	return e, nil
}

// commit puts into force what was read last, once the rules of it are in force.
func (r *reload) commit() error {
	r.mu.Lock()
	next := r.next
	r.next = nil
	r.mu.Unlock()
	if next == nil { // another reload has put it into force
		return nil
	}
	return next()
}
