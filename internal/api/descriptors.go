package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/authn"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/fault"
	"github.com/carrel-dev/carrel/internal/fdapi"
	"github.com/carrel-dev/carrel/internal/grant"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/workspace"
)

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\n\r\n"

// descriptors turns the connection over to the descriptor hand-over. The caller
// was authenticated when the connection was made, and stays who it was.
func (s *Server) descriptors(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.ProtoMajor != 1 ||
		!strings.EqualFold(r.Header.Get("Connection"), "upgrade") || r.Header.Get("Upgrade") != fdapi.Protocol ||
		r.ContentLength != 0 {
		w.Header().Set("Upgrade", fdapi.Protocol)
		w.Header().Set("Connection", "close")
		http.Error(w, "cannot hand over descriptors: send POST over HTTP/1.1 without a body and with Connection: Upgrade and Upgrade: "+fdapi.Protocol+"; see docs/protocols/api.md", http.StatusUpgradeRequired)
		return
	}
	// A token is judged anew with each request; a connection that was handed over has none.
	if authn.FromContext(r.Context()).Kind == principal.Token {
		s.refuse(w, r, fmt.Errorf("cannot hand over descriptors to a token: use CommandService/Stream, as the SDK does: %w", errdefs.ErrFailedPrecondition))
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.refuse(w, r, fmt.Errorf("cannot hand over descriptors: %w", err))
		return
	}
	unix, ok := conn.(*net.UnixConn)
	// What stands in the buffer would be lost to the reader of the next protocol.
	if !ok || buf.Reader.Buffered() > 0 {
		_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"))
		conn.Close()
		s.conns.remove(conn)
		return
	}
	if _, err := conn.Write([]byte(switching)); err != nil {
		conn.Close()
		s.conns.remove(conn)
		return
	}
	newSession(s, unix, authn.FromContext(r.Context()))
}

// session is one upgraded connection: a caller and the commands attached to it.
type session struct {
	server *Server
	caller principal.Principal

	mu    sync.Mutex
	procs map[id.Command]runtime.Process
	// starting counts the commands that are being started, for the limit.
	starting int
	closed   bool
	// ctx ends with the connection.
	ctx    context.Context
	cancel context.CancelFunc
}

func newSession(s *Server, c *net.UnixConn, caller principal.Principal) {
	x := &session{server: s, caller: caller, procs: map[id.Command]runtime.Process{}}
	x.ctx, x.cancel = context.WithCancel(authn.NewContext(s.closing, caller))
	conn := jsonrpc.New(c, jsonrpc.Config{Handler: x.handle, MaxFDs: 1, OnClose: func(error) {
		s.conns.remove(c)
		x.end()
	}})
	// A server that closes ends the connection, and so its commands.
	context.AfterFunc(x.ctx, func() { conn.Close() })
}

// end hangs up what is still attached when the connection has ended.
func (x *session) end() {
	x.mu.Lock()
	x.closed = true
	procs := x.procs
	x.procs = nil
	x.mu.Unlock()
	for _, p := range procs {
		p.Close()
	}
	x.cancel()
}

var fdMethods = map[string]func(*session, context.Context, *jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error){
	fdapi.MethodCreate: (*session).create,
	fdapi.MethodRun:    (*session).run,
	fdapi.MethodExec:   (*session).exec,
	fdapi.MethodAttach: (*session).attach,
	fdapi.MethodSignal: (*session).signal,
	fdapi.MethodResize: (*session).resize,
}

func (x *session) handle(ctx context.Context, c *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	method, ok := fdMethods[req.Method]
	if !ok {
		return nil, nil, jsonrpc.MethodNotFound(req.Method)
	}
	if len(req.FDs) > 0 && req.Method != fdapi.MethodCreate {
		return nil, nil, jsonrpc.Hangup(fmt.Errorf("cannot accept %s: it brings descriptors: %w", req.Method, errdefs.ErrInvalidArgument))
	}
	return method(x, authn.NewContext(ctx, x.caller), c, req)
}

// create passes the grant on unread: who made it, and for what, is the broker's to see.
func (x *session) create(ctx context.Context, _ *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	var p fdapi.CreateParams
	if err := req.Decode(&p); err != nil {
		return nil, nil, err
	}
	key, err := id.ParseKey(p.Key)
	if err != nil {
		return nil, nil, err
	}
	if err := p.Limits.OrDefault().Validate(); err != nil {
		return nil, nil, err
	}
	if err := workspace.CheckMounts(p.Mounts); err != nil {
		return nil, nil, err
	}
	if err := workspace.CheckOpenings(p.Allow, p.Mounts); err != nil {
		return nil, nil, err
	}
	if len(p.Mounts) == 0 || len(req.FDs) != 1 || !grant.Is(req.FDs[0]) {
		return nil, nil, invalid("mounts", fmt.Sprintf("there are %d, and %d descriptors for them", len(p.Mounts), len(req.FDs)), "name at least one and send one grant, or use WorkspaceService/Create")
	}
	w, created, err := x.server.gate.Create(ctx, x.caller, workspace.Wanted{
		Key: key, Profile: p.Profile, Limits: p.Limits, TTL: duration(p.TTLMS), Idle: duration(p.IdleTimeoutMS),
		NoStart: p.NoStart, Request: p.RequestID, Mounts: p.Mounts, Allow: p.Allow,
	}, req.FDs[0])
	if err != nil {
		return nil, nil, err
	}
	return fdapi.CreateResult{Workspace: w.Name, Created: created}, nil, nil
}

