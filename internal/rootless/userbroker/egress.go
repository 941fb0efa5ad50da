package userbroker

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/wire/egressapi/begin"
)

// way is the way out of a workspace that runs. Its executor ends with this process, so that the sockets are kept here.
type way struct {
	mu      sync.Mutex
	config  begin.Config
	program string
	now     *begin.Process
	fresh   bool // nobody has got its control socket
}

// serve returns a launch.Config.Ways that starts the program on the sockets and keeps them.
func (w *way) serve(program string, name id.Workspace, log *os.File) func(context.Context, []*os.File) error {
	return func(ctx context.Context, sockets []*os.File) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.program, w.config = program, begin.Config{Workspace: string(name), Sockets: sockets, Log: log}
		return w.start(ctx)
	}
}

func (w *way) start(ctx context.Context) (err error) {
	c := w.config
	if c.Program, err = os.Open(w.program); err == nil {
		defer c.Program.Close()
		w.now, err = begin.Start(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("cannot start carrel-egress for %s: %w", c.Workspace, err)
	}
	w.fresh = true
	return nil
}

// close ends the process and closes the sockets.
func (w *way) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		w.now.Kill()
		w.now.Control.Close() // nobody may have taken it
	}
	for _, f := range w.config.Sockets {
		f.Close()
	}
	w.now, w.config.Sockets = nil, nil
}

// Egress is part of broker.Effects.
func (h *host) Egress(ctx context.Context, e broker.Entry) (*os.File, error) {
	h.mu.Lock()
	o := h.open[e.Name]
	h.mu.Unlock()
	if o == nil {
		return nil, errNone(e.Name)
	}
	log, err := launch.LogOf(e.Name, h.cfg.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	w := &o.way
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.config.Sockets == nil {
		return nil, errNone(e.Name)
	}
	if !w.fresh {
		if w.now != nil {
			w.now.Kill()
			w.now = nil
		}
		w.config.Log = log
		if err := w.start(ctx); err != nil {
			return nil, err
		}
	}
	w.fresh = false
	return w.now.Control, nil
}

func errNone(name id.Workspace) error {
	return fmt.Errorf("cannot open the way out of %s: it does not run with one: %w", name, errdefs.ErrFailedPrecondition)
}
