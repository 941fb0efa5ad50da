package apitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Tests that run under nohup ignore hangups, and what they start would too. Commands of an
// executor do not, so those of the double must not either.
func init() {
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
}

// process is a command of the double: a child of the test.
type process struct {
	params  execapi.ExecParams
	tty     bool
	cmd     *exec.Cmd
	files   []*os.File
	master  *os.File // a second descriptor of the terminal
	started time.Time

	stdout, stderr *buffer

	done   chan struct{}
	status execapi.Status // valid once done is closed
}

func startProcess(e execapi.ExecParams, tty bool) (*process, error) {
	path, err := exec.LookPath(e.Argv[0])
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("cannot run %q: not found in the workspace: %w", e.Argv[0], errdefs.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("cannot run %q: it is not executable: %w", e.Argv[0], errdefs.ErrPermissionDenied)
	}
	c := &process{
		params: e, tty: tty, started: time.Now(), done: make(chan struct{}), stdout: newBuffer(e.OutputLimit),
		stderr: newBuffer(e.OutputLimit),
	}
	c.cmd = &exec.Cmd{
		Path: path, Args: e.Argv, Dir: e.Cwd, Env: append(os.Environ(), e.Env...),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: !tty},
	}
	theirs, err := c.connect(e, tty)
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		for _, f := range c.files {
			f.Close()
		}
		return nil, fmt.Errorf("cannot run %q: %w: %w", e.Argv[0], err, errdefs.ErrPermissionDenied)
	}
	go c.reap()
	return c, nil
}

// connect sets the streams up and returns the ends that are the child's.
func (c *process) connect(e execapi.ExecParams, tty bool) (theirs []*os.File, err error) {
	if tty {
		return c.connectTerminal(e)
	}
	pipe := func(childWrites bool) (child *os.File) {
		r, w, perr := os.Pipe()
		if perr != nil {
			err = perr
			return nil
		}
		if childWrites {
			c.files, theirs = append(c.files, r), append(theirs, w)
			return w
		}
		c.files, theirs = append(c.files, w), append(theirs, r)
		return r
	}
	switch e.Stdin {
	case execapi.Pipe:
		c.cmd.Stdin = pipe(false)
	case execapi.Capture:
		c.cmd.Stdin = &data{b: e.StdinData}
	default: // the null device
	}
	switch e.Stdout {
	case execapi.Pipe:
		c.cmd.Stdout = pipe(true)
	case execapi.Capture:
		c.cmd.Stdout = c.stdout
	default:
	}
	switch e.Stderr {
	case execapi.Pipe:
		c.cmd.Stderr = pipe(true)
	case execapi.Capture:
		c.cmd.Stderr = c.stderr
		if e.Detach {
			c.cmd.Stderr = c.stdout
		}
	default:
	}
	return theirs, err
}

func (c *process) connectTerminal(e execapi.ExecParams) ([]*os.File, error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	master := os.NewFile(uintptr(m), "ptmx")
	c.files = []*os.File{master}
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	second, err := unix.FcntlInt(uintptr(m), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return []*os.File{slave}, err
	}
	c.master = os.NewFile(uintptr(second), "ptmx")
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return []*os.File{slave}, c.resize(e.Rows, e.Cols)
}

func (c *process) resize(rows, cols uint16) error {
	if c.master == nil {
		return fmt.Errorf("cannot resize %s: it has no terminal: %w", c.params.ID, errdefs.ErrFailedPrecondition)
	}
	raw, err := c.master.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return errors.Join(err, set)
}

func (c *process) reap() {
	var timedOut atomic.Bool
	if d := time.Duration(c.params.TimeoutMS) * time.Millisecond; d > 0 {
		t := time.AfterFunc(d, func() { timedOut.Store(true); _ = c.signal(int(syscall.SIGKILL)) })
		defer t.Stop()
	}
	_ = c.cmd.Wait() // the state says it all
	ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	c.status = execapi.Status{
		Code: ws.ExitStatus(), StartedNS: c.started.UnixNano(), EndedNS: time.Now().UnixNano(),
		TimedOut: timedOut.Load(),
	}
	if ws.Signaled() {
		c.status.Signal = int(ws.Signal())
		c.status.Code = 128 + c.status.Signal
	}
	if c.master != nil {
		c.master.Close()
	}
	close(c.done)
	// After done, as in an executor: a reader at the end can ask for the status.
	c.stdout.end()
	c.stderr.end()
}

// Files implements runtime.Process.
func (c *process) Files() []*os.File { return c.files }

// PID implements runtime.Process.
func (c *process) PID() int { return c.cmd.Process.Pid }

// Wait implements runtime.Process.
func (c *process) Wait(ctx context.Context) (execapi.Status, error) {
	select {
	case <-c.done:
		return c.status, nil
	case <-ctx.Done():
		return execapi.Status{}, context.Cause(ctx)
	}
}

// Close implements runtime.Process.
func (c *process) Close() error {
	if c.ended() == nil {
		_ = c.signal(int(syscall.SIGHUP))
	}
	return nil
}

func (c *process) ended() *execapi.Status {
	select {
	case <-c.done:
		return &c.status
	default:
		return nil
	}
}

func (c *process) signal(n int) error {
	if n == 0 {
		n = int(syscall.SIGTERM)
	}
	if err := syscall.Kill(-c.cmd.Process.Pid, syscall.Signal(n)); err != nil {
		return fmt.Errorf("cannot signal %s: it has ended: %w", c.params.ID, errdefs.ErrNotFound)
	}
	return nil
}

// data is a reader that os/exec copies from.
type data struct{ b []byte }

func (d *data) Read(p []byte) (int, error) {
	if len(d.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.b)
	d.b = d.b[n:]
	return n, nil
}

// buffer is output that is kept up to a limit and can be followed.
type buffer struct {
	limit int64

	mu    sync.Mutex
	grown *sync.Cond
	b     []byte
	over  int64
	done  bool
}

func newBuffer(limit int64) *buffer {
	if limit == 0 {
		limit = execapi.DefaultOutput
	}
	b := &buffer{limit: limit}
	b.grown = sync.NewCond(&b.mu)
	return b
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(int64(len(p)), b.limit-int64(len(b.b)))
	b.b = append(b.b, p[:n]...)
	b.over += int64(len(p)) - n
	b.grown.Broadcast()
	return len(p), nil
}

func (b *buffer) kept() []byte { b.mu.Lock(); defer b.mu.Unlock(); return b.b }

func (b *buffer) lost() int64 { b.mu.Lock(); defer b.mu.Unlock(); return b.over }

func (b *buffer) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	b.grown.Broadcast()
}

// open returns a pipe from which the output can be read.
func (b *buffer) open(follow bool) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() {
		defer w.Close()
		for at := 0; ; {
			b.mu.Lock()
			for follow && at == len(b.b) && !b.done {
				b.grown.Wait()
			}
			piece, last := b.b[at:], b.done || !follow
			b.mu.Unlock()
			if _, err := w.Write(piece); err != nil {
				return
			}
			if at += len(piece); last {
				return
			}
		}
	}()
	return r, nil
}
