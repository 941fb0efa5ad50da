package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

const (
	// Messages are stored at once up to so many, or so many bytes; a second time not before pace. While that is waited for
	// nothing is read, and a program that floods waits in its write.
	batch, batchBytes = 64, 256 << 10
	pace              = 20 * time.Millisecond
	// keepMessages and keepBytes bound what is kept of one task. The oldest go.
	keepMessages, keepBytes = 4096, 2 << 20
	// maxAsking bounds the questions of a task that are open, and maxAsked those that it ever asks.
	maxAsking, maxAsked = 16, 1024
	// maxText bounds what a task asks a person, in bytes: nobody reads more.
	maxText = 8 << 10
	// tail is how much of the end of stderr is kept, for the reason of a failure.
	tail = 2 << 10
)

// Patience says how long what a program does may take.
type Patience struct {
	// Handshake is for each answer before the prompt is taken. Read is how long it may read nothing of what it is sent.
	Handshake, Read time.Duration
	// Stop is for the end after it was asked to stop. Leave is for the end of its command after that of the task, and
	// for its last output after the end of its command.
	Stop, Leave time.Duration
	// Serve is how long an agent's plan waits for the client that serves hosts.
	Serve time.Duration
	// Call is how long a call of a tool waits for the end of a plan that was proposed by one.
	Call time.Duration
}

// patience is that of all tasks; tests have another.
var patience = Patience{time.Minute, 30 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second, 25 * time.Second}

// dialect is what a program speaks. It is called by one goroutine, but for stop. An error of begin or take ends the task,
// which has failed by it.
type dialect interface {
	// begin sends what comes first.
	begin(prompt string) error
	// take takes what the program has sent.
	take(m linerpc.Message) error
	// stop asks the program to stop.
	stop()
}

// dialects are the protocols by name. A new version of ACP is a row of acpVersions.
var dialects = map[string]func(*conversation) dialect{
	Carrel: func(c *conversation) dialect { return &own{c: c} },
	ACP:    func(c *conversation) dialect { return &acp{c: c} },
	Agent:  newAgent,
	// Its tools are served before it begins.
	SeatACP: func(c *conversation) dialect { return newSeat(c) },
}

// conversation is a task that runs.
type conversation struct {
	tasks *Tasks
	by    principal.Principal
	trace id.Trace
	task  workspace.Task
	after id.Command // the task that it goes on from
	// planOnly: plans of an agent are not carried out.
	planOnly bool
	// orders are how steps of an agent's plans reach several hosts.
	orders fanout.Orders
	// excess is what an agent is told of the machine of whoever serves, in lines.
	excess []string
	// begins is what the session of an agent knew when it began.
	begins beginning
	proc   runtime.Process
	wait   time.Duration
	limit  Patience
	in     *os.File // its stdin
	out    *os.File
	err    *os.File // nil for one that speaks on a descriptor: then in and out are one socket
	speak  dialect
	// tools is the command that reaches the tools of the task, nil if it has none, and cutTools ends them.
	tools    []string
	cutTools func()
	// seat is what the tools of an agent in the place of carrel's own propose by; nil for other programs.
	seat  *proposals
	timer *time.Timer // of the dialect, and its goroutine's
	// quiet is closed when nobody is to be asked any more. The end is kept, then recorded by record, which is there once ready
	// is closed, and then told.
	quiet     chan struct{}
	quietOnce sync.Once
	kept      chan struct{}
	ready     chan struct{}
	record    *gate.Pending
	told      chan struct{}
	asking    sync.WaitGroup

	// about is closed once who said that they serve hosts does; nil if nobody said so.
	about     chan struct{}
	aboutOnce sync.Once

	writing sync.Mutex

	mu      sync.Mutex
	end     *end
	stopper string // who has stopped it
	// pending are messages that are not stored yet; sizes are those of the messages that are kept, the oldest first.
	pending      []workspace.TaskMessage
	pendingBytes int
	sizes        []int
	bytes        int
	last, lost   int64
	stored       time.Time
	changed      chan struct{} // closed when there is more, if somebody waits
	over         bool          // nothing more comes
	open         map[string]bool
	asked        int
	keys         map[string]bool
	stderr       []byte
	served       runtime.Hosts // who serves hosts, if anybody does
}

// end is how a task ends.
type end struct {
	state  workspace.TaskState
	reason string
}

func (t *Tasks) open(r *operation.Request, task workspace.Task, proc runtime.Process, wait time.Duration,
	spec workspace.TaskSpec,
) *conversation {
	f := proc.Files()
	c := &conversation{
		tasks: t, by: r.By, trace: r.Trace, task: task, after: spec.After, planOnly: spec.PlanOnly, orders: spec.Orders, excess: spec.Over,
		begins: beginning{Memory: spec.Memory, Foreign: spec.BringsData},
		proc:   proc, wait: wait, limit: t.cfg.Patience,
		in: f[0], out: f[0],
		quiet: make(chan struct{}), kept: make(chan struct{}), ready: make(chan struct{}), told: make(chan struct{}),
		open: map[string]bool{}, keys: map[string]bool{},
	}
	if len(f) > 1 {
		c.out, c.err = f[1], f[2]
	}
	if spec.Serve && proposes(task.Protocol) {
		c.about = make(chan struct{})
	}
	c.speak = dialects[task.Protocol](c)
	return c
}

