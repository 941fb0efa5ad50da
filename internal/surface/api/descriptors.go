package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\n\r\n"

// descriptors turns the connection over to the protocol that carries descriptors. The caller
// was authenticated when the connection was made, and stays who it was.
func (s *Server) descriptors(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.ProtoMajor != 1 ||
		!strings.EqualFold(r.Header.Get("Connection"), "upgrade") || r.Header.Get("Upgrade") != fdapi.Protocol ||
		r.ContentLength != 0 {
		w.Header().Set("Upgrade", fdapi.Protocol)
		w.Header().Set("Connection", "close")
		http.Error(w, "cannot hand over descriptors: send POST over HTTP/1.1 without a body and with Connection: Upgrade and Upgrade: "+
			""+fdapi.Protocol+"; see docs/protocols/api.md", http.StatusUpgradeRequired)
		return
	}
	// A token is judged anew with each request; a connection that was handed over has none.
	if authn.FromContext(r.Context()).Kind == principal.Token {
		s.refuse(w, r, fmt.Errorf("cannot hand over descriptors to a token: use CommandService/Stream, as the SDK does: %w",
			errdefs.ErrFailedPrecondition))
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
	flight flight

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
	x.flight = flight{server: s, conn: c, owner: caller.Owner()}
	x.ctx, x.cancel = context.WithCancel(authn.NewContext(s.closing, caller))
	conn := jsonrpc.New(c, jsonrpc.Config{
		Handler: x.handle, MaxFDs: 1, Room: s.roomFor(x.flight.owner),
		BeforeClose: func() { x.flight.end(func() { s.conns.remove(c) }) },
		OnClose:     func(error) { x.end() },
	})
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

// handle serves a call of carrel.v1 by the same handler as a request over HTTP, which finds
// the descriptors that came with it in its context, and leaves there those that go back.
func (x *session) handle(ctx context.Context, c *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	call, ok := x.server.calls[req.Method]
	if !ok {
		return nil, nil, jsonrpc.MethodNotFound(req.Method)
	}
	if n := routes[fdapi.Prefix+req.Method].maxRequest; len(req.Params) > n {
		return nil, nil, fmt.Errorf("cannot accept a request of %d bytes for %s: at most %d are allowed: %w", len(req.Params), req.Method,
			n, errdefs.ErrResourceExhausted)
	}
	if len(req.FDs) > 0 && !brings[req.Method] {
		return nil, nil, jsonrpc.Hangup(fmt.Errorf("cannot accept %s: it brings descriptors: %w", req.Method, errdefs.ErrInvalidArgument))
	}
	if n := int64(len(req.Params)); weigh(n) > 0 {
		give, err := x.server.hold(ctx, x.flight.owner, "a request", n)
		if err != nil {
			return nil, nil, err
		}
		defer give()
	}
	reserved := hands[req.Method]
	if n := reserved + len(req.FDs); n > 0 {
		if err := x.server.open(x.flight.owner, n); err != nil {
			return nil, nil, err
		}
		if len(req.FDs) > 0 {
			defer x.server.opened.Give(x.flight.owner, int64(len(req.FDs)))
		}
	}
	sent := 0
	if reserved > 0 {
		defer func() { x.flight.landed(reserved, sent) }()
	}
	at, err := x.server.places.take(ctx, x.caller.Owner())
	if err != nil {
		return nil, nil, err
	}
	defer at.give()
	carried := &carriage{session: x, conn: c, in: req.FDs}
	res, err := call(authn.NewContext(context.WithValue(ctx, carriageKey{}, carried), x.caller), req.Params)
	if err != nil {
		return nil, nil, errcode.FromWire(err)
	}
	n := int64(len(res))
	if sent = len(carried.out); sent == 0 && weigh(n) == 0 {
		return res, nil, nil
	}
	if weigh(n) > 0 {
		give, err := x.server.hold(ctx, x.flight.owner, "an answer", n)
		if err != nil {
			return nil, nil, err // what was carried out with descriptors has short answers
		}
		defer give()
	}
	req.Reply(res, carried.out, nil) // it is written when this returns, so that what is on its way is counted
	return jsonrpc.Later, nil, nil
}

// brings are the calls that come with a descriptor.
var brings = map[string]bool{fdapi.Create: true, fdapi.Read: true, fdapi.Write: true}

// carriage is what a call over a connection with descriptors brings and takes.
type carriage struct {
	session *session
	conn    *jsonrpc.Conn
	in, out []*os.File
}

type carriageKey struct{}

// carried returns the carriage of a call. failed_precondition: it came without.
func carried(ctx context.Context) (*carriage, error) {
	if c, ok := ctx.Value(carriageKey{}).(*carriage); ok {
		return c, nil
	}
	return nil, fmt.Errorf("cannot hand over descriptors on this connection: use one that carries them (docs/protocols/api.md), as the "+
		"SDK does on the daemon's host, or CommandService/Stream: %w", errdefs.ErrFailedPrecondition)
}

// call serves one unary procedure from JSON to JSON.
type call func(ctx context.Context, params []byte) (json.RawMessage, error)

// unary makes a call of a handler. What the schema does not know is refused.
func unary[Req, Res any, PReq interface {
	*Req
	proto.Message
}](h func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)) call {
	return func(ctx context.Context, params []byte) (json.RawMessage, error) {
		req := new(Req)
		if err := protojson.Unmarshal(params, PReq(req)); err != nil {
			return nil, errcode.ToWire(fmt.Errorf("cannot read the request: %w: %w", err, errdefs.ErrInvalidArgument))
		}
		res, err := h(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		return json.Marshal(res.Msg)
	}
}

// Spawn starts an attached command and hands its streams over.
func (s commands) Spawn(
	ctx context.Context, req *request[carrelv1.SpawnRequest],
) (*response[carrelv1.SpawnResponse], error) {
	c, err := carried(ctx)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	cmd, proc, err := c.session.spawn(ctx, c.conn, req.Msg.GetStart())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	c.out = proc.Files()
	return connect.NewResponse(&carrelv1.SpawnResponse{CommandId: string(cmd), Pid: int64(proc.PID())}), nil
}

func (x *session) spawn(ctx context.Context, c *jsonrpc.Conn, start *carrelv1.StreamStart) (id.Command, runtime.Process, error) {
	p, err := spawnParams(start)
	if err != nil {
		return "", nil, err
	}
	if err := x.reserve(); err != nil {
		return "", nil, err
	}
	cmd, proc, err := x.server.gate.Spawn(ctx, x.caller, p.ref, p.exec, p.terminal)
	if !x.attach(cmd, proc, err) {
		if err == nil {
			proc.Close()
			closeAll(proc.Files())
			err = fmt.Errorf("cannot keep %s: the connection has ended: %w", cmd, errdefs.ErrUnavailable)
		}
		return "", nil, err
	}
	go x.wait(c, cmd, proc)
	return cmd, proc, nil
}

// reserve makes sure of a place before a command is started for it.
func (x *session) reserve() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.procs)+x.starting >= fdapi.MaxCommands {
		return fmt.Errorf("cannot start a command: %d are attached to this connection, the most there may be; open another: %w",
			fdapi.MaxCommands, errdefs.ErrResourceExhausted)
	}
	x.starting++
	x.server.attached.add(1)
	return nil
}

