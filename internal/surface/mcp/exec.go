package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// Bounds of a command.
const (
	defaultTimeout = 10 * time.Minute
	maxTimeout     = 24 * time.Hour
	maxStdin       = 256 << 10
	// progressEvery is how often a client that asked for progress hears of a command.
	progressEvery = time.Second
	// patience is how long the daemon may take to answer what should be answered at once.
	patience = 2 * time.Minute
)

type execArgs struct {
	Command  string            `json:"command,omitempty" jsonschema:"a line for sh; give this or argv"`
	Argv     []string          `json:"argv,omitempty" jsonschema:"the program and its arguments, which no shell reads"`
	Cwd      string            `json:"cwd,omitempty" jsonschema:"directory to run in, absolute or relative to the home, which is the default"`
	Env      map[string]string `json:"env,omitempty" jsonschema:"variables to set"`
	Stdin    string            `json:"stdin,omitempty" jsonschema:"text for the standard input, at most 256 KiB; without it is empty"`
	TimeoutS float64           `json:"timeout_s,omitempty" jsonschema:"end it after so many seconds: 600, or detached never, unless given"`
	Detach   bool              `json:"detach,omitempty" jsonschema:"let it go on by itself and return its id at once"`
}

// exec runs a command to its end, or detaches it.
func exec(ctx context.Context, c *call, in execArgs) (*answer, error) {
	spec, err := c.spec(ctx, in.Command, in.Argv, in.Cwd, in.Env)
	if err != nil {
		return nil, err
	}
	if spec.Timeout, err = timeout(in.TimeoutS, in.Detach); err != nil {
		return nil, err
	}
	if len(in.Stdin) > maxStdin {
		return nil, fmt.Errorf("cannot pass %d bytes as stdin: it has at most %d; write a file and read that: %w", len(in.Stdin), maxStdin,
			errdefs.ErrInvalidArgument)
	}
	if in.Detach {
		if in.Stdin != "" {
			return nil, fmt.Errorf("cannot pass stdin to a detached command: write a file and read that: %w", errdefs.ErrInvalidArgument)
		}
		return c.detach(ctx, spec)
	}
	return c.attached(ctx, spec, in.Stdin)
}

// spec is a command as the daemon is asked for it. A model wrote it.
func (c *call) spec(ctx context.Context, line string, argv []string, cwd string, env map[string]string) (s carrel.Spec, err error) {
	switch {
	case (line == "") == (len(argv) == 0):
		return s, fmt.Errorf("cannot tell what to run: give command or argv, and not both: %w", errdefs.ErrInvalidArgument)
	case line != "":
		argv = []string{"sh", "-c", line}
	}
	s = carrel.Spec{Argv: argv, Source: carrel.SourceLLM, Thread: c.session.thread, ApprovalWait: carrel.DoNotWait}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		s.Env = append(s.Env, name+"="+env[name])
	}
	s.Dir, err = c.dir(ctx, cwd)
	return s, err
}

// dir is a directory inside as an absolute path, "" for the home.
func (c *call) dir(ctx context.Context, cwd string) (string, error) {
	if path.IsAbs(cwd) {
		return cwd, nil
	}
	rest := strings.TrimPrefix(cwd, "~/")
	if cwd == "~" || strings.Trim(rest, "/") == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Workspaces().Get(ctx, connect.NewRequest(&carrelv1.GetRequest{Workspace: c.workspace}))
	if err != nil {
		return "", err
	}
	return path.Join(m.Msg.GetWorkspace().GetInsideHome(), rest), nil
}

func timeout(seconds float64, detached bool) (time.Duration, error) {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case seconds == 0 && detached:
		return 0, nil
	case seconds == 0:
		return defaultTimeout, nil
	case seconds < 0 || seconds > maxTimeout.Seconds():
		return 0, fmt.Errorf("cannot use timeout_s %v: give a number of seconds above 0, at most %v: %w", seconds, maxTimeout.Seconds(),
			errdefs.ErrInvalidArgument)
	}
	return max(d, time.Millisecond), nil
}

