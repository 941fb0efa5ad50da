package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// sessionGate has one session, "main" of "demo", which writes back what is typed, and "end" ends it.
type sessionGate struct {
	*apitest.Gate

	resized chan execapi.ResizeParams
	joined  chan execapi.OutputParams
	left    chan struct{} // nil: nobody looks
}

func (g *sessionGate) ListCommands(_ context.Context, _ principal.Principal, ref string) ([]execapi.Command, error) {
	if ref != "demo/a" {
		return nil, errors.New("another workspace")
	}
	return []execapi.Command{{ID: ranID, Session: "main", Detached: true, TTY: true}}, nil
}

func (g *sessionGate) Resize(_ context.Context, _ principal.Principal, _ string, r execapi.ResizeParams) error {
	g.resized <- r
	return nil
}

func (g *sessionGate) Output(_ context.Context, _ principal.Principal, _ string, o execapi.OutputParams, attach bool,
) (execapi.OutputResult, []*os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return execapi.OutputResult{}, nil, err
	}
	near := os.NewFile(uintptr(fds[1]), "near")
	o.Follow = attach
	g.joined <- o
	go func() {
		defer func() {
			near.Close()
			if g.left != nil {
				g.left <- struct{}{}
			}
		}()
		_, _ = io.WriteString(near, "drawn\xff")
		b := make([]byte, 1<<10)
		for {
			n, err := near.Read(b)
			if err != nil || string(b[:n]) == "end" {
				return
			}
			_, _ = near.Write(b[:n])
		}
	}()
	return execapi.OutputResult{TTY: true, Client: 3}, []*os.File{os.NewFile(uintptr(fds[0]), "far")}, nil
}

// served is an API with a session over TLS, and a token for it.
func servedSession(t *testing.T) (g *sessionGate, addr, secret string, hc *http.Client) {
	t.Helper()
	g = &sessionGate{Gate: &apitest.Gate{}, resized: make(chan execapi.ResizeParams, 10), joined: make(chan execapi.OutputParams, 100)}
	addr, _, _ = apitest.ServeTLS(t, g, api.Options{
		Tokens: authn.NewTokens(g), TerminalOrigins: []string{"", "https://panel.example:8443"},
	})
	secret = g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal()
	hc = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(hc.CloseIdleConnections)
	return g, addr, secret, hc
}

const mainOfDemo = "/v1/terminals/demo%2Fa/main"

// dialTerminal returns the status and the header of the answer, and the WebSocket if that is 101.
func dialTerminal(t *testing.T, hc *http.Client, url string, h http.Header, protocols ...string) (*websocket.Conn, int, http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ws, res, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: hc, HTTPHeader: h, Subprotocols: protocols})
	if err == nil {
		t.Cleanup(func() { _ = ws.CloseNow() })
	}
	if res == nil {
		t.Fatal(err)
	}
	if res.Body != nil {
		_ = res.Body.Close()
	}
	return ws, res.StatusCode, res.Header
}

// dialPatiently tries again while it is told that it is too fast.
func dialPatiently(t *testing.T, hc *http.Client, url string, h http.Header) (*websocket.Conn, int) {
	t.Helper()
	for {
		ws, code, _ := dialTerminal(t, hc, url, h)
		if code != http.StatusTooManyRequests {
			return ws, code
		}
		<-time.After(50 * time.Millisecond)
	}
}

func receive(t *testing.T, ws *websocket.Conn, want string) {
	t.Helper()
	kind, b, err := ws.Read(t.Context())
	if err != nil || kind != websocket.MessageBinary || string(b) != want {
		t.Fatalf("%v %q, %v; want %q", kind, b, err, want)
	}
}

