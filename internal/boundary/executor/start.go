package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// start starts a command and calls notify at its end. It returns the far ends of the command's
// pipes in the order stdin, stdout, stderr, of its socket, or of its terminal. given are descriptors for FD
// streams; start sets the slots of those that it uses to nil.
func (e *Executor) start(
	p *peer, in *execapi.ExecParams, tty bool, given []*os.File, notify func(*command),
) (*command, []*os.File, error) {
	c := &command{
		e: e, id: in.ID, argv: listable(in.Argv), peer: p, detached: in.Detach, keeps: in.Keeps(), tty: tty, pidfd: -1,
		started: time.Now(), done: make(chan struct{}),
	}
	if len(in.Shown) > 0 {
		c.argv = listable(in.Shown)
	}
	if notify != nil {
		c.notify = func() { notify(c) }
	}
	if err := e.reserve(c); err != nil {
		return nil, nil, err
	}
	var far []*os.File
	err := c.reserveInput(len(in.StdinData))
	if err == nil && in.Session != "" {
		err = c.share(in)
	}
	if err == nil {
		p.inLoop(func() { far, err = e.spawn(c, in, given) })
	}
	if err != nil {
		e.forget(c)
		c.unshare()
		close(c.done)    // a shutdown may wait for it
		go c.discarded() // which waits for the streams
		return nil, nil, err
	}
	c.begun.Store(true)
	crashpoint.Here("executor.exec.started")
	c.mu.Lock()
	early := c.early
	c.mu.Unlock()
	if early != nil {
		early()
	}
	if in.TimeoutMS > 0 {
		c.mu.Lock()
		if !c.reaped {
			wait := grace(in.GraceMS) // not in itself, which may be large
			c.timer = time.AfterFunc(time.Duration(in.TimeoutMS)*time.Millisecond, func() { c.expire(wait) })
		}
		c.mu.Unlock()
	}
	// The connection may have ended while the command was started.
	select {
	case <-p.conn.Done():
		if !c.detached {
			c.hangup()
		}
	default:
	}
	return c, far, nil
}

func (c *command) expire(grace time.Duration) {
	c.mu.Lock()
	c.status.TimedOut = !c.reaped
	c.mu.Unlock()
	c.end(unix.SIGTERM, grace)
}

// child is what one fork needs.
type child struct {
	path string
	argv []string
	env  []string
	dir  string
	tty  bool
	// attached: a client gets the terminal's master side.
	attached bool
	uid      uint32
	oneID    bool // uid is the executor's own
	// trusted, if set, starts a program that works for carrel, which gets other ids than commands.
	trusted  func(start func() error) error
	groups   *groups
	victim   victim
	newborns *newborns
	group    *group
	stdio    [3]int      // descriptors for the child, -1: /dev/null
	program  int         // descriptor of the program, -1: path is looked up
	socket   int         // descriptor of the child's end of its socket, -1: it has none
	close    []int       // ours, no longer needed after the fork
	far      []*os.File  // ends of pipes for the client
	near     [3]*os.File // our ends of captured streams
	master   *os.File
}

// spawn makes the streams and forks. It runs on the loop's thread, which lives in the
// commands' control groups.
func (e *Executor) spawn(c *command, in *execapi.ExecParams, given []*os.File) (far []*os.File, err error) {
	if e.holding.Load() {
		return nil, fmt.Errorf("cannot run anything in workspace %s: it is paused; let it go on with \"carrel resume %s\": %w",
			e.spec.Name, e.spec.Name, errdefs.ErrFailedPrecondition)
	}
	ch := &child{
		argv: in.Argv, env: e.environment(in), dir: in.Cwd, tty: c.tty, attached: !c.detached,
		uid: e.spec.IDs.Work, oneID: e.spec.OneID(), groups: e.groups, victim: e.victim, newborns: &e.newborns,
		stdio: [3]int{-1, -1, -1}, program: -1, socket: -1,
	}
	if ch.dir == "" {
		ch.dir = workspace.Home
	}
	if in.Program && !ch.oneID {
		ch.trusted, ch.dir = e.spec.StartTrusted, "/" // it may not enter the home before it has its file ids
		ch.env = append(ch.env, sandbox.FileIDVariable+"="+strconv.FormatUint(uint64(ch.uid), 10))
	}
	if ch.group, err = e.groups.take(); err != nil {
		return nil, err
	}
	c.group = ch.group
	defer func() {
		for _, fd := range ch.close {
			unix.Close(fd)
		}
		if err != nil {
			for _, f := range append(append(ch.far, ch.near[:]...), ch.master) {
				if f != nil {
					f.Close()
				}
			}
			e.groups.give(ch.group)
		}
	}()
	if err = ch.fork(c, in, given); err != nil {
		return nil, err
	}
	c.watchStreams(ch, in)
	if err = e.reaper.watch(c); err != nil {
		unix.Kill(-c.pid, unix.SIGKILL) // the sweep reaps it
		return nil, err
	}
	return ch.far, nil
}

