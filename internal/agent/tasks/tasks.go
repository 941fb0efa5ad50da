// Package tasks runs tasks: programs in workspaces that are given a prompt, report messages and ask for permissions, by
// carrel's own protocol (docs/protocols/tasks.md) or by ACP. It keeps what they report, in order.
//
// It must not decide who may do what: the gate does. It trusts nothing that a program says, and what a program asks for
// gives it nothing but an answer.
package tasks

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/turns"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/service/commands"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// The protocols that a task's program may speak.
const (
	Carrel = "carrel"
	ACP    = "acp"
	// Agent is ACP with a request by which plans are proposed: see agent.
	Agent = "agent"
	// SeatACP is ACP of any agent, in the place of carrel's own. It proposes by tools: see inSeat.
	SeatACP = "agent-acp"
)

// proposes reports whether a program of a protocol has no power of its own, and proposes what is to be done elsewhere.
func proposes(protocol string) bool { return protocol == Agent || protocol == SeatACP }

// Bounds.
const (
	// MaxPrompt bounds a prompt in bytes.
	MaxPrompt = 128 << 10
	// DefaultTime is how long a task may take if its command has no time limit of its own.
	DefaultTime = time.Hour
	// DefaultWait is how long a person may take to answer what a task asks.
	DefaultWait = 10 * time.Minute
	// maxOfOwner and maxRunning bound the tasks that run, of one owner and in all; each holds one line and what is not
	// stored yet, 1 MiB at most together.
	maxOfOwner, maxRunning = 32, 128
	// maxKept bounds the tasks that are kept of one owner.
	maxKept = 128
	// atOnce is how many messages one look at the store takes.
	atOnce = 4
)

// Config holds the dependencies of New. All but Redact and Tools are required.
type Config struct {
	// Turns carry out the plans of agents.
	Turns     *turns.Turns
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	Commands  *commands.Commands
	Store     *store.Store
	// Allow has a person asked, for at most so long or until gone is closed.
	Allow  func(name id.Workspace, asks operation.TaskAsks, wait time.Duration, gone <-chan struct{}) (allowed bool, why string)
	Redact *redact.Redactor
	// Tools are those of programs that speak ACP.
	Tools Tools
	// Turn is told that a turn of an agent begins, so that what it uses of models is recorded under its trace; over is called at
	// its end.
	Turn func(name id.Workspace, trace id.Trace) (over func())
	// Patience is for tests; what is zero is as usual.
	Patience Patience
	Log      *slog.Logger
}

// Tasks are the tasks of all workspaces. Its methods may be called from any goroutine.
type Tasks struct {
	cfg Config

	mu     sync.Mutex
	live   map[id.Command]*conversation
	of     map[string]int // running tasks, and those about to, by owner
	n      int
	closed bool
	all    sync.WaitGroup
}

// New returns tasks, of which none runs.
func New(cfg Config) *Tasks {
	if cfg.Patience == (Patience{}) {
		cfg.Patience = patience
	}
	return &Tasks{cfg: cfg, live: map[id.Command]*conversation{}, of: map[string]int{}}
}

// Recover notes that the tasks of the last run have ended with it.
func (t *Tasks) Recover(ctx context.Context) error {
	return t.cfg.Store.FailTasks(ctx, workspace.TaskUnexpected+": the daemon ended, and the conversation with it", time.Now())
}

// CloseTasks waits for the ends of all tasks, which come with the end of the runtime. No more are started.
func (t *Tasks) CloseTasks() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.all.Wait()
}

// ended is what the outcome of a task says.
type ended struct {
	Task     id.Command          `json:"command"`
	State    workspace.TaskState `json:"state"`
	Messages int64               `json:"messages"`
}