// A terminal over a WebSocket: binary down, text up, sizes, and the end.
func TestTerminalOverWebSocket(t *testing.T) {
	g, addr, secret, hc := servedSession(t)
	for _, by := range []string{"header", "subprotocol", "listed origin"} {
		h, protocols := http.Header{}, []string{"carrel.terminal.v1"}
		switch by {
		case "header":
			h.Set("Authorization", "Bearer "+secret)
		case "subprotocol":
			h.Set("Origin", "https://"+addr)
		default:
			h.Set("Origin", "https://panel.example:8443")
			h.Set("Sec-Fetch-Site", "cross-site")
		}
		if by != "header" {
			protocols = append(protocols, "carrel.token."+secret)
		}
		ws, code, header := dialTerminal(t, hc, "https://"+addr+mainOfDemo+"?rows=30&cols=90", h, protocols...)
		if ws == nil {
			t.Fatalf("by %s: %v", by, code)
		}
		if p := header.Values("Sec-Websocket-Protocol"); len(p) != 1 || p[0] != "carrel.terminal.v1" {
			t.Errorf("by %s: the server chose %q", by, p)
		}
		if o := <-g.joined; !o.Join || o.Rows != 30 || o.Cols != 90 || !o.Follow || o.ID != ranID {
			t.Errorf("%+v", o)
		}
		receive(t, ws, "drawn\xff")
		for _, up := range []string{"ls\r", `{"type":"other"}`, "{"} {
			if err := ws.Write(t.Context(), websocket.MessageText, []byte(up)); err != nil {
				t.Fatal(err)
			}
			receive(t, ws, up)
		}
		size := `{"type":"resize","cols":100,"rows":40}`
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(size)); err != nil {
			t.Fatal(err)
		}
		if r := <-g.resized; r != (execapi.ResizeParams{ID: ranID, Rows: 40, Cols: 100, Client: 3}) {
			t.Errorf("%+v", r)
		}
		if err := ws.Write(t.Context(), websocket.MessageBinary, []byte(size)); err != nil {
			t.Fatal(err)
		}
		receive(t, ws, size) // it is typed
		if err := ws.Write(t.Context(), websocket.MessageText, []byte("end")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			t.Errorf("at the end: %v", err)
		}
	}
}