// fork makes the child. Streams are made with the command's file system ids and so belong to
// it: a program may reopen /dev/stdout. Those of a program that works for carrel do not.
func (ch *child) fork(c *command, in *execapi.ExecParams, given []*os.File) error {
	ids := ch.needsIDs(in)
	if ids {
		asCommand(ch.uid)
	}
	err := ch.prepare(in, given)
	if err == nil && in.Record {
		err = c.shared.startRecording(in, c.started)
	}
	if ids {
		asCommand(0)
	}
	if err != nil {
		return err
	}
	// Opened for each command: through one that is kept, commands would share an open file description, and with it
	// what fcntl sets (O_NONBLOCK, O_APPEND, F_SETOWN) and flock locks, also with a program that works for carrel.
	null := -1
	files := make([]uintptr, 3)
	for i, fd := range ch.stdio {
		if fd < 0 {
			if null < 0 {
				if null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
					return fmt.Errorf("cannot open /dev/null: %w", err)
				}
				ch.close = append(ch.close, null)
			}
			fd = null
		}
		files[i] = uintptr(fd)
	}
	if ch.socket >= 0 {
		for len(files) < in.Socket {
			files = append(files, ^uintptr(0)) // closed
		}
		files = append(files, uintptr(ch.socket))
	}
	if ch.program >= 0 {
		files = append(files, uintptr(ch.program))
		ch.path = fmt.Sprintf("/proc/self/fd/%d", len(files)-1)
	}
	pidfd := -1
	// The executor has no supplementary groups that could be inherited.
	credential := &syscall.Credential{Uid: ch.uid, Gid: ch.uid, NoSetGroups: true}
	if ch.oneID || ch.trusted != nil {
		credential = nil
	}
	if err := ch.victim.born(true); err != nil {
		return fmt.Errorf("cannot have the command end first in a lack of memory: %w", err)
	}
	ch.groups.lowered(true)
	ch.newborns.begin()
	attr := &syscall.ProcAttr{
		Dir: ch.dir, Env: ch.env, Files: files,
		Sys: &syscall.SysProcAttr{
			Credential: credential,
			Setsid:     true, Setctty: ch.tty, Ctty: 0,
			UseCgroupFD: ch.group.dir >= 0, CgroupFD: ch.group.dir, PidFD: &pidfd,
		},
	}
	var pid int
	if ch.trusted == nil {
		pid, err = syscall.ForkExec(ch.path, ch.argv, attr)
	} else {
		err = ch.trusted(func() (err error) {
			pid, err = syscall.ForkExec(ch.path, ch.argv, attr)
			return err
		})
	}
	ch.newborns.end()
	ch.groups.lowered(false)
	_ = ch.victim.born(false) // only lowering beyond what the broker set can fail
	if err != nil {
		asCommand(ch.uid)
		defer asCommand(0)
		return ch.explain(err)
	}
	crashpoint.Here("executor.exec.cloned")
	c.mu.Lock() // it is listed already
	c.pid, c.pidfd = pid, pidfd
	c.mu.Unlock()
	ch.group.leads(pid)
	return nil
}

// needsIDs reports whether prepare looks for a file or makes one, which it must do with the command's file system ids.
func (ch *child) needsIDs(in *execapi.ExecParams) bool {
	if ch.trusted != nil || ch.oneID {
		return false
	}
	makes := func(s execapi.Stream) bool { return s == execapi.Pipe || s == execapi.Capture }
	return !strings.Contains(ch.argv[0], "/") || ch.tty || in.Keeps() || makes(in.Stdin) || makes(in.Stdout) || makes(in.Stderr)
}

// asCommand changes the calling thread's file system ids.
func asCommand(uid uint32) {
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(uid), 0, 0)
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
}

