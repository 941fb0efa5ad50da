package executor

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// command is one started command. It ends with its main process: processes that this leaves
// behind in the command's sub-group are ended then too.
type command struct {
	e        *Executor
	id       id.Command
	argv     []string
	peer     *peer
	detached bool
	keeps    bool // its output is kept, also after its end: it is detached, or has a socket
	tty      bool
	pid      int
	pidfd    int
	group    *group
	// master is the terminal's master side, kept for resizing, and for reading if the command
	// is detached.
	master *os.File
	// stdout and stderr collect captured output; nil where it goes elsewhere.
	stdout, stderr *capture
	// buffer keeps the output of a command that keeps it, which is read from source.
	buffer *ring
	// session is the name of the session that it is, "" for none, and shared its terminal until it ends. The executor's lock
	// guards both.
	session string
	shared  *shared
	source  *os.File
	readers sync.WaitGroup // goroutines that fill stdout, stderr and buffer
	input   []chunk        // reserved for stdin data
	started time.Time
	// begun: it runs, and what is above does not change any more. Until then nothing of it may be used.
	begun atomic.Bool

	mu     sync.Mutex
	reaped bool
	ending bool
	// early, if set, ends the command as soon as it runs: that was asked for while it was being started.
	early func()
	// released: groups has the sub-group back.
	released bool
	// abandoned: status is final although the main process has not ended.
	abandoned bool
	timer     *time.Timer

	// notify, if set, is called once status is final. It must not block.
	notify func()
	// done is closed once status is final.
	done   chan struct{}
	status execapi.Status
}

// check checks a request against the limits of the protocol before anything is done.
func check(p *execapi.ExecParams, tty bool, fds int) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("cannot run the command: "+format+": %w", append(a, errdefs.ErrInvalidArgument)...)
	}
	if _, err := id.ParseCommand(string(p.ID)); err != nil {
		return err
	}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return bad("no program is named")
	}
	if len(p.Argv)+len(p.Env) > execapi.MaxArgs {
		return bad("it has %d arguments and variables, at most %d are taken", len(p.Argv)+len(p.Env), execapi.MaxArgs)
	}
	size := 0
	for _, s := range p.Argv {
		size += len(s)
		if strings.IndexByte(s, 0) >= 0 {
			return bad("an argument contains a zero byte")
		}
	}
	for _, s := range p.Env {
		size += len(s)
		if i := strings.IndexByte(s, '='); i <= 0 || strings.IndexByte(s, 0) >= 0 {
			return bad("variable %.40q is not NAME=VALUE", s)
		}
	}
	if size > execapi.MaxArgBytes {
		return bad("arguments and variables are %d bytes long, at most %d are taken", size, execapi.MaxArgBytes)
	}
	shown := len(p.Shown)
	for _, s := range p.Shown {
		shown += len(s)
	}
	if shown > execapi.MaxShown {
		return bad("the words to show are %d bytes long, at most %d are taken", shown, execapi.MaxShown)
	}
	if p.Cwd != "" && (p.Cwd[0] != '/' || strings.IndexByte(p.Cwd, 0) >= 0) {
		return bad("directory %q is not absolute", p.Cwd)
	}
	if p.TimeoutMS < 0 || p.GraceMS < 0 || p.GraceMS > execapi.MaxGraceMS {
		return bad("timeout %d ms or grace %d ms is out of range", p.TimeoutMS, p.GraceMS)
	}
	if p.OutputLimit < 0 || p.OutputLimit > execapi.MaxOutput || (!p.Keeps() && p.OutputLimit > execapi.MaxCapture) {
		return bad("output limit %d is out of range", p.OutputLimit)
	}
	if len(p.StdinData) > execapi.MaxCapture || (len(p.StdinData) > 0 && p.Stdin != execapi.Capture) {
		return bad("%d bytes of stdin data cannot be taken", len(p.StdinData))
	}
	if p.Detach && p.Stdin != "" && p.Stdin != execapi.Null {
		return bad("a detached command has no standard input; write its input to a file first")
	}
	if p.Session != "" {
		if err := execapi.CheckSession(p.Session); err != nil {
			return err
		}
	}
	if (p.Session != "" || p.Record) && (p.Session == "" || !tty || !p.Detach) {
		return bad("a session is detached and has a terminal and a name")
	}
	if p.Detach && p.Wait {
		return bad("it cannot be detached and waited for")
	}
	if p.Socket != 0 {
		if p.Socket < execapi.MinSocket || p.Socket > execapi.MaxSocket {
			return bad("its socket cannot be the descriptor %d; %d to %d are allowed", p.Socket, execapi.MinSocket, execapi.MaxSocket)
		}
		if tty || p.Detach || p.Wait || p.Program || p.Stdin != "" || p.Stdout != "" || p.Stderr != "" {
			return bad("one with a socket is attached, has no terminal and no streams of its own, and is not waited for")
		}
	}
	want := 0
	if p.Program {
		want++
		if tty || p.Detach {
			return bad("a terminal or detached command takes no program by descriptor")
		}
	}
	for _, s := range []execapi.Stream{p.Stdin, p.Stdout, p.Stderr} {
		switch s {
		case "", execapi.Null:
		case execapi.FD:
			want++
			if tty || p.Detach {
				return bad("a terminal or detached command takes no descriptors")
			}
		case execapi.Pipe:
			if p.Detach || p.Wait {
				return bad("stream %q is for attached commands", s)
			}
		case execapi.Capture:
			if !p.Wait && !p.Detach {
				return bad("stream %q needs wait or detach", s)
			}
		default:
			return bad("stream %q is unknown", s)
		}
	}
	if tty && p.Wait {
		return bad("a terminal cannot be waited for")
	}
	if fds != want {
		return bad("it came with %d descriptors and needs %d", fds, want)
	}
	return nil
}

