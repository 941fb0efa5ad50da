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

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/execapi"
)

// start starts a command and has notify called at its end. The far ends of its pipes, or of its terminal, come back in
// the order stdin, stdout, stderr. given are descriptors for FD streams; those used
// are taken out of the slice.
func (e *Executor) start(p *peer, in *execapi.ExecParams, tty bool, given []*os.File, notify func(*command)) (*command, []*os.File, error) {
	c := &command{
		e: e, id: in.ID, argv: in.Argv, peer: p, detached: in.Detach, tty: tty, pidfd: -1,
		started: time.Now(), done: make(chan struct{}),
	}
	if len(in.Shown) > 0 {
		c.argv = in.Shown
	}
	if notify != nil {
		c.notify = func() { notify(c) }
	}
	if err := e.reserve(c); err != nil {
		return nil, nil, err
	}
	var far []*os.File
	var err error
	p.inLoop(func() { far, err = e.spawn(c, in, given) })
	if err != nil {
		e.forget(c)
		return nil, nil, err
	}
	crashpoint.Here("executor.exec.started")
	if in.TimeoutMS > 0 {
		c.mu.Lock()
		if !c.reaped {
			c.timer = time.AfterFunc(time.Duration(in.TimeoutMS)*time.Millisecond, func() { c.expire(grace(in.GraceMS)) })
		}
		c.mu.Unlock()
	}
	// The connection may have gone while the command was being born.
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

// birth is what one fork needs.
type birth struct {
	path string
	argv []string
	env  []string
	dir  string
	tty  bool
	// attached: a client gets the terminal's master side.
	attached bool
	uid      uint32
	oneID    bool // the executor's own
	groups   *groups
	group    *group
	child    [3]int // descriptors for the child, -1: /dev/null
	program  int    // descriptor of the program, -1: path is looked up
	close    []int  // ours, no longer needed after the fork
	far      []*os.File
	near     [3]*os.File // our ends of captured streams
	mast     *os.File
}

// spawn makes the streams and forks. It runs on the loop's thread, which lives in the
// commands' groups.
func (e *Executor) spawn(c *command, in *execapi.ExecParams, given []*os.File) (far []*os.File, err error) {
	if e.holding {
		return nil, fmt.Errorf("cannot run anything in workspace %s: it is paused; let it go on with \"carrel resume %s\": %w", e.spec.Name, e.spec.Name, errdefs.ErrFailedPrecondition)
	}
	b := &birth{argv: in.Argv, env: e.environment(in), dir: in.Cwd, tty: c.tty, attached: !c.detached, uid: e.spec.IDs.Work, oneID: e.spec.OneID(), groups: e.groups, child: [3]int{-1, -1, -1}, program: -1}
	if b.dir == "" {
		b.dir = e.spec.Home()
	}
	if b.group, err = e.groups.take(); err != nil {
		return nil, err
	}
	c.group = b.group
	defer func() {
		for _, fd := range b.close {
			unix.Close(fd)
		}
		if err != nil {
			for _, f := range append(append(b.far, b.near[:]...), b.mast) {
				if f != nil {
					f.Close()
				}
			}
			e.groups.give(b.group)
		}
	}()
	if err = b.fork(c, in, given); err != nil {
		return nil, err
	}
	c.watchStreams(b, in)
	if err = e.reaper.watch(c); err != nil {
		unix.Kill(-c.pid, unix.SIGKILL) // the sweep reaps it
		return nil, err
	}
	return b.far, nil
}

// fork makes the child. Streams are made with the command's file system
// ids, so that they belong to it: a program may then reopen /dev/stdout.
func (b *birth) fork(c *command, in *execapi.ExecParams, given []*os.File) error {
	asCommand(b.uid)
	err := b.prepare(in, given)
	asCommand(0)
	if err != nil {
		return err
	}
	null := -1
	files := make([]uintptr, 3)
	for i, fd := range b.child {
		if fd < 0 {
			if null < 0 {
				if null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
					return fmt.Errorf("cannot open /dev/null: %w", err)
				}
				b.close = append(b.close, null)
			}
			fd = null
		}
		files[i] = uintptr(fd)
	}
	if b.program >= 0 {
		files = append(files, uintptr(b.program))
		b.path = fmt.Sprintf("/proc/self/fd/%d", len(files)-1)
	}
	pidfd := -1
	// The executor has no supplementary groups to take away.
	credential := &syscall.Credential{Uid: b.uid, Gid: b.uid, NoSetGroups: true}
	if b.oneID {
		credential = nil
	}
	b.groups.lowered(true)
	pid, err := syscall.ForkExec(b.path, b.argv, &syscall.ProcAttr{
		Dir: b.dir, Env: b.env, Files: files,
		Sys: &syscall.SysProcAttr{
			Credential: credential,
			Setsid:     true, Setctty: b.tty, Ctty: 0,
			UseCgroupFD: b.group.dir >= 0, CgroupFD: b.group.dir, PidFD: &pidfd,
		},
	})
	b.groups.lowered(false)
	if err != nil {
		asCommand(b.uid)
		defer asCommand(0)
		return b.explain(err)
	}
	crashpoint.Here("executor.exec.cloned")
	c.pid, c.pidfd = pid, pidfd
	b.group.leads(pid)
	return nil
}

// asCommand changes the calling thread's file system ids.
func asCommand(uid uint32) {
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(uid), 0, 0)
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
}