// attach gives the reserved place to proc, or frees it when there is none or when the
// connection ended meanwhile.
func (x *session) attach(cmd id.Command, proc runtime.Process, err error) bool {
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

// wait tells the client how a command ended. The connection's end hangs it up, so this ends
// too, by the process or by the context.
func (x *session) wait(c *jsonrpc.Conn, cmd id.Command, proc runtime.Process) {
	defer x.server.attached.add(-1)
	status, err := proc.Wait(x.ctx)
	x.mu.Lock()
	delete(x.procs, cmd)
	x.mu.Unlock()
	n := &carrelv1.Exited{CommandId: string(cmd)}
	if err != nil {
		n.Error = errtext.Text(err)
	} else {
		n.Status = statusTo(&status)
	}
	if b, err := json.Marshal(n); err == nil {
		_ = c.Notify(x.ctx, fdapi.Exited, json.RawMessage(b)) // nobody to tell if it fails
	}
	proc.Close()
}

// Attach hands the output of a detached command over, or its terminal.
func (s commands) Attach(ctx context.Context, req *request[carrelv1.AttachRequest]) (*response[carrelv1.AttachResponse], error) {
	c, err := carried(ctx)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	m := req.Msg
	ref, cmd, err := parseCommand(m.GetWorkspace(), m.GetCommandId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	window, err := windowFrom(m.GetSize())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	o := execapi.OutputParams{ID: cmd, Follow: m.GetFollow(), Join: m.GetJoin()}
	if window != nil {
		o.Rows, o.Cols = window.Rows, window.Cols
	}
	res, files, err := s.gate.Output(ctx, authn.FromContext(ctx), ref, o, !m.GetReadOnly())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	c.out = files
	return connect.NewResponse(&carrelv1.AttachResponse{
		Terminal: res.TTY, Lost: res.Lost, Status: statusTo(res.Status), Client: int32(res.Client),
	}), nil
}

func isHungUp(err error) bool     { return errors.Is(err, syscall.EIO) }
func isBrokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