// run ends its command when the connection ends, because ctx does.
func (x *session) run(ctx context.Context, _ *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	var p fdapi.RunParams
	if err := req.Decode(&p); err != nil {
		return nil, nil, err
	}
	cmd, res, err := x.server.run(ctx, p.Workspace, p.Command, p.Stdin, p.DiscardOutput)
	if err != nil {
		return nil, nil, err
	}
	return fdapi.RunResult{
		CommandID: cmd, Status: res.Status,
		Stdout: res.Stdout, Stderr: res.Stderr, StdoutLost: res.StdoutLost, StderrLost: res.StderrLost,
	}, nil, nil
}

func (x *session) exec(ctx context.Context, c *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	var p fdapi.ExecParams
	if err := req.Decode(&p); err != nil {
		return nil, nil, err
	}
	ref, err := parseRef(p.Workspace)
	if err != nil {
		return nil, nil, err
	}
	e, err := spawnParams(p.Command, p.Stdin, p.Terminal)
	if err != nil {
		return nil, nil, err
	}
	if err := x.reserve(); err != nil {
		return nil, nil, err
	}
	cmd, proc, err := x.server.gate.Spawn(ctx, x.caller, ref, e, p.Terminal != nil)
	if !x.attach1(cmd, proc, err) {
		if err == nil {
			proc.Close()
			closeAll(proc.Files())
			err = fmt.Errorf("cannot keep %s: the connection has ended: %w", cmd, errdefs.ErrUnavailable)
		}
		return nil, nil, err
	}
	go x.wait(c, cmd, proc)
	return fdapi.ExecResult{CommandID: cmd, PID: proc.PID()}, proc.Files(), nil
}

// reserve makes sure of a place before a command is started for it.
func (x *session) reserve() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.procs)+x.starting >= fdapi.MaxCommands {
		return fmt.Errorf("cannot start a command: %d are attached to this connection, the most there may be; open another: %w", fdapi.MaxCommands, errdefs.ErrResourceExhausted)
	}
	x.starting++
	x.server.attached.add(1)
	return nil
}

// attach1 gives the reserved place to proc, or frees it when there is none or when
// the connection ended meanwhile.
func (x *session) attach1(cmd id.Command, proc runtime.Process, err error) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.starting--
	if err != nil || x.closed {
		x.server.attached.add(-1)
		return false
	}
	x.procs[cmd] = proc
	return true
}

// wait tells the client how a command ended. The connection's end hangs it up,
// so this ends too, by the process or by the context.
func (x *session) wait(c *jsonrpc.Conn, cmd id.Command, proc runtime.Process) {
	defer x.server.attached.add(-1)
	status, err := proc.Wait(x.ctx)
	x.mu.Lock()
	delete(x.procs, cmd)
	x.mu.Unlock()
	n := fdapi.Exited{CommandID: cmd}
	if err != nil {
		n.Error = fault.Text(err)
	} else {
		n.Status = &status
	}
	_ = c.Notify(x.ctx, fdapi.MethodExited, n) // nobody to tell if it fails
	proc.Close()
}

func (x *session) attach(ctx context.Context, _ *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	var p fdapi.AttachParams
	if err := req.Decode(&p); err != nil {
		return nil, nil, err
	}
	ref, err := parseRef(p.Workspace)
	if err != nil {
		return nil, nil, err
	}
	cmd, err := id.ParseCommand(string(p.CommandID))
	if err != nil {
		return nil, nil, err
	}
	res, files, err := x.server.gate.Output(ctx, x.caller, ref, execapi.OutputParams{ID: cmd, Follow: p.Follow}, true)
	if err != nil {
		return nil, nil, err
	}
	return res, files, nil
}

func (x *session) signal(ctx context.Context, _ *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	var p fdapi.SignalParams
	if err := req.Decode(&p); err != nil {
		return nil, nil, err
	}
	return nil, nil, x.server.signal(ctx, p.Workspace, string(p.CommandID), int64(p.Signal), p.GraceMS)
}

func (x *session) resize(ctx context.Context, _ *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	var p fdapi.ResizeParams
	if err := req.Decode(&p); err != nil {
		return nil, nil, err
	}
	ref, err := parseRef(p.Workspace)
	if err != nil {
		return nil, nil, err
	}
	cmd, err := id.ParseCommand(string(p.CommandID))
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, x.server.gate.Resize(ctx, x.caller, ref, execapi.ResizeParams{ID: cmd, Rows: p.Rows, Cols: p.Cols})
}

func isHungUp(err error) bool     { return errors.Is(err, syscall.EIO) }
func isBrokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