func (c *call) detach(ctx context.Context, s carrel.Spec) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	env := map[string]string{}
	for _, e := range s.Env {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	m, err := c.cfg.Client.Commands().Detach(ctx, connect.NewRequest(&carrelv1.DetachRequest{
		Workspace: c.workspace, Command: &carrelv1.Command{
			Argv: s.Argv, Env: env, Cwd: s.Dir, TimeoutMs: s.Timeout.Milliseconds(), Source: s.Source, Thread: s.Thread, ApprovalWaitMs: -1,
		},
	}))
	if err != nil {
		return nil, err
	}
	id := m.Msg.GetCommandId()
	a := said("started as %s; it goes on by itself. command_output with this id reads its output, command_signal ends it.", id)
	a.links = append(a.links, c.outputLink(id, ""))
	return a, nil
}

// attached runs a command that ends with the call: the daemon hangs it up when this connection to it is closed, whether
// the call was cancelled, the client has gone or this process was killed.
func (c *call) attached(ctx context.Context, s carrel.Spec, stdin string) (*answer, error) {
	s.Stdin = stdin != ""
	cmd, err := c.start(ctx, s)
	if err != nil {
		return nil, err
	}
	o := &output{workspace: c.workspace, id: cmd.ID}
	c.session.outputs.add(o)
	stop := c.progress(ctx, cmd.ID, o)
	streams := carrel.Streams{Stdout: &o.stdout, Stderr: &o.stderr}
	if s.Stdin {
		streams.Stdin = strings.NewReader(stdin)
	}
	status, err := cmd.Run(ctx, streams)
	stop()
	if err != nil {
		o.end("how it ended is not known")
		if ctx.Err() != nil {
			err = fmt.Errorf("cannot wait for %s: the call has ended, and the command was hung up: %w", cmd.ID, context.Cause(ctx))
		}
		return nil, err
	}
	o.end(ending(status))
	return c.shown(o, status), nil
}

// start starts a command. The daemon answers within its patience or the start is given up.
func (c *call) start(ctx context.Context, s carrel.Spec) (*carrel.Command, error) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd, err := c.cfg.Client.Start(timed, c.workspace, s)
	if err != nil && ctx.Err() == nil && errors.Is(timed.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("cannot wait any longer: carrel has not answered for %v: see \"carrel doctor\": %w", patience,
			errdefs.ErrUnavailable)
	}
	return cmd, err
}

// ending is how a command ended, for a model.
func ending(s carrel.Status) string {
	parts := []string{fmt.Sprintf("exit code %d", s.Code)}
	if s.Signal != 0 {
		parts[0] += fmt.Sprintf(" (signal %d)", s.Signal)
	}
	for _, x := range []struct {
		is   bool
		text string
	}{
		{s.TimedOut, "ended at its timeout"},
		{s.OOM, "the workspace ran out of memory"},
		{s.Stuck > 0, "some of its processes wait in the kernel and did not end"},
	} {
		if x.is {
			parts = append(parts, x.text)
		}
	}
	if d := s.Ended.Sub(s.Started); d > 0 {
		parts = append(parts, d.Round(time.Millisecond).String())
	}
	return strings.Join(parts, "; ")
}

// shown is the answer of a command that has ended. How it ended stands first, where output cannot imitate it.
func (c *call) shown(o *output, s carrel.Status) *answer {
	a := said("%s; %s", ending(s), o.id)
	for _, x := range []struct {
		name string
		k    *kept
	}{{"stdout", &o.stdout}, {"stderr", &o.stderr}} {
		text, whole := c.excerpt(o, x.name, x.k)
		if text != "" {
			a.texts = append(a.texts, x.name+":\n"+text)
		}
		if !whole {
			a.links = append(a.links, c.outputLink(o.id, x.name))
		}
	}
	return a
}

