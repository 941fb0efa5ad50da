// Package executor is the one process of a workspace that the daemon talks to. It starts and
// ends every command, and answers JSON-RPC 2.0 on the socket that the broker bound:
// docs/protocols/executor.md.
//
// It is PID 1 of the workspace and the only process in it with capabilities, so it
// stays small: no network code but its own socket, no policy, no records, no secrets.
// It must never run a command with its own id, and never trust what a command wrote.
package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/linux/memrelease"
	"github.com/carrel-dev/carrel/internal/linux/peercred"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// settling is how long an executor that was started for one command postpones limiting its own
// memory.
const settling = 500 * time.Millisecond

// Tuning that keeps an idle executor small: it serves one workspace, not the machine.
const (
	maxProcs    = 2
	gcPercent   = 40
	memoryLimit = 24 << 20
	maxPeers    = 8
)

// Executor holds the commands of one workspace.
type Executor struct {
	spec   *sandbox.Spec
	build  string
	loop   *loop
	groups *groups
	victim victim
	reaper *reaper
	// newborns are the processes that are being started.
	newborns newborns

	// ctx ends when the executor shuts down.
	ctx    context.Context
	cancel context.CancelFunc

	// holding: new commands are refused. Only the loop's thread changes it. A command that is
	// cloned into a frozen control group cannot run its program, and the thread that forked it
	// waits until it does.
	holding atomic.Bool

	oomSeen atomic.Int64
	kept    kept
	// largeReply: one reply with much captured output is assembled, encoded and written at a time.
	largeReply sync.Mutex
	// dials are the connections to ports that are being opened.
	dials atomic.Int32

	mu       sync.Mutex
	commands map[id.Command]*command
	peers    map[*peer]struct{}
	closing  bool
	// cells are those of the screens of sessions.
	cells int
	// mortal: the executor and all commands end when its last peer does.
	mortal bool
	idle   *time.Timer
}

// Run enters the workspace that the spec at sandbox.SpecFD describes and serves it
// until it is told to shut down. build names the release in the handshake. With the one argument sandbox.ReopenWays it
// does what that says instead.
func Run(build string, args []string) error {
	if len(args) == 1 && args[0] == sandbox.ReopenWays {
		return sandbox.Reopen()
	}
	spec, err := sandbox.ReadSpec(sandbox.SpecFD)
	if err != nil {
		return err
	}
	thread, err := sandbox.Enter(spec)
	if err != nil {
		return err
	}
	if spec.OneID() {
		runtime.UnlockOSThread() // main locked it for Enter
		return serve(build, spec, thread)
	}
	// Otherwise the first thread stays locked and idle: a new thread is a copy of another one, and for
	// StartTrusted it must not be a copy of one that gave up its bounding set.
	served := make(chan error, 1)
	go func() { served <- serve(build, spec, thread) }()
	return <-served
}

// serve serves the workspace that was entered, and starts commands from thread.
func serve(build string, spec *sandbox.Spec, thread *sandbox.Thread) (err error) {
	// Also where there is one processor: a thread that starts a command keeps its own.
	runtime.GOMAXPROCS(maxProcs)
	// sandbox.Environ turned garbage collection off. An executor for one command leaves it off
	// for a while: most such commands end before, and the first collection takes as long as one.
	bound := func() { debug.SetGCPercent(gcPercent); debug.SetMemoryLimit(memoryLimit) }
	if len(spec.FDs.Peers) > 0 {
		time.AfterFunc(settling, func() { bound(); memrelease.GiveBack() })
	} else {
		bound()
	}
	crashpoint.Here("executor.start.entered")
	handleSignals(spec.FDs.Cmd < 0 || spec.OneID())
	e := &Executor{
		spec: spec, build: build,
		commands: map[id.Command]*command{},
		peers:    map[*peer]struct{}{},
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if e.groups, err = openGroups(spec, func(f func()) { e.loop.do(f) }); err != nil {
		return err
	}
	if e.victim, err = openVictim(spec); err != nil {
		return fmt.Errorf("cannot have commands end first in a lack of memory: %w", err)
	}
	if e.loop, err = newLoop(); err != nil {
		return err
	}
	e.reaper = newReaper(e)
	e.newborns.r, e.newborns.start = e.reaper, time.Now()
	go thread.Do(e.loop.run) // for the life of the process
	if len(spec.FDs.Peers) > 0 {
		return e.serveGiven(spec.FDs.Peers)
	}
	f := os.NewFile(uintptr(spec.FDs.Listener), "listener")
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the path is the broker's
	context.AfterFunc(e.ctx, func() { l.Close() })
	memrelease.GiveBack() // what the first stage used
	return e.accept(l.(*net.UnixListener))
}

// handled are the signals that end, stop or dump a Go process unless it asks for them. The
// runtime's own handler ignores the others (sigtable in runtime/sigtab_linux_generic.go). Asking
// for a signal is a round trip between threads; asking for all would be a tenth of a start. Go
// keeps 32 to 34 for itself.
var handled = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE, syscall.SIGSTKFLT, syscall.SIGSYS,
	syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
}

// faults are the signals that the kernel sends for a fault.
var faults = []os.Signal{
	syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT,
}

// handleSignals gives every signal a handler, so that none ends the executor and none is ignored
// in a way that commands inherit. With sent it also handles fault signals that a process sent,
// which commands with the executor's id can. The executor's own faults still end it.
func handleSignals(sent bool) {
	defaultIgnored()
	sink := make(chan os.Signal, 1)
	signal.Notify(sink, handled...)
	if sent {
		signal.Notify(sink, faults...)
	}
	go func() {
		for range sink {
		}
	}()
}

