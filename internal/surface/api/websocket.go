package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Terminals over WebSocket (docs/protocols/terminals.md):
//
//	GET /v1/terminals/WORKSPACE/SESSION?rows=24&cols=80[&read_only=true][&open=true]
//
//	client                                            carreld
//	  │ text or binary: what is typed                    │
//	  │ text {"type":"resize","cols":80,"rows":24}       │
//	  ├─────────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────────┤ binary: what draws the terminal
//	  │◄─────────────────────────────────────────────────┤ ping, every 30 s
const (
	terminalsPath = "/v1/terminals/"
	// terminalProtocol is the subprotocol, and tokenProtocol comes before a token where a client cannot send a header.
	terminalProtocol = "carrel.terminal.v1"
	tokenProtocol    = "carrel.token."
	// maxFrame bounds a message of a client, in bytes.
	maxFrame = 64 << 10
	// An owner may connect so often.
	terminalBurst = 5
	terminalEvery = time.Second / 5
	// maxTerminalOwners are the owners that are remembered for that; the others share one bucket.
	maxTerminalOwners = 4096
)

// terminalPace bounds how often each owner connects.
type terminalPace struct {
	mu   sync.Mutex
	came *bucket.Many[string]
}

func (p *terminalPace) take(owner string, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait := p.came.Take(owner, bucket.Bound{Burst: terminalBurst, Every: terminalEvery}, now); wait > 0 {
		return fmt.Errorf("cannot open another terminal now: %s opens more than %d a second; try again in %v: %w", owner,
			time.Second/terminalEvery, wait.Round(time.Millisecond), errdefs.ErrResourceExhausted)
	}
	return nil
}

// terminalRequest is what the address of a request says.
type terminalRequest struct {
	ref, session string
	size         *window
	readOnly     bool
	open         bool
}

func parseTerminal(u *url.URL) (t terminalRequest, err error) {
	workspace, session, ok := strings.Cut(strings.TrimPrefix(u.EscapedPath(), terminalsPath), "/")
	if workspace, err = url.PathUnescape(workspace); !ok || err != nil {
		return t, invalid("path", "it is not "+terminalsPath+"WORKSPACE/SESSION", "escape a '/' in the key of a workspace as %2F")
	}
	if t.ref, err = parseRef(workspace); err != nil {
		return t, err
	}
	if err := execapi.CheckSession(session); err != nil {
		return t, err
	}
	t.session = session
	size := &carrelv1.WindowSize{}
	for key, values := range u.Query() {
		n, nerr := strconv.ParseUint(values[0], 10, 16)
		yes, berr := strconv.ParseBool(values[0])
		switch key {
		case "rows":
			size.Rows, err = uint32(n), nerr
		case "cols":
			size.Cols, err = uint32(n), nerr
		case "read_only":
			t.readOnly, err = yes, berr
		case "open":
			t.open, err = yes, berr
		default: // a token in an address would be in logs
			return t, invalid(key, "there is no such parameter", "use rows, cols, read_only and open; a token goes into the header Authorization")
		}
		if err != nil || len(values) > 1 {
			return t, invalid(key, "it has no usable value, or more than one", "give a number for rows and cols, true or false for the others")
		}
	}
	if t.readOnly && t.open {
		return t, invalid("open", "a session is not opened read-only", "leave one of open and read_only out")
	}
	t.size, err = windowFrom(size)
	return t, err
}

// tokenOf are the Authorization headers of a request. A browser cannot send one with a WebSocket, but subprotocols.
func tokenOf(r *http.Request) []string {
	headers := r.Header.Values("Authorization")
	if !strings.HasPrefix(r.URL.Path, terminalsPath) {
		return headers
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			if secret, ok := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol); ok {
				headers = append(headers, "Bearer "+secret)
			}
		}
	}
	return headers
}