// context is the store's turn of a task: that of what runs in its workspace.
func (c *conversation) context() context.Context {
	return principal.NewContext(context.Background(), principal.InWorkspace(c.task.Workspace, c.task.Owner))
}

// run is a task from its prompt to the end of its command.
func (c *conversation) run(prompt string) {
	var pumps sync.WaitGroup
	exited, drained := make(chan struct{}), make(chan struct{})
	pumps.Go(func() {
		defer close(drained)
		c.drainErrors()
	})
	var status execapi.Status
	var gone error
	pumps.Go(func() {
		defer close(exited)
		status, gone = c.proc.Wait(context.Background()) // it ends: with the command, its executor or the runtime
		leave := c.limit.Leave
		if gone != nil {
			leave = 0
		}
		for _, f := range []*os.File{c.out, c.err} {
			_ = f.SetReadDeadline(time.Now().Add(leave))
		}
	})
	cut := make(chan struct{})
	pumps.Go(func() { // also of a program that was asked to stop, and has not yet
		defer close(cut)
		<-c.quiet
		c.cutTools()
	})
	err := c.talk(prompt)
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.ending() == nil && err == nil { // its output has ended, and how its command did says why
		within(exited, c.limit.Leave)
	}
	c.hush()
	c.asking.Wait()
	c.seat.end()
	within(cut, c.limit.Leave) // nothing is done for a task that is said to have ended
	select {
	case <-exited:
		within(drained, c.limit.Leave)
		c.finish(c.why(err, &status, gone))
	default:
		c.finish(c.why(err, nil, nil))
	}
	if c.ending().state != workspace.TaskCompleted {
		_ = c.proc.Close()
		within(exited, 2*c.limit.Leave)
	}
	c.keep()
	// Nothing more is read: what it does after the end of its task is its own.
	c.closeInput()
	within(exited, c.limit.Leave)
	_ = c.proc.Close()
	_ = c.err.SetReadDeadline(time.Unix(1, 0))
	pumps.Wait()
	_ = c.out.Close()
	_ = c.err.Close()
}