// sharedOf is the terminal of a session, nil for another command and for one that has ended.
func (e *Executor) sharedOf(c *command) *shared {
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.shared
}

func (e *Executor) find(name id.Command) (*command, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.commands[name]
	if c == nil {
		return nil, fmt.Errorf("cannot find command %s: it is not known here; it may have ended: %w", name, errdefs.ErrNotFound)
	}
	return c, nil
}

// findBegun is find for what takes a command that runs or has run. It is in the table before.
func (e *Executor) findBegun(name id.Command) (*command, error) {
	c, err := e.find(name)
	if err == nil && !c.begun.Load() {
		return nil, fmt.Errorf("cannot use command %s: it is being started; try again: %w", name, errdefs.ErrFailedPrecondition)
	}
	return c, err
}

// reserve adds c to the table, and removes the oldest ended command whose output is kept if that is full.
func (e *Executor) reserve(c *command) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return fmt.Errorf("cannot run the command: the workspace is being stopped: %w", errdefs.ErrFailedPrecondition)
	}
	if e.commands[c.id] != nil {
		return fmt.Errorf("cannot run the command: id %s is in use: %w", c.id, errdefs.ErrAlreadyExists)
	}
	if len(e.commands) >= execapi.MaxCommands && !e.forgetOldest() {
		return fmt.Errorf("cannot run the command: %d are running, the most there may be; end some (carrel ps, carrel kill): %w",
			execapi.MaxCommands, errdefs.ErrResourceExhausted)
	}
	e.commands[c.id] = c
	return nil
}

func (e *Executor) forgetOldest() bool {
	var oldest *command
	for _, c := range e.commands {
		select {
		case <-c.done:
			if oldest == nil || c.started.Before(oldest.started) {
				oldest = c
			}
		default:
		}
	}
	if oldest == nil {
		return false
	}
	delete(e.commands, oldest.id)
	oldest.buffer.forget()
	return true
}

func (e *Executor) forget(c *command) {
	e.mu.Lock()
	delete(e.commands, c.id)
	e.mu.Unlock()
}

// list lists all commands. With count it counts the processes of each, which the loop must not
// do.
func (e *Executor) list(count bool) execapi.ListResult {
	e.mu.Lock()
	all := make([]*command, 0, len(e.commands))
	for _, c := range e.commands {
		all = append(all, c)
	}
	e.mu.Unlock()
	slices.SortFunc(all, func(a, b *command) int {
		return cmp.Or(a.started.Compare(b.started), cmp.Compare(a.id, b.id))
	})
	out := execapi.ListResult{Limits: e.spec.Limits, Commands: []execapi.Command{}}
	budget := execapi.MaxFrame / 2
	for _, c := range all {
		c.mu.Lock()
		pid := c.pid // 0 while it is being started
		c.mu.Unlock()
		row := execapi.Command{
			ID: c.id, PID: pid, Argv: shorten(c.argv, &budget), Detached: c.detached, TTY: c.tty,
			StartedNS: c.started.UnixNano(),
		}
		select {
		case <-c.done:
			row.Status = &c.status
		default:
		}
		e.mu.Lock()
		t := c.shared
		row.Session = c.session
		e.mu.Unlock()
		if t != nil {
			t.row(&row)
		}
		if count && (row.Status == nil || row.Status.Stuck > 0) {
			c.inGroup(func(g *group) { row.Processes = len(g.pids()) })
		}
		out.Commands = append(out.Commands, row)
	}
	return out
}