// RunTask starts a task in the workspace that ref names, which is started if it does not run, and returns once it is kept.
// Its command is judged as any other. resource_exhausted: as many of the owner's, or in all, run.
func (t *Tasks) RunTask(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, spec workspace.TaskSpec) (
	task workspace.Task, err error,
) {
	protocol, prompt := cmp.Or(spec.Protocol, Carrel), spec.Prompt
	switch {
	case dialects[protocol] == nil:
		return task, fmt.Errorf("cannot run a task by the protocol %q: there are carrel, acp, agent and agent-acp: %w", protocol,
			errdefs.ErrInvalidArgument)
	case len(prompt) > MaxPrompt:
		return task, fmt.Errorf("cannot run a task with a prompt of %d bytes: at most %d are allowed; put the rest into a file inside: %w",
			len(prompt), MaxPrompt, errdefs.ErrInvalidArgument)
	case spec.FD != 0 && (spec.FD < execapi.MinSocket || spec.FD > execapi.MaxSocket):
		return task, fmt.Errorf("cannot run a task on the descriptor %d: %d to %d can be given; 0 is stdin and stdout: %w",
			spec.FD, execapi.MinSocket, execapi.MaxSocket, errdefs.ErrInvalidArgument)
	case prompt == "" || !utf8.ValidString(prompt):
		return task, fmt.Errorf("cannot run a task: its prompt is empty or no UTF-8; give it a text: %w", errdefs.ErrInvalidArgument)
	}
	authorised, err := t.cfg.Lifecycle.Authorise(ctx, p, ref, operation.NewTask(protocol, prompt, spec.FD))
	if err != nil {
		return task, err
	}
	if spec.After != "" {
		if _, err := t.cfg.Store.Task(ctx, authorised.On().Name, spec.After); err != nil {
			return task, err
		}
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return task, err
	}
	on := authorised.On()
	if err := t.reserve(on.Owner); err != nil {
		return task, a.Deny(ctx, err)
	}
	wait := time.Duration(e.Asked.WaitMS) * time.Millisecond
	if wait == 0 || wait < 0 && !proposes(protocol) { // an agent's plan need not wait
		wait = DefaultWait
	}
	if e.TimeoutMS == 0 {
		e.TimeoutMS = DefaultTime.Milliseconds()
	}
	started := false
	defer func() {
		if !started {
			t.release(on.Owner)
		}
	}()
	var c *conversation
	err = a.Do(ctx, func(ctx context.Context, pm permit.Permit) (any, error) {
		e.Asked.Trace = a.Request().Trace
		e.Socket = spec.FD
		cmd, proc, err := t.spawn(ctx, p, ref, e)
		if err != nil {
			return nil, err
		}
		s, argv, end, err := t.openTools(ctx, pm, protocol, cmd, a.Request())
		if err != nil {
			abandon(proc)
			return nil, err
		}
		crashpoint.Here("daemon.task.spawned")
		task = workspace.Task{
			ID: cmd, Workspace: on.Name, Owner: on.Owner, Principal: p.String(), Protocol: protocol, Argv: t.cfg.Redact.Argv(e.Argv),
			State: workspace.TaskRunning, Began: time.Now(),
		}
		c = t.open(a.Request(), task, proc, wait, spec)
		c.tools, c.cutTools, c.seat = argv, end, s
		if err = t.cfg.Store.AddTask(ctx, task, maxKept); err == nil {
			crashpoint.Here("daemon.task.kept")
			err = t.begin(c, prompt)
		}
		if err != nil {
			end()
			abandon(proc)
			return nil, err
		}
		started = true
		c.record = &gate.Pending{Wait: c.outcome}
		return c.record, nil
	})
	if started {
		close(c.ready)
	}
	return task, err
}

// spawn starts the command of a task.
func (t *Tasks) spawn(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams) (id.Command, runtime.Process, error) {
	streams := 1
	if e.Socket == 0 {
		streams, e.Stdin, e.Stdout, e.Stderr = 3, execapi.Pipe, execapi.Pipe, execapi.Pipe
	}
	cmd, proc, err := t.cfg.Commands.Spawn(ctx, p, ref, e, false)
	if err != nil {
		return "", nil, err
	}
	files := proc.Files()
	if err = pollfd.OpenAll(files); err == nil && len(files) != streams {
		err = fmt.Errorf("cannot use the streams of %s: there are %d: %w", cmd, len(files), errdefs.ErrInternal)
	}
	if err != nil {
		abandon(proc)
		return "", nil, err
	}
	return cmd, proc, nil
}

