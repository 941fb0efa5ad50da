package namespace

import (
	"context"
	"errors"
	"os"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Run implements runtime.Runtime. When ctx ends first, the result still says
// how the command ended, beside an error that wraps the cause of ctx.
func (r *Runtime) Run(ctx context.Context, p permit.Permit, e execapi.ExecParams) (execapi.ExecResult, error) {
	name, err := p.Workspace()
	if err != nil {
		return execapi.ExecResult{}, err
	}
	e.Wait, e.Detach = true, false
	l, err := r.link(ctx, name)
	if err != nil {
		return execapi.ExecResult{}, err
	}
	return l.run(ctx, e)
}

// Spawn implements runtime.Runtime.
func (r *Runtime) Spawn(ctx context.Context, p permit.Permit, e execapi.ExecParams, tty bool, fds ...*os.File) (runtime.Process, error) {
	name, err := p.Workspace()
	if err != nil {
		return nil, err
	}
	e.Wait, e.Detach = false, false
	l, err := r.link(ctx, name)
	if err != nil {
		return nil, err
	}
	proc, err := l.attach(ctx, e, tty, fds)
	if err != nil {
		return nil, err
	}
	return proc, nil
}

// Detach implements runtime.Runtime.
func (r *Runtime) Detach(ctx context.Context, p permit.Permit, e execapi.ExecParams, tty bool) error {
	name, err := p.Workspace()
	if err != nil {
		return err
	}
	e.Wait, e.Detach = false, true
	l, err := r.link(ctx, name)
	if err != nil {
		return err
	}
	return l.detach(ctx, e, tty)
}

// Commands implements runtime.Runtime.
func (r *Runtime) Commands(ctx context.Context, name id.Workspace) ([]execapi.Command, error) {
	var res execapi.ListResult
	_, err := r.ask(ctx, name, execapi.MethodList, struct{}{}, &res)
	return res.Commands, err
}

// Output implements runtime.Runtime.
func (r *Runtime) Output(
	ctx context.Context, name id.Workspace, o execapi.OutputParams,
) (res execapi.OutputResult, files []*os.File, err error) {
	files, err = r.ask(ctx, name, execapi.MethodLogs, o, &res)
	return res, files, err
}

// Attach implements runtime.Runtime.
func (r *Runtime) Attach(
	ctx context.Context, p permit.Permit, o execapi.OutputParams,
) (res execapi.OutputResult, files []*os.File, err error) {
	name, err := p.Workspace()
	if err != nil {
		return res, nil, err
	}
	files, err = r.ask(ctx, name, execapi.MethodAttach, o, &res)
	return res, files, err
}

// Signal implements runtime.Runtime.
func (r *Runtime) Signal(ctx context.Context, p permit.Permit, e execapi.StopTaskParams) error {
	name, err := p.Workspace()
	if err != nil {
		return err
	}
	_, err = r.ask(ctx, name, execapi.MethodStopTask, e, nil)
	return err
}

// Resize implements runtime.Runtime.
func (r *Runtime) Resize(ctx context.Context, p permit.Permit, e execapi.ResizeParams) error {
	name, err := p.Workspace()
	if err != nil {
		return err
	}
	_, err = r.ask(ctx, name, execapi.MethodResize, e, nil)
	return err
}

// Ping implements runtime.Runtime.
func (r *Runtime) Ping(ctx context.Context, name id.Workspace) error {
	_, err := r.ask(ctx, name, execapi.MethodPing, struct{}{}, nil)
	return err
}

// ask makes one bounded request to an executor.
func (r *Runtime) ask(ctx context.Context, name id.Workspace, method string, params, result any) ([]*os.File, error) {
	l, err := r.link(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := l.patient(ctx, method)
	defer cancel()
	files, err := l.conn.Call(ctx, method, params, result)
	if errors.Is(err, runtime.ErrSilent) {
		l.fellSilent()
	}
	return files, l.explain(ctx, err)
}