func (ch *child) prepare(in *execapi.ExecParams, given []*os.File) error {
	if in.Program {
		mode, _, err := ch.adopt(given, 0, &ch.program)
		if err != nil {
			return err
		}
		if mode != unix.S_IFREG {
			return fmt.Errorf("cannot use the program that was passed: it is no regular file: %w", errdefs.ErrInvalidArgument)
		}
	} else if err := ch.lookup(); err != nil {
		return err
	}
	if ch.tty {
		return ch.openTerminal(in.Rows, in.Cols)
	}
	if in.Keeps() { // one pipe for both streams, so that their order is kept
		err := ch.capture(1)
		ch.stdio[2] = ch.stdio[1]
		if err == nil && in.Socket != 0 {
			err = ch.openSocket()
		}
		return err
	}
	for i, s := range []execapi.Stream{in.Stdin, in.Stdout, in.Stderr} {
		switch s {
		case "", execapi.Null: // as child is: /dev/null
		case execapi.FD:
			if err := ch.passed(i, given); err != nil {
				return err
			}
		case execapi.Pipe:
			ours, err := ch.pipe(i)
			if err != nil {
				return err
			}
			ch.far = append(ch.far, os.NewFile(uintptr(ours), "pipe"))
		case execapi.Capture:
			if err := ch.capture(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookup finds the program as execvp does, with the command's rights.
func (ch *child) lookup() error {
	name := ch.argv[0]
	if strings.Contains(name, "/") {
		ch.path = name
		return nil
	}
	denied := false
	for dir := range strings.SplitSeq(variable(ch.env, "PATH"), ":") {
		if dir == "" || dir[0] != '/' {
			continue // never the working directory
		}
		path := dir + "/" + name
		switch err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); {
		case err == nil && !isDir(path):
			ch.path = path
			return nil
		case errors.Is(err, unix.EACCES):
			denied = true
		}
	}
	if denied {
		return fmt.Errorf("cannot run %q: permission denied: %w", name, errdefs.ErrPermissionDenied)
	}
	return fmt.Errorf("cannot run %q: not found in PATH %s: %w", name, variable(ch.env, "PATH"), errdefs.ErrNotFound)
}

func isDir(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// explain says which step of the fork failed. It runs with the command's file system ids.
func (ch *child) explain(err error) error {
	name := ch.argv[0]
	var st unix.Stat_t
	if cwd := unix.Stat(ch.dir, &st); cwd != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if cwd == nil {
			cwd = unix.ENOTDIR
		}
		return fmt.Errorf("cannot enter directory %q in the workspace: %w: %w", ch.dir, cwd, errdefs.ErrInvalidArgument)
	}
	path := ch.path
	if path[0] != '/' {
		path = ch.dir + "/" + path
	}
	missing := errors.Is(unix.Stat(path, &st), fs.ErrNotExist)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("cannot run %q: the workspace is at its limit of processes; "+
			"end some (carrel ps, carrel kill) or raise limit pids: %w", name, errdefs.ErrResourceExhausted)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("cannot run %q: the workspace is out of memory: %w", name, errdefs.ErrResourceExhausted)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("cannot run %q: its arguments are too long for the kernel: %w", name, errdefs.ErrInvalidArgument)
	case missing:
		return fmt.Errorf("cannot run %q: not found: %w", name, errdefs.ErrNotFound)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("cannot run %q: its interpreter is not found: %w", name, errdefs.ErrNotFound)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("cannot run %q: permission denied: %w", name, errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("cannot run %q: not a program of this machine; a script needs a #! line: %w", name, errdefs.ErrPermissionDenied)
	default:
		return fmt.Errorf("cannot run %q: %w: %w", name, err, errdefs.ErrPermissionDenied)
	}
}

// environment returns the base environment, overridden by the request's variables. Nothing is
// inherited from the executor.
func (e *Executor) environment(in *execapi.ExecParams) []string {
	home, uid := workspace.Home, strconv.FormatUint(uint64(e.spec.IDs.Work), 10)
	dir := in.Cwd
	if dir == "" {
		dir = home
	}
	base := [...]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + home, "USER=" + e.spec.User, "LOGNAME=" + e.spec.User, "SHELL=" + e.spec.Shell,
		"LANG=C.UTF-8", "PWD=" + dir, "XDG_RUNTIME_DIR=/run/user/" + uid, "CARREL_WORKSPACE=" + string(e.spec.Name),
	}
	if len(in.Env) == 0 && in.Session == "" && in.Socket == 0 {
		return base[:]
	}
	all := base[:]
	if in.Session != "" {
		all = append(all, "TERM="+sessionTerm)
	}
	env := make([]string, 0, len(all)+len(in.Env))
	for _, b := range all {
		if name, _, _ := strings.Cut(b, "="); !defines(in.Env, name) {
			env = append(env, b)
		}
	}
	env = append(env, in.Env...)
	if in.Socket != 0 { // the number that holds, whatever the request says
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, execapi.SocketVariable+"=") })
		env = append(env, execapi.SocketVariable+"="+strconv.Itoa(in.Socket))
	}
	return env
}

func defines(env []string, name string) bool {
	for _, v := range env {
		if strings.HasPrefix(v, name) && len(v) > len(name) && v[len(name)] == '=' {
			return true
		}
	}
	return false
}

func variable(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}