// Who may not is refused before anything is joined, and a message that is not allowed ends the client alone.
func TestTerminalsThatAreRefused(t *testing.T) {
	g, addr, secret, hc := servedSession(t)
	url := "https://" + addr
	bearer := func(with ...string) http.Header {
		h := http.Header{"Authorization": {"Bearer " + secret}}
		for i := 0; i < len(with); i += 2 {
			h.Set(with[i], with[i+1])
		}
		return h
	}
	look := g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal()
	for _, c := range []struct {
		name, url string
		h         http.Header
		status    int
	}{
		{"no token", url + mainOfDemo, nil, http.StatusUnauthorized},
		{"another page", url + mainOfDemo, bearer("Origin", "https://evil.example"), http.StatusForbidden},
		{"a page of another port of a listed host", url + mainOfDemo, bearer("Origin", "https://panel.example"), http.StatusForbidden},
		{"a page without TLS", url + mainOfDemo, bearer("Origin", "http://"+addr), http.StatusForbidden},
		{"a page of another port", url + mainOfDemo, bearer("Origin", "https://127.0.0.1:1"), http.StatusForbidden},
		{"no origin but a browser's", url + mainOfDemo, bearer("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		{"a token in the address", url + mainOfDemo + "?token=" + look, nil, http.StatusUnauthorized},
		{"a parameter that is none", url + mainOfDemo + "?token=x", bearer(), http.StatusBadRequest},
		{"a bad size", url + mainOfDemo + "?rows=-1", bearer(), http.StatusBadRequest},
		{"two sizes", url + mainOfDemo + "?rows=1&rows=2", bearer(), http.StatusBadRequest},
		{"no session", url + "/v1/terminals/demo%2Fa", bearer(), http.StatusBadRequest},
		{"another session", url + "/v1/terminals/demo%2Fa/other", bearer(), http.StatusNotFound},
		{"a path", url + "/v1/terminals/demo%2Fa/../x", bearer(), http.StatusBadRequest},
		{"opened and looked at", url + mainOfDemo + "?open=1&read_only=1", bearer(), http.StatusBadRequest},
	} {
		if _, code := dialPatiently(t, hc, c.url, c.h); code != c.status {
			t.Errorf("%s: %d, want %d", c.name, code, c.status)
		}
	}
	if len(g.joined) > 0 {
		t.Errorf("%d were joined", len(g.joined))
	}
	for name, c := range map[string]struct {
		query string
		send  string
		code  websocket.StatusCode
	}{
		"typing read-only": {"?read_only=true", "ls\r", websocket.StatusPolicyViolation},
		"too much":         {"", strings.Repeat("x", 64<<10+1), websocket.StatusMessageTooBig},
		"a bad size":       {"", `{"type":"resize","cols":70000,"rows":1}`, websocket.StatusPolicyViolation},
	} {
		ws, code := dialPatiently(t, hc, url+mainOfDemo+c.query, bearer())
		if ws == nil {
			t.Fatal(name, code)
		}
		if o := <-g.joined; o.Follow == (name == "typing read-only") {
			t.Errorf("%s: joined with %+v", name, o)
		}
		receive(t, ws, "drawn\xff")
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(c.send)); err != nil {
			t.Fatal(name, err)
		}
		if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	plain, err := hc.Do(must(http.NewRequestWithContext(t.Context(), http.MethodGet, url+mainOfDemo, http.NoBody)))
	if err == nil {
		_ = plain.Body.Close()
	}
	if err != nil || plain.StatusCode != http.StatusUnauthorized {
		t.Errorf("without an upgrade: %v, %v", plain, err)
	}
}

func must(r *http.Request, err error) *http.Request {
	if err != nil {
		panic(err)
	}
	return r
}

// An owner opens a few a second, and another one is not affected.
func TestTerminalsArePaced(t *testing.T) {
	g, addr, secret, hc := servedSession(t)
	bob := principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	other := g.Issue(t, bob, principal.Wanted{Roles: principal.Operator}).Reveal()
	try := func(secret string) int {
		ws, code, _ := dialTerminal(t, hc, "https://"+addr+mainOfDemo, http.Header{"Authorization": {"Bearer " + secret}})
		if ws != nil {
			_ = ws.CloseNow()
			<-g.joined
		}
		return code
	}
	refused := 0
	for range 12 {
		if try(secret) == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 || refused > 7 {
		t.Errorf("%d of 12 were refused", refused)
	}
	if code := try(other); code != http.StatusSwitchingProtocols {
		t.Errorf("another owner: %d", code)
	}
}

// A token that is revoked ends its terminals, a client that vanishes ends its own, and no connection is counted that has gone.
func TestTerminalsEnd(t *testing.T) {
	g := &sessionGate{Gate: &apitest.Gate{}, resized: make(chan execapi.ResizeParams, 10), joined: make(chan execapi.OutputParams, 100)}
	socket, s := apitest.Serve(t, g, &alice, api.Options{})
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(hc.CloseIdleConnections)
	for range 4 {
		ws, code, _ := dialTerminal(t, hc, "http://carrel"+mainOfDemo, nil)
		if ws == nil {
			t.Fatal(code)
		}
		receive(t, ws, "drawn\xff")
		_ = ws.CloseNow()
	}
	noneIsCounted(t, s)
	if _, code := dialPatiently(t, hc, "http://carrel"+mainOfDemo, http.Header{"Origin": {"http://carrel"}}); code != http.StatusForbidden {
		t.Errorf("a page on the Unix socket: %d", code)
	}
}

func noneIsCounted(t *testing.T, s *api.Server) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); s.Connections() > 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are counted", s.Connections())
		}
	}
}