func (b *birth) prepare(in *execapi.ExecParams, given []*os.File) error {
	if in.Program {
		program := given[0]
		given[0] = nil
		if err := b.takeProgram(program); err != nil {
			return err
		}
	} else if err := b.lookup(); err != nil {
		return err
	}
	if b.tty {
		return b.openTerminal(in.Rows, in.Cols)
	}
	if in.Detach {
		return b.openBuffered()
	}
	for i, s := range []execapi.Stream{in.Stdin, in.Stdout, in.Stderr} {
		switch s {
		case "", execapi.Null: // as child is: /dev/null
		case execapi.FD:
			j := firstOf(given)
			if err := b.adopt(i, given[j]); err != nil {
				return err
			}
			given[j] = nil
		case execapi.Pipe, execapi.Capture:
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return fmt.Errorf("cannot make a pipe: %w", err)
			}
			child, ours := p[1], p[0]
			if i == 0 {
				child, ours = p[0], p[1]
			}
			b.child[i] = child
			b.close = append(b.close, child)
			if s == execapi.Capture {
				unix.SetNonblock(ours, true) // ours alone: the child's end has its own mode
				b.near[i] = os.NewFile(uintptr(ours), "capture")
			} else {
				b.far = append(b.far, os.NewFile(uintptr(ours), "pipe"))
			}
		}
	}
	return nil
}

func firstOf(given []*os.File) int {
	for i, f := range given {
		if f != nil {
			return i
		}
	}
	return -1 // not reached: check counted them
}

// openBuffered gives a detached command one pipe for both streams, in order.
func (b *birth) openBuffered() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("cannot make a pipe: %w", err)
	}
	unix.SetNonblock(p[0], true)
	b.near[1] = os.NewFile(uintptr(p[0]), "output")
	b.child[1], b.child[2] = p[1], p[1]
	b.close = append(b.close, p[1])
	return nil
}

// adopt takes a descriptor that came with the request, if a command may hold it.
func (b *birth) adopt(i int, f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	var dup int
	cerr := rc.Control(func(fd uintptr) {
		if err = unix.Fstat(int(fd), &st); err == nil {
			dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("cannot use a passed descriptor: %w", err)
	}
	f.Close()
	b.close = append(b.close, dup)
	kind := "a directory"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFREG, unix.S_IFSOCK:
		kind = ""
	case unix.S_IFCHR:
		// A terminal of the host would let the command read what is typed there.
		kind = "a device"
		if st.Rdev == unix.Mkdev(1, 3) {
			kind = ""
		}
	case unix.S_IFBLK:
		kind = "a block device"
	}
	if kind != "" {
		return fmt.Errorf("cannot use a passed descriptor: it is %s; pass a pipe, a file or a socket: %w", kind, errdefs.ErrInvalidArgument)
	}
	b.child[i] = dup
	return nil
}

// takeProgram takes the program that came with the request.
func (b *birth) takeProgram(f *os.File) error {
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	cerr := rc.Control(func(fd uintptr) {
		if err = unix.Fstat(int(fd), &st); err == nil {
			b.program, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
		}
	})
	if err := errors.Join(cerr, err); err != nil {
		return fmt.Errorf("cannot use the program that was passed: %w", err)
	}
	b.close = append(b.close, b.program)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("cannot use the program that was passed: it is no regular file: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// lookup finds the program as execvp does, with the command's rights.
func (b *birth) lookup() error {
	name := b.argv[0]
	if strings.Contains(name, "/") {
		b.path = name
		return nil
	}
	denied := false
	for dir := range strings.SplitSeq(variable(b.env, "PATH"), ":") {
		if dir == "" || dir[0] != '/' {
			continue // never the working directory
		}
		path := dir + "/" + name
		switch err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); {
		case err == nil && !isDir(path):
			b.path = path
			return nil
		case errors.Is(err, unix.EACCES):
			denied = true
		}
	}
	if denied {
		return fmt.Errorf("cannot run %q: permission denied: %w", name, errdefs.ErrPermissionDenied)
	}
	return fmt.Errorf("cannot run %q: not found in PATH %s: %w", name, variable(b.env, "PATH"), errdefs.ErrNotFound)
}

func isDir(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// explain says which of the fork's steps an errno is about. It runs with the command's
// file system ids.
func (b *birth) explain(err error) error {
	name := b.argv[0]
	var st unix.Stat_t
	if cwd := unix.Stat(b.dir, &st); cwd != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if cwd == nil {
			cwd = unix.ENOTDIR
		}
		return fmt.Errorf("cannot enter directory %q in the workspace: %w: %w", b.dir, cwd, errdefs.ErrInvalidArgument)
	}
	path := b.path
	if path[0] != '/' {
		path = b.dir + "/" + path
	}
	missing := errors.Is(unix.Stat(path, &st), fs.ErrNotExist)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("cannot run %q: the workspace is at its limit of processes; end some (carrel ps, carrel kill) or raise limit pids: %w", name, errdefs.ErrResourceExhausted)
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

// environment is the base environment with the request's variables over it. Nothing is
// inherited: what is not listed here or asked for is not there.
func (e *Executor) environment(in *execapi.ExecParams) []string {
	home, uid := e.spec.Home(), strconv.FormatUint(uint64(e.spec.IDs.Work), 10)
	dir := in.Cwd
	if dir == "" {
		dir = home
	}
	base := [...]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + home, "USER=" + e.spec.User, "LOGNAME=" + e.spec.User, "SHELL=" + e.spec.Shell,
		"LANG=C.UTF-8", "PWD=" + dir, "XDG_RUNTIME_DIR=/run/user/" + uid, "CARREL_WORKSPACE=" + string(e.spec.Name),
	}
	if len(in.Env) == 0 {
		return base[:]
	}
	env := make([]string, 0, len(base)+len(in.Env))
	for _, b := range base {
		if name, _, _ := strings.Cut(b, "="); !defines(in.Env, name) {
			env = append(env, b)
		}
	}
	return append(env, in.Env...)
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