// listedArgv is how much of a command's argv is listed and kept for that, in bytes.
const listedArgv = 256

// listable returns argv, or its beginning if it is long, which must not be kept for as long as the
// command is listed.
func listable(argv []string) []string {
	size := 0
	for _, a := range argv {
		size += len(a) + 1
	}
	if size <= listedArgv {
		return argv
	}
	return shorten(argv, &size)
}

// shorten cuts a long argv, so that a list of many commands fits one frame.
func shorten(argv []string, budget *int) []string {
	left := min(listedArgv, max(*budget, 0))
	var out []string
	for _, a := range argv {
		if len(a) > left {
			a = strings.ToValidUTF8(a[:left], "") + "…"
		}
		out = append(out, a)
		left -= len(a)
		*budget -= len(a)
		if left <= 0 {
			break
		}
	}
	return out
}

// signal sends s to the command's process group.
func (c *command) signal(s unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped || c.pid == 0 {
		return fmt.Errorf("cannot signal %s: it has ended: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	// It is not reaped, so the pid still names this command's process group.
	if err := unix.Kill(-c.pid, s); err != nil {
		return fmt.Errorf("cannot signal %s: %w", c.id, err)
	}
	return nil
}

// hangup ends an attached command whose client has closed its connection.
func (c *command) hangup() { c.end(unix.SIGHUP, execapi.DefaultGraceMS*time.Millisecond) }

// end ends the command: it sends first, then TERM if first was another signal, each with CONT for
// a stopped process; after the grace it kills everything in the sub-group, and abandons what
// does not end by that. It returns at once. A command that is being started ends as soon as it runs.
func (c *command) end(first unix.Signal, grace time.Duration) {
	c.mu.Lock()
	if c.pid == 0 && c.early == nil {
		c.early = func() { c.end(first, grace) }
	}
	if c.ending || c.pid == 0 {
		c.mu.Unlock()
		return
	}
	c.ending = true
	c.mu.Unlock()
	go func() {
		for _, s := range slices.Compact([]unix.Signal{first, unix.SIGTERM}) {
			_ = c.signal(s) // it may have ended
			_ = c.signal(unix.SIGCONT)
		}
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-c.done:
		case <-t.C:
			_ = c.signal(unix.SIGKILL)
			c.inGroup((*group).kill)
			t.Reset(killWait)
			select {
			case <-c.done:
			case <-t.C:
				c.abandon()
			}
		}
	}()
}

// abandon makes the status of a command final although its main process sleeps in the kernel and
// does not end by KILL, so that nobody waits for it for ever. Its sub-group is not used again
// before the process has ended.
func (c *command) abandon() {
	left := len(c.group.pids())
	c.mu.Lock()
	if c.reaped { // settle handles what it left
		c.mu.Unlock()
		return
	}
	c.abandoned = true
	s := &c.status
	s.Code, s.Signal, s.Stuck = 128+int(unix.SIGKILL), int(unix.SIGKILL), max(1, left)
	s.StartedNS, s.EndedNS = c.started.UnixNano(), time.Now().UnixNano()
	c.mu.Unlock()
	c.giveUp()
	c.readers.Wait()
	c.close(false)
}

// outlast waits until processes that KILL did not end have ended after all, and then gives the
// sub-group back. The command is listed until then.
func (c *command) outlast() {
	for !c.group.waitEmpty(time.Hour) {
	}
	c.mu.Lock()
	c.released = true
	c.e.groups.give(c.group)
	c.mu.Unlock()
	if !c.keeps {
		c.e.forget(c)
	}
}

// inGroup calls f with the command's sub-group unless that was given back, when another command
// may use it.
func (c *command) inGroup(f func(*group)) {
	c.mu.Lock()
	if c.group != nil && c.group.of != nil {
		// A session is never used again. f waits for the loop, which takes this lock.
		released := c.released
		c.mu.Unlock()
		if !released {
			f(c.group)
		}
		return
	}
	defer c.mu.Unlock()
	if !c.released && c.group != nil {
		f(c.group)
	}
}