// abandon ends a command of which no task came.
func abandon(proc runtime.Process) {
	for _, f := range proc.Files() {
		_ = f.Close()
	}
	_ = proc.Close()
}

// reserve takes a place for a task of an owner.
func (t *Tasks) reserve(owner string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return fmt.Errorf("cannot run a task: the daemon is stopping: %w", errdefs.ErrUnavailable)
	case t.of[owner] >= maxOfOwner:
		return fmt.Errorf("cannot run another task: %d of %s run, the most there may be; stop one with \"carrel task stop\": %w", t.of[owner],
			owner, errdefs.ErrResourceExhausted)
	case t.n >= maxRunning:
		return fmt.Errorf("cannot run another task: %d run on this host, the most there may be; try again later: %w", t.n,
			errdefs.ErrResourceExhausted)
	}
	t.n++
	t.of[owner]++
	return nil
}

func (t *Tasks) release(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.of[owner]--; t.of[owner] == 0 {
		delete(t.of, owner)
	}
}

// begin has a conversation go on until its task and its command have ended. Its place is given back then.
func (t *Tasks) begin(c *conversation, prompt string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("cannot run a task: the daemon is stopping: %w", errdefs.ErrUnavailable)
	}
	t.live[c.task.ID] = c
	over := func() {}
	if proposes(c.task.Protocol) {
		over = t.cfg.Turn(c.task.Workspace, c.trace)
	}
	t.all.Go(func() {
		defer t.release(c.task.Owner)
		defer over()
		c.run(prompt)
	})
	return nil
}

// over is called when the end of a task is kept.
func (t *Tasks) over(task id.Command) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, task)
}

// running returns a task that runs, nil if it does not.
func (t *Tasks) running(on id.Workspace, task id.Command) *conversation {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.live[task]; c != nil && c.task.Workspace == on {
		return c
	}
	return nil
}

// stop has a task that runs stop, nil if it does not run.
func (t *Tasks) stop(on id.Workspace, task id.Command, by string) *conversation {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.live[task]
	if c == nil || c.task.Workspace != on {
		return nil
	}
	if c.stopping(by) { // one that is among the living is waited for by all
		t.all.Go(c.speak.stop)
		t.all.Go(func() {
			within(c.told, c.limit.Stop)
			_ = c.proc.Close() // after its end this does nothing
		})
	}
	return c
}

// ListTasks returns the tasks of a workspace that are kept, the newest first.
func (t *Tasks) ListTasks(ctx context.Context, p principal.Principal, ref string) ([]workspace.Task, error) {
	a, err := t.cfg.Lifecycle.Authorise(ctx, p, ref, operation.Simple(operation.ListTasks))
	if err != nil {
		return nil, err
	}
	return t.cfg.Store.Tasks(ctx, a.On().Name)
}

// Task returns a task of a workspace.
func (t *Tasks) Task(ctx context.Context, p principal.Principal, ref string, task id.Command) (workspace.Task, error) {
	a, err := t.cfg.Lifecycle.Authorise(ctx, p, ref, operation.OnCommand(operation.ShowTask, task))
	if err != nil {
		return workspace.Task{}, err
	}
	return t.cfg.Store.Task(ctx, a.On().Name, task)
}

// admit passes the gate for an operation on a task that is there.
func (t *Tasks) admit(ctx context.Context, p principal.Principal, ref string, name operation.Name, task id.Command) (
	on id.Workspace, a *gate.Admitted, err error,
) {
	authorised, err := t.cfg.Lifecycle.Authorise(ctx, p, ref, operation.OnCommand(name, task))
	if err != nil {
		return on, nil, err
	}
	on = authorised.On().Name
	if _, err := t.cfg.Store.Task(ctx, on, task); err != nil {
		return on, nil, err
	}
	a, err = authorised.Admit(ctx)
	return on, a, err
}