func within(done <-chan struct{}, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// why is how a task ends whose program has not said how.
func (c *conversation) why(err error, status *execapi.Status, gone error) (workspace.TaskState, string) {
	c.mu.Lock()
	stopper, said := c.stopper, strings.TrimSpace(string(c.stderr))
	c.mu.Unlock()
	reason := ""
	switch {
	case stopper != "":
		return workspace.TaskStopped, "stopped by " + stopper
	case err != nil:
		return workspace.TaskFailed, err.Error()
	case gone != nil:
		reason = workspace.TaskUnexpected + ": " + gone.Error()
	case status == nil:
		reason = workspace.TaskUnexpected + ": it closed its output without saying how its task ended, and did not end"
	case status.TimedOut:
		reason = "it ran out of its time; give it more with --timeout"
	case status.OOM:
		reason = workspace.TaskUnexpected + ": the workspace ran out of memory"
	case status.Signal != 0:
		reason = fmt.Sprintf("%s: it was ended by signal %d", workspace.TaskUnexpected, status.Signal)
	default:
		reason = fmt.Sprintf("%s: it exited with %d before it said how its task ended", workspace.TaskUnexpected, status.Code)
	}
	if c.err == nil && gone == nil {
		reason += fmt.Sprintf("; \"carrel logs %s %s\" shows its output", c.task.Workspace, c.task.ID)
	}
	if said != "" {
		reason += fmt.Sprintf("; the end of its stderr: %.512q", c.tasks.cfg.Redact.Text(said))
	}
	return workspace.TaskFailed, reason
}

// talk speaks until the task ends, the program's output does, or the program breaks a rule.
func (c *conversation) talk(prompt string) error {
	c.begins = c.tasks.beginning(c.context(), c.task, c.after, c.begins)
	if err := c.message("prompt", prompted{prompt, c.after, c.begins}); err != nil {
		return err
	}
	if err := c.speak.begin(prompt); err != nil && !errors.Is(err, errPipe) { // what it says may follow all the same
		return c.broken(err)
	}
	r := linerpc.NewReader(c.out)
	for c.ending() == nil {
		m, err := r.Read()
		if err == nil {
			if err = c.speak.take(m); errors.Is(err, errPipe) {
				err = nil // what it says may follow all the same
			}
		}
		switch {
		case c.ending() != nil:
			return nil
		case errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed):
			return nil
		case errors.Is(err, unix.ECONNRESET): // so ends a socket of a program that has not read all that it was sent
			return nil
		case errors.Is(err, linerpc.ErrHalf):
			return fmt.Errorf("%s: its output ended in the middle of a line", workspace.TaskUnexpected)
		case err != nil:
			return c.broken(err)
		}
		if !r.More() {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// broken is the reason of a task whose program broke a rule. An error of the store is one of carrel's own.
func (c *conversation) broken(err error) error {
	if errors.Is(err, errFull) {
		return fmt.Errorf("cannot go on with the task: its program has read nothing of what it was sent for %v", c.limit.Read)
	}
	if err == nil || errors.Is(err, errPipe) {
		return nil // one that has gone: its end says why
	}
	return fmt.Errorf("cannot go on with the task: %s", c.tasks.cfg.Redact.Text(err.Error()))
}

// ending is how the task ends, nil while it goes on.
func (c *conversation) ending() *end {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

// finish ends the task; the first end holds.
func (c *conversation) finish(state workspace.TaskState, reason string) {
	c.mu.Lock()
	if c.end == nil {
		if c.stopper != "" && state == workspace.TaskCompleted {
			state, reason = workspace.TaskStopped, "stopped by "+c.stopper
		}
		c.end = &end{state, clip(c.tasks.cfg.Redact.Text(reason))}
	}
	c.mu.Unlock()
	c.hush()
	_ = c.out.SetReadDeadline(time.Unix(1, 0))
}

// fail ends the task from another goroutine than its reader's.
func (c *conversation) fail(format string, args ...any) {
	c.finish(workspace.TaskFailed, fmt.Sprintf(format, args...))
}

// hush ends the waiting for answers.
func (c *conversation) hush() { c.quietOnce.Do(func() { close(c.quiet) }) }

// stopping notes who has stopped the task; false if it was stopped before, or has ended.
func (c *conversation) stopping(by string) bool {
	c.mu.Lock()
	first := c.stopper == "" && c.end == nil
	if first {
		c.stopper = by
	}
	c.mu.Unlock()
	if first {
		c.hush()
	}
	return first
}

// stoppedBy is who has stopped the task; false if nobody has.
func (c *conversation) stoppedBy() (by string, stopped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopper, c.stopper != ""
}

// keep stores the end.
func (c *conversation) keep() {
	e := c.ending()
	if err := c.flush(); err != nil {
		c.tasks.cfg.Log.Error("cannot store the last messages of a task", "task", c.task.ID, "error", err)
	}
	if err := c.tasks.cfg.Store.EndTask(c.context(), c.task.ID, e.state, e.reason, time.Now()); err != nil {
		c.tasks.cfg.Log.Error("cannot store how a task ended; it fails with the next start", "task", c.task.ID, "error", err)
	}
	crashpoint.Here("daemon.task.ended")
	close(c.kept)
	<-c.ready
	c.record.Recorded()
	c.tasks.over(c.task.ID)
	close(c.told)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.wake()
}

// outcome waits for the end, for the record.
func (c *conversation) outcome() (any, error) {
	<-c.kept
	e := c.ending()
	data := ended{c.task.ID, e.state, c.last}
	if e.state == workspace.TaskFailed {
		return data, errors.New(e.reason)
	}
	return data, nil
}

// ask has a person asked, and answers the request beside what else is said.
func (c *conversation) ask(m linerpc.Message, title string, words []string, reply func(allowed bool, why string) any) error {
	size := len(title)
	for _, w := range words {
		size += len(w)
	}
	c.mu.Lock()
	key := string(m.ID)
	again, many, asked := c.open[key], len(c.open) >= maxAsking, c.asked
	if !again && !many && size <= maxText {
		c.open[key] = true
		c.asked++
	}
	number := c.asked
	c.mu.Unlock()
	switch {
	case again:
		return fmt.Errorf("it sent a request with the id %s while another with that id is open", key)
	case asked >= maxAsked:
		return fmt.Errorf("it asked for more than %d permissions", maxAsked)
	case size > maxText:
		return c.refuse(m, linerpc.Refused, "cannot ask a person: it takes %d bytes, and at most %d are shown; put it into a file", size, maxText)
	case many:
		return c.refuse(m, linerpc.Refused, "cannot ask a person: %d questions of this task are open, the most there may be", maxAsking)
	case len(words) == 0:
		return fmt.Errorf("it asked for a permission without saying for what")
	}
	asks := operation.TaskAsks{ID: c.task.ID, Title: plain(title), Asked: words, Number: number}
	if err := c.message("permission", map[string]any{"question": number, "title": asks.Title, "asked": words}); err != nil {
		return err
	}
	c.asking.Go(func() {
		allowed, why := c.tasks.cfg.Allow(c.task.Workspace, asks, c.wait, c.quiet)
		c.mu.Lock()
		delete(c.open, key)
		c.mu.Unlock()
		err := c.message("answer", map[string]any{"question": number, "allowed": allowed, "why": why})
		if err == nil {
			err = c.answer(m, reply(allowed, why))
		}
		if err = c.broken(err); err != nil {
			c.fail("%v", err)
		}
	})
	return nil
}