// excerpt is a stream, or its beginning and its end.
func (c *call) excerpt(o *output, name string, k *kept) (text string, all bool) {
	n := k.size()
	if n <= shownHead+shownTail {
		b, _ := k.at(0, shownHead+shownTail)
		return valid(b), true
	}
	head, _ := k.at(0, shownHead)
	head = whole(head)
	tail, from := k.at(n-shownTail, shownTail)
	return fmt.Sprintf("%s\n[%s of %s left out here, of %s: command_output with command %s, stream %s and offset %d reads on, or the "+
		"resource %s]\n%s", valid(head), size(from-int64(len(head))), name, size(n), o.id, name, len(head),
		c.outputURI(o.id, name, int64(len(head))), valid(tail)), false
}

// progress tells a client that asked for it that a command runs, until the function that it returns is called.
func (c *call) progress(ctx context.Context, what string, o *output) (stop func()) {
	token := c.request.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		began, t := time.Now(), time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			message := what
			if o != nil {
				message += fmt.Sprintf(" runs; %s of output", size(o.stdout.size()+o.stderr.size()))
			}
			// A client that is gone ends the call otherwise.
			_ = c.request.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: token, Progress: time.Since(began).Seconds(), Message: message,
			})
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

type outputArgs struct {
	Command string  `json:"command" jsonschema:"the id of the command, as exec and list_commands have it"`
	Stream  string  `json:"stream,omitempty" jsonschema:"stdout (the default) or stderr; a detached command has both as stdout"`
	Offset  int64   `json:"offset,omitempty" jsonschema:"from which byte on"`
	WaitS   float64 `json:"wait_s,omitempty" jsonschema:"wait so many seconds for more than the offset, at most 60"`
}

// commandOutput follows a command.
func commandOutput(ctx context.Context, c *call, in outputArgs) (*answer, error) {
	if in.Offset < 0 || in.WaitS < 0 || in.WaitS > 60 {
		return nil, fmt.Errorf("cannot use a negative offset, or a wait_s that is not from 0 to 60: %w", errdefs.ErrInvalidArgument)
	}
	p, err := c.part(ctx, in.Command, in.Stream, in.Offset, maxPart, time.Duration(in.WaitS*float64(time.Second)))
	if err != nil {
		return nil, err
	}
	state := "it runs"
	if p.ended != "" {
		state = p.ended
	}
	more := ""
	if p.more {
		more = "; there is more"
	}
	a := said("bytes %d to %d; next offset %d; %s%s", p.from, p.next, p.next, state, more)
	if p.from > in.Offset {
		a.texts[0] += fmt.Sprintf("; bytes %d to %d are no longer kept", in.Offset, p.from)
	}
	if p.text != "" {
		a.texts = append(a.texts, p.text)
	}
	return a, nil
}

// part is a part of the output of a command: its text, from the byte from up to next.
type part struct {
	text       string
	from, next int64
	ended      string
	more       bool
}

// part reads output that this session has kept, or what the daemon keeps of a detached command.
func (c *call) part(ctx context.Context, command, stream string, offset int64, length int, wait time.Duration) (part, error) {
	if stream != "" && stream != "stdout" && stream != "stderr" {
		return part{}, fmt.Errorf("cannot read the stream %q: it is stdout or stderr: %w", cut(clean(stream), 40), errdefs.ErrInvalidArgument)
	}
	ctx, cancel := within(ctx, patience+wait)
	defer cancel()
	o := c.session.outputs.find(c.workspace, command)
	if o == nil {
		p, err := c.log(ctx, command, offset, length, wait)
		if errdefs.IsNotFound(err) {
			err = fmt.Errorf("cannot find output of %s: this session keeps that of its newest %d attached commands, and carrel that of detached "+
				"ones; have a command write into a file to keep it: %w", cut(clean(command), 64), maxOutputs, errdefs.ErrNotFound)
		}
		return p, err
	}
	k := &o.stdout
	if stream == "stderr" {
		k = &o.stderr
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	changed := k.change(offset)
	if o.how() == "" && wait > 0 {
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return part{}, context.Cause(ctx)
		}
	}
	ended := o.how() // before the read: what it had written is there then
	b, from := k.at(offset, length)
	more := from+int64(len(b)) < k.size()
	b = until(b, more, ended)
	return part{text: valid(b), from: from, next: from + int64(len(b)), ended: ended, more: more}, nil
}