// StopTask asks a task to stop, ends its command if it has not within a moment, and returns how it ended. A task that has
// ended stays as it is.
func (t *Tasks) StopTask(ctx context.Context, p principal.Principal, ref string, task id.Command) (out workspace.Task, err error) {
	on, a, err := t.admit(ctx, p, ref, operation.StopTask, task)
	if err != nil {
		return out, err
	}
	err = a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		if c := t.stop(on, task, p.String()); c != nil {
			select {
			case <-c.told:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		out, err = t.cfg.Store.Task(ctx, on, task)
		return nil, err
	})
	return out, err
}

// FollowTask calls emit with the messages of a task after number after, in their order, and with how many before each are
// no longer kept; unless now is set it waits for more, until the task has ended or ctx does. It returns the task then.
func (t *Tasks) FollowTask(ctx context.Context, p principal.Principal, ref string, task id.Command, after int64, now bool,
	emit func(m workspace.TaskMessage, lost int64) error,
) (out workspace.Task, err error) {
	on, a, err := t.admit(ctx, p, ref, operation.FollowTask, task)
	if err != nil {
		return out, err
	}
	err = a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		out, err = t.follow(ctx, on, task, after, now, emit)
		return nil, err
	})
	return out, err
}

func (t *Tasks) follow(ctx context.Context, on id.Workspace, task id.Command, after int64, now bool,
	emit func(workspace.TaskMessage, int64) error,
) (workspace.Task, error) {
	for {
		var more <-chan struct{}
		if c := t.running(on, task); c != nil && !now {
			more = c.more() // before the look, so that what comes meanwhile is not missed
		}
		all, err := t.cfg.Store.Messages(ctx, task, after, atOnce)
		if err != nil {
			return workspace.Task{}, err
		}
		for _, m := range all {
			if ctx.Err() != nil {
				return workspace.Task{}, context.Cause(ctx)
			}
			if err := emit(m, m.Number-after-1); err != nil {
				return workspace.Task{}, err
			}
			after = m.Number
		}
		if len(all) == atOnce {
			continue
		}
		if more == nil {
			return t.cfg.Store.Task(ctx, on, task)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return workspace.Task{}, context.Cause(ctx)
		}
	}
}

// key returns the placeholder of a secret that a workspace uses. The value of a secret is never given.
func (t *Tasks) key(on id.Workspace, task id.Command, name string) (placeholder string, err error) {
	k, err := t.cfg.Lifecycle.Living(on)
	if err != nil {
		return "", err
	}
	op := operation.TaskKey{ID: task, Name: name}
	target, _ := t.cfg.Lifecycle.Target(on)
	a, err := t.cfg.Gate.Admit(context.Background(), operation.Request{By: principal.InWorkspace(on, k.Owner), Op: op, On: target}, nil)
	if err != nil {
		return "", err
	}
	for _, u := range k.Secrets.Uses {
		switch {
		case u.Name != name:
		case u.Placeholder == "":
			return "", a.Deny(context.Background(), fmt.Errorf("cannot give a placeholder for %s: it is put into requests outside of the "+
				"workspace, so send them without: %w", name, errdefs.ErrPermissionDenied))
		default:
			err := a.Do(context.Background(), func(context.Context, permit.Permit) (any, error) { return nil, nil })
			return u.Placeholder, err
		}
	}
	return "", a.Deny(context.Background(), fmt.Errorf("cannot give a key by the name %.64q: the workspace uses no secret of that name, and "+
		"no raw key enters a workspace; have its owner give it one with \"carrel update --secret NAME\", which is used by a placeholder, or a "+
		"model with --model: %w", name, errdefs.ErrPermissionDenied))
}
