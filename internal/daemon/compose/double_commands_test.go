package compose_test

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// reach is what every call to an executor begins with.
func (d *runtimeDouble) reach(op string, name id.Workspace) error {
	if err := d.begin(op, name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.alive[name] {
		return fmt.Errorf("cannot reach %s: %w", name, runtime.ErrNotRunning)
	}
	return nil
}

func (d *runtimeDouble) Run(_ context.Context, permitted permit.Permit, p execapi.ExecParams) (execapi.ExecResult, error) {
	name, err := permitted.Workspace()
	if err != nil {
		return execapi.ExecResult{}, err
	}
	if err := d.reach("run", name); err != nil {
		return execapi.ExecResult{}, err
	}
	d.mu.Lock()
	d.lastEnv = p.Env
	d.mu.Unlock()
	return execapi.ExecResult{PID: 2, Status: &execapi.Status{Code: 3}, Stdout: []byte(p.Argv[0])}, nil
}

func (d *runtimeDouble) Spawn(_ context.Context, permitted permit.Permit, p execapi.ExecParams, _ bool,
	fds ...*os.File,
) (runtime.Process, error) {
	name, err := permitted.Workspace()
	if err != nil {
		return nil, err
	}
	if err := d.reach("spawn", name); err != nil {
		return nil, err
	}
	if p.Program {
		d.mu.Lock()
		d.programs = append(d.programs, p.Argv)
		verdict, more, answers, direct := d.verdict, d.more, d.answers, d.direct
		d.mu.Unlock()
		if direct != nil && len(fds) == 2 {
			return directDouble(direct, fds[1])
		}
		if answers != nil {
			return filesDouble(answers)
		}
		return archiverDouble(p, verdict, more)
	}
	d.mu.Lock()
	agent := d.agent
	d.mu.Unlock()
	if agent != nil {
		a, err := startAgent(agent, p.Socket)
		if err == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.agents = append(d.agents, a)
		}
		return a, err
	}
	proc := &processDouble{id: p.ID, end: make(chan error, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.procs = append(d.procs, proc)
	return proc, nil
}

func (d *runtimeDouble) Detach(_ context.Context, permitted permit.Permit, p execapi.ExecParams, _ bool) error {
	name, err := permitted.Workspace()
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.detached = p
	d.mu.Unlock()
	return d.reach("detach", name)
}

func (d *runtimeDouble) Commands(_ context.Context, name id.Workspace) ([]execapi.Command, error) {
	d.mu.Lock()
	list := d.list
	d.mu.Unlock()
	return list, d.reach("commands", name)
}

func (d *runtimeDouble) Output(_ context.Context, name id.Workspace, _ execapi.OutputParams) (execapi.OutputResult, []*os.File, error) {
	return execapi.OutputResult{}, nil, d.reach("output", name)
}

func (d *runtimeDouble) Attach(
	_ context.Context, permitted permit.Permit, _ execapi.OutputParams,
) (execapi.OutputResult, []*os.File, error) {
	name, err := permitted.Workspace()
	if err != nil {
		return execapi.OutputResult{}, nil, err
	}
	return execapi.OutputResult{}, nil, d.reach("output", name)
}

func (d *runtimeDouble) Signal(_ context.Context, permitted permit.Permit, _ execapi.StopTaskParams) error {
	name, err := permitted.Workspace()
	if err != nil {
		return err
	}
	return d.reach("signal", name)
}

func (d *runtimeDouble) Resize(_ context.Context, permitted permit.Permit, _ execapi.ResizeParams) error {
	name, err := permitted.Workspace()
	if err != nil {
		return err
	}
	return d.reach("resize", name)
}

// processDouble is a test double of an attached command; it ends when the test says so.
type processDouble struct {
	id  id.Command
	end chan error
}

// Dial connects to a port of this host's loopback.
// Listen opens a socket of this process, with the name that it would have inside.
func (d *runtimeDouble) Listen(ctx context.Context, p permit.Permit, task id.Command) (*net.UnixListener, error) {
	name, err := p.Workspace()
	if err != nil {
		return nil, err
	}
	if err := d.reach("listen", name); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", execapi.Listening(task))
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

func (d *runtimeDouble) Dial(_ context.Context, p permit.Permit, port int) (*net.TCPConn, error) {
	name, err := p.Workspace()
	if err != nil {
		return nil, err
	}
	if err := d.reach("dial", name); err != nil {
		return nil, err
	}
	return net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
}

// Gone is closed by lose.
func (d *runtimeDouble) Gone(_ context.Context, name id.Workspace) (<-chan struct{}, error) {
	if err := d.reach("gone", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone == nil {
		d.gone = make(chan struct{})
	}
	return d.gone, nil
}

// lose has the executors of all workspaces be gone.
func (d *runtimeDouble) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone != nil {
		close(d.gone)
		d.gone = nil
	}
}

func (p *processDouble) Files() []*os.File { return nil }
func (p *processDouble) PID() int          { return 2 }
func (p *processDouble) Close() error      { return nil }

func (p *processDouble) Wait(ctx context.Context) (execapi.Status, error) {
	select {
	case err := <-p.end:
		p.end <- err
		return execapi.Status{Code: 9}, err
	case <-ctx.Done():
		return execapi.Status{}, ctx.Err()
	}
}