// A connection that is lost at any byte of what a client sends leaves nothing: its terminal is left, and it is not counted.
func TestTerminalsAreLostAtEachByte(t *testing.T) {
	g := &sessionGate{
		Gate: &apitest.Gate{}, resized: make(chan execapi.ResizeParams, 1000), joined: make(chan execapi.OutputParams, 1000),
		left: make(chan struct{}, 1000),
	}
	socket, s := apitest.Serve(t, g, &alice, api.Options{})
	head := "GET " + mainOfDemo + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	// Masked with zeros: text "ls", then a size, then a close.
	size := `{"type":"resize","cols":9,"rows":9}`
	frames := "\x81\x82\x00\x00\x00\x00ls" + "\x81" + string(rune(0)) + "\x00\x00\x00\x00" + size + "\x88\x80\x00\x00\x00\x00"
	frames = strings.Replace(frames, "\x81\x00", "\x81"+string([]byte{0x80 | byte(len(size))}), 1)
	lose := func(cut int) (status string) {
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, head[:min(cut, len(head))]); err != nil || cut < len(head) {
			return ""
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, " 101 ") {
			_, _ = io.WriteString(c, frames[:cut-len(head)])
		}
		return line
	}
	for cut := 0; cut < len(head); cut += 3 {
		lose(cut)
	}
	if len(g.joined) > 0 {
		t.Errorf("%d were joined by half a request", len(g.joined))
	}
	joined := 0
	for cut := 0; cut <= len(frames); {
		if line := lose(len(head) + cut); !strings.Contains(line, " 101 ") {
			if !strings.Contains(line, " 429 ") {
				t.Fatalf("%d: %s", cut, line)
			}
			<-time.After(50 * time.Millisecond)
			continue
		}
		joined++
		<-g.joined
		select {
		case <-g.left:
		case <-time.After(10 * time.Second):
			t.Fatalf("cut at byte %d the client stays joined", cut)
		}
		if cut++; cut > 8 && cut < len(frames)-8 {
			cut += 6 // the middle of a message is like another byte of it, and the pace is slow
		}
	}
	noneIsCounted(t, s)
	if joined < 15 {
		t.Errorf("only %d were tried", joined)
	}
}

// A client written by others: that of node, which is a browser's and can send no header.
func TestTerminalWithNode(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("skipped: node, whose WebSocket this tries, is not here")
	}
	g, addr, secret, _ := servedSession(t)
	const script = `
const ws = new WebSocket(process.argv[1], ["carrel.terminal.v1", "carrel.token." + process.env.SECRET]);
ws.binaryType = "arraybuffer";
let got = "";
ws.onopen = () => { ws.send(JSON.stringify({type: "resize", cols: 100, rows: 40})); ws.send("typed é"); };
ws.onmessage = (m) => {
  got += typeof m.data === "string" ? "text" : Buffer.from(m.data).toString("latin1");
  if (got.endsWith("typed \xc3\xa9")) ws.send(new TextEncoder().encode("end"));
};
ws.onerror = (e) => { console.log("error", e.message); process.exit(3); };
ws.onclose = (e) => console.log(ws.protocol, e.code, e.reason, JSON.stringify(got));
`
	url := "wss://" + addr + mainOfDemo + "?rows=24&cols=80"
	c := exec.CommandContext(t.Context(), node, "--experimental-websocket", "--no-warnings", "-e", script, url)
	c.Env = append(os.Environ(), "SECRET="+secret, "NODE_TLS_REJECT_UNAUTHORIZED=0")
	out, err := c.CombinedOutput()
	if strings.Contains(string(out), "bad option") || strings.Contains(string(out), "WebSocket is not defined") {
		t.Skip("skipped: this node has no WebSocket: ", string(out))
	}
	want := `carrel.terminal.v1 1000 the session has ended "drawnÿtyped Ã©"`
	if err != nil || strings.TrimSpace(string(out)) != want {
		t.Fatalf("%q, %v; want %q", out, err, want)
	}
	if o, r := <-g.joined, <-g.resized; o.Rows != 24 || r.Cols != 100 {
		t.Errorf("%+v, %+v", o, r)
	}
}