// fromPage reports whether a request for a terminal may come from the page that a browser says it is of: one of the host that
// it is for, or of an origin in the settings.
func (s *Server) fromPage(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) != 1 || origins[0] == "" || r.TLS == nil { // no page is served on the Unix socket
		return false
	}
	if slices.Contains(s.opts.TerminalOrigins, origins[0]) {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Scheme == "https" && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// terminal serves one client of a session over a WebSocket.
func (s *Server) terminal(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	t, err := parseTerminal(r.URL)
	if err == nil && (r.Method != http.MethodGet || r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket")) {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "close")
		http.Error(w, "cannot open a terminal: send GET over HTTP/1.1 with Connection: Upgrade and Upgrade: websocket; see "+
			"docs/protocols/terminals.md", http.StatusUpgradeRequired)
		return
	}
	if err == nil {
		err = s.terminals.take(authn.FromContext(ctx).Owner(), time.Now())
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	cmd, err := s.sessionFor(ctx, t)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	m, err := s.join(ctx, t.ref, cmd, t.size, t.readOnly)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	defer m.leave()
	taken := &takenConn{ResponseWriter: w}
	defer func() {
		if taken.conn != nil {
			s.connState(taken.conn, http.StateClosed) // the server does not count out what was taken from it
		}
	}()
	// The origin was checked with the route: see fromPage.
	ws, err := websocket.Accept(taken, r, &websocket.AcceptOptions{
		Subprotocols: []string{terminalProtocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return // Accept has answered
	}
	ws.SetReadLimit(maxFrame)
	s.carry(ctx, ws, m)
}

// sessionFor is the command of the session that a client asks for, which is opened if that is asked for.
func (s *Server) sessionFor(ctx context.Context, t terminalRequest) (id.Command, error) {
	list, err := s.gate.ListCommands(ctx, authn.FromContext(ctx), t.ref)
	if err != nil {
		return "", err
	}
	for _, c := range list {
		if c.Session == t.session && c.Status == nil {
			return c.ID, nil
		}
	}
	if !t.open {
		return "", fmt.Errorf("cannot join session %s: workspace %s has no such session; open it with \"carrel shell\", or with open=true: %w",
			t.session, t.ref, errdefs.ErrNotFound)
	}
	return commands{s}.detach(ctx, &carrelv1.DetachRequest{
		Workspace: t.ref, Session: t.session,
		Command:  &carrelv1.Command{Argv: []string{"bash", "-l"}, Source: "user"},
		Terminal: &carrelv1.WindowSize{Rows: uint32(t.size.Rows), Cols: uint32(t.size.Cols)},
	})
}

// takenConn keeps the connection that is taken over.
type takenConn struct {
	http.ResponseWriter

	conn net.Conn
}

// Hijack implements http.Hijacker.
func (t *takenConn) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err == nil {
		t.conn = c
		err = c.SetDeadline(time.Time{})
	}
	return c, b, err
}

// carry carries bytes until the session has ended, the client has gone, or it may no more, and closes the WebSocket with the
// reason.
func (s *Server) carry(ctx context.Context, ws *websocket.Conn, m *member) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.untilClosing(ctx, m.leave)()
	// A read whose context ends takes the connection with it, and the client would not be told why. What it sends in that
	// moment goes nowhere: the member has left.
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		cancel(m.obey(reading, ws))
		m.leave() // which ends the pump
	}()
	go func() {
		if err := beat(ctx, ws); err != nil {
			cancel(err)
			m.leave()
		}
	}()
	err := pump(m.f, func(b []byte) error {
		if err := ended(ctx); err != nil {
			return err
		}
		timed, done := finishing(ctx, s.opts.StallTimeout)
		defer done()
		return ws.Write(timed, websocket.MessageBinary, b)
	})
	code, why := s.closeCode(ctx, err)
	_ = ws.Close(code, why) // a client that has gone needs no reason
}

// finishAfter is how long a frame that is being written may take after what it is written for has ended.
const finishAfter = 5 * time.Second

// finishing bounds the writing of one frame. It outlives ctx by finishAfter: a context that ends within a write, even one of
// which the client has every byte already, takes the connection with it, and the client would not be told why it is closed.
func finishing(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishAfter, cancel) })
	return timed, func() {
		stop()
		cancel()
	}
}

// closeCode is how a WebSocket is closed whose pump has ended with err.
func (s *Server) closeCode(ctx context.Context, err error) (websocket.StatusCode, string) {
	cause := context.Cause(ctx)
	switch {
	case ended(ctx) != nil:
		return websocket.StatusPolicyViolation, short(ended(ctx))
	case s.follows.Err() != nil:
		return websocket.StatusGoingAway, "the daemon is stopping; the session goes on"
	case cause != nil && (errdefs.IsInvalidArgument(cause) || errdefs.IsPermissionDenied(cause)):
		return websocket.StatusPolicyViolation, short(cause)
	case cause != nil || err != nil:
		return websocket.StatusInternalError, "the connection was lost; the session goes on"
	}
	return websocket.StatusNormalClosure, "the session has ended"
}

// short is an error as the reason of a close, which has at most 123 bytes.
func short(err error) string {
	text := errtext.Text(err)
	return strings.ToValidUTF8(text[:min(len(text), 120)], "")
}

// obey does what the client sends, and returns why it sends no more.
func (m *member) obey(ctx context.Context, ws *websocket.Conn) error {
	for {
		kind, b, err := ws.Read(ctx)
		if err != nil {
			return errors.Join(errClientGone, err)
		}
		var say struct {
			Type string `json:"type"`
			Rows uint32 `json:"rows"`
			Cols uint32 `json:"cols"`
		}
		if kind == websocket.MessageText && len(b) > 0 && b[0] == '{' && json.Unmarshal(b, &say) == nil && say.Type == "resize" {
			size, serr := windowFrom(&carrelv1.WindowSize{Rows: say.Rows, Cols: say.Cols})
			if err = serr; err == nil {
				err = m.resize(ctx, size)
			}
		} else {
			err = m.input(b)
		}
		if err != nil {
			return err
		}
	}
}

var errClientGone = errors.New("the client has gone")

// beat asks every pingAfter whether the client is there.
func beat(ctx context.Context, ws *websocket.Conn) error {
	t := time.NewTicker(pingAfter)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		timed, done := finishing(ctx, pingTimeout)
		err := ws.Ping(timed)
		done()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}