// defaultIgnored restores the default action of signals that our parent ignored, because
// commands would inherit that. Signals of the Go runtime have handlers and are not touched.
func defaultIgnored() {
	const ignore = 1 // SIG_IGN
	for s := uintptr(1); s < 65; s++ {
		var action [4]uintptr // struct sigaction of the kernel: handler, flags, restorer, mask
		const size = 8        // of the mask
		at := uintptr(unsafe.Pointer(&action))
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, 0, at, size, 0, 0); e == 0 && action[0] == ignore {
			action = [4]uintptr{}
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, at, 0, size, 0, 0) // nothing is lost if it stays
		}
	}
}

// runtimeSignals ignores the signals that Go keeps for itself, or restores their default. The
// kernel drops signals to pid 1 that have no handler, but not if the first thread that it looks
// at blocks them, as Go's threads do while they are created.
func runtimeSignals(ignored bool) {
	var action [4]uintptr // struct sigaction of the kernel
	if ignored {
		action[0] = 1 // SIG_IGN
	}
	for s := uintptr(32); s <= 34; s++ {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0) // it takes these numbers
	}
}

func (e *Executor) accept(l *net.UnixListener) error {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if e.ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot accept: %w", err)
		}
		go func() {
			if err := e.admit(c); err != nil {
				fmt.Fprintln(os.Stderr, err)
				c.Close()
			}
		}()
	}
}

// admit serves a connection unless it comes from inside the workspace. The daemon's id is not
// mapped here and reads as the overflow id; the workspace's ids read as themselves.
func (e *Executor) admit(c *net.UnixConn) error {
	cred, err := peercred.Of(c)
	if err != nil {
		return err
	}
	switch cred.UID {
	case 0, e.spec.IDs.Work, e.spec.IDs.Agent:
		return fmt.Errorf("cannot serve a connection of id %d: it comes from inside the workspace: %w", cred.UID, errdefs.ErrPermissionDenied)
	}
	return e.serve(c)
}

// serveGiven serves the connections that the executor was started with, and ends with the last
// of them, because nobody else can connect. The peer started the executor and is trusted.
func (e *Executor) serveGiven(fds []int) error {
	handed := make(chan error, len(fds))
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "peer")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("cannot serve a connection: %w", err)
		}
		go func() {
			err := e.serve(c.(*net.UnixConn))
			if err != nil {
				c.Close()
			}
			handed <- err
		}()
	}
	for range fds {
		if err := <-handed; err != nil {
			return err
		}
	}
	e.mu.Lock()
	e.mortal = true
	gone := len(e.peers) == 0
	e.mu.Unlock()
	if !gone {
		<-e.ctx.Done()
	}
	return nil
}

func (e *Executor) serve(c *net.UnixConn) error {
	role, err := peekRole(c)
	if err != nil {
		return err
	}
	p := &peer{e: e, onLoop: role == execapi.Spawn, ready: make(chan struct{})}
	e.mu.Lock()
	n := len(e.peers)
	if n < maxPeers {
		e.peers[p] = struct{}{}
	}
	e.mu.Unlock()
	if n >= maxPeers {
		return fmt.Errorf("cannot serve another connection: %d are open: %w", n, errdefs.ErrResourceExhausted)
	}
	p.conn = jsonrpc.New(c, jsonrpc.Config{
		Handler: p.handle, MaxFrame: execapi.MaxFrame, MaxFDs: 3, Stepped: role == execapi.Spawn,
		MaxInFlight: execapi.MaxCommands + 16, Timeout: timeout, Inline: inline, OnClose: func(error) { p.closed() },
	})
	close(p.ready)
	if role == execapi.Spawn {
		return e.loop.add(p.conn)
	}
	return nil
}

// peekRole reads the role from the hello that opens a connection, and leaves the hello in the
// socket: the role decides which thread reads it. Anything but a spawn hello is handled, and
// answered, as control.
func peekRole(c *net.UnixConn) (execapi.Role, error) {
	if err := c.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return "", err
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	buf := make([]byte, 512)
	n := 0
	rerr := rc.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err := errors.Join(rerr, err); err != nil {
		return "", fmt.Errorf("cannot serve a connection: it sent no hello: %w", err)
	}
	var hello struct {
		Params execapi.HelloParams `json:"params"`
	}
	_ = json.Unmarshal(bytes.TrimSuffix(buf[:n], []byte("\n")), &hello) // not a hello: control refuses it
	return hello.Params.Role, c.SetReadDeadline(time.Time{})
}

const helloTimeout = 5 * time.Second

// shutdown ends every command and then the process.
func (e *Executor) shutdown() {
	e.mu.Lock()
	e.closing = true
	var all []*command
	for _, c := range e.commands {
		all = append(all, c)
	}
	e.mu.Unlock()
	for _, c := range all {
		c.end(unix.SIGTERM, execapi.DefaultGraceMS*time.Millisecond)
	}
	crashpoint.Here("executor.shutdown.begun")
	for _, c := range all {
		<-c.done
	}
	crashpoint.Here("executor.shutdown.ended")
	// The caller closes its connection once it has the reply; see (*peer).closed.
	time.AfterFunc(lingering, e.cancel)
}

// lingering is how long a shut-down executor waits for the last connection to close.
const lingering = 2 * time.Second