// log reads the output of a detached command from the daemon.
func (c *call) log(ctx context.Context, command string, offset int64, length int, wait time.Duration) (part, error) {
	p, err := c.logged(ctx, command, offset, length, false)
	if err != nil || p.next > p.from || p.ended != "" || wait == 0 {
		return p, err
	}
	timed, cancel := within(ctx, wait)
	defer cancel()
	p, err = c.logged(timed, command, offset, length, true)
	if err != nil && timed.Err() != nil && ctx.Err() == nil { // nothing has come in that time
		return part{from: offset, next: offset}, nil
	}
	return p, err
}

// logged reads once. With follow it returns as soon as there is something, or the command has ended.
func (c *call) logged(ctx context.Context, command string, offset int64, length int, follow bool) (part, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.cfg.Client.Commands().Logs(ctx, connect.NewRequest(&carrelv1.LogsRequest{
		Workspace: c.workspace, CommandId: command, Follow: follow,
	}))
	if err != nil {
		return part{}, err
	}
	defer s.Close()
	var b []byte
	at, p := int64(0), part{}
	for s.Receive() {
		m := s.Msg()
		at += m.GetLost()
		data, begin := m.GetData(), at
		at += int64(len(data))
		if st := m.GetStatus(); st != nil {
			p.ended = ending(carrel.StatusOf(st))
		}
		if skip := offset - begin; skip > 0 {
			data = data[min(skip, int64(len(data))):]
			begin += min(skip, int64(len(m.GetData())))
		}
		if len(b) == 0 {
			p.from = begin
		}
		room := length - len(b)
		p.more = p.more || len(data) > room
		b = append(b, data[:min(room, len(data))]...)
		if follow && len(whole(b)) > 0 {
			break
		}
	}
	if err := s.Err(); err != nil && len(b) == 0 {
		return part{}, err
	}
	b = until(b, p.more, p.ended)
	p.text, p.next = valid(b), p.from+int64(len(b))
	return p, nil
}

// until is b without a character at its end of which the rest comes later. Something is left if there is more, so that
// who reads on comes forward.
func until(b []byte, more bool, ended string) []byte {
	w := whole(b)
	if !more && ended != "" || more && len(w) == 0 {
		return b
	}
	return w
}

type signalArgs struct {
	Command string `json:"command" jsonschema:"the id of the command"`
	Signal  int32  `json:"signal,omitempty" jsonschema:"the number of a signal, as 2 for INT and 15 for TERM; without, the command is ended"`
}

func commandSignal(ctx context.Context, c *call, in signalArgs) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := c.cfg.Client.Commands().Signal(ctx, connect.NewRequest(&carrelv1.SignalRequest{
		Workspace: c.workspace, CommandId: in.Command, Signal: in.Signal,
	}))
	if err != nil {
		return nil, err
	}
	if in.Signal == 0 {
		return said("%s is being ended", clean(in.Command)), nil
	}
	return said("signal %d was sent to %s", in.Signal, clean(in.Command)), nil
}

func listCommands(ctx context.Context, c *call, _ struct{}) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Commands().ListCommands(ctx, connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: c.workspace}))
	if err != nil {
		return nil, err
	}
	var lines bounded
	for _, x := range m.Msg.GetCommands() {
		state, kind := "running", "attached"
		if x.GetStatus() != nil {
			state = ending(carrel.StatusOf(x.GetStatus()))
		}
		if x.GetDetached() {
			kind = "detached"
		}
		lines.add("%s  %s  %s  %s", x.GetCommandId(), kind, state, cut(quoted(x.GetArgv()), 200))
	}
	return lines.answer("there are no commands", "there are more"), nil
}
