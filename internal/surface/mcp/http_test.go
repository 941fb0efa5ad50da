package mcp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
)

const secret = "0123456789abcdef0123456789abcdef"

// web serves MCP by HTTP until the test ends.
func web(t *testing.T, s *mcp.Server) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, mcp.HTTPOptions{Token: secret}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("served: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

// bearer adds the token to requests.
type bearer struct{ *http.Transport }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+secret)
	return b.Transport.RoundTrip(r)
}

func visitor(t *testing.T, address string) (*sdk.ClientSession, error) {
	t.Helper()
	return visits(t, address, nil)
}

func visits(t *testing.T, address string, o *sdk.ClientOptions) (*sdk.ClientSession, error) {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	c, err := sdk.NewClient(&sdk.Implementation{Name: "web", Version: "1"}, o).Connect(t.Context(),
		&sdk.StreamableClientTransport{Endpoint: address, HTTPClient: &http.Client{Transport: bearer{tr}}, MaxRetries: -1}, nil)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func TestHTTP(t *testing.T) {
	g := &apitest.Gate{}
	address := web(t, desk(t, g, "demo"))
	c, err := visitor(t, address)
	if err != nil {
		t.Fatal(err)
	}
	works(t, c, "exec", args{"command": "echo by HTTP"}, "by HTTP")

	// Cancelled, and gone in mid-call: the command ends, the session of another goes on.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "sleep 2001"}})
		ended <- err
	}()
	running(t, g, "sleep 2001")
	cancel()
	<-ended
	other, err := visitor(t, address)
	if err != nil {
		t.Fatal(err)
	}
	until(t, other, "list_commands", args{}, func(text string) bool { return !strings.Contains(text, "sleep 2001") })
}

// post sends one request by hand, and returns the code and the headers of the response.
func post(t *testing.T, address, body string, header ...string) (int, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	tr := &http.Transport{}
	res, err := (&http.Client{Transport: tr}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	defer res.Body.Close()
	return res.StatusCode, res.Header
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},` +
	`"clientInfo":{"name":"t","version":"1"}}}`

// A request whose connection is closed before the answer ends its command, also where nothing was cancelled.
func TestHTTPClientGone(t *testing.T) {
	g := &apitest.Gate{}
	address := web(t, desk(t, g, "demo"))
	_, header := post(t, address, initialize)
	id := header.Get("Mcp-Session-Id")
	post(t, address, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address,
		strings.NewReader(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"sleep 2002"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + secret,
		"Mcp-Session-Id": id,
		"X-Carrel-Call":  "mine", // which is the server's own
	} {
		r.Header.Set(name, value)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	go func() {
		if res, err := (&http.Client{Transport: tr}).Do(r); err == nil {
			res.Body.Close()
		}
	}()
	running(t, g, "sleep 2002")
	cancel()
	other, err := visitor(t, address)
	if err != nil {
		t.Fatal(err)
	}
	until(t, other, "list_commands", args{}, func(text string) bool { return !strings.Contains(text, "sleep 2002") })
}

// The end of a session ends its calls.
func TestHTTPSessionEnded(t *testing.T) {
	g := &apitest.Gate{}
	address := web(t, desk(t, g, "demo"))
	c, err := visitor(t, address)
	if err != nil {
		t.Fatal(err)
	}
	other, err := visitor(t, address)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.CallTool(t.Context(), &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "sleep 2003"}})
	}()
	running(t, g, "sleep 2003")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Mcp-Session-Id", c.ID())
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: bearer{tr}}).Do(r)
	if err != nil || res.StatusCode != http.StatusNoContent {
		t.Fatalf("%v, %v", res, err)
	}
	res.Body.Close()
	<-ended
	until(t, other, "list_commands", args{}, func(text string) bool { return !strings.Contains(text, "sleep 2003") })
}

func TestHTTPRefuses(t *testing.T) {
	address := web(t, desk(t, &apitest.Gate{}, "demo"))
	for _, x := range []struct {
		name   string
		header []string
		code   int
	}{
		{"as it should be", nil, 200},
		{"no token", []string{"Authorization", ""}, 401},
		{"another token", []string{"Authorization", "Bearer " + secret[1:] + "0"}, 401},
		{"another scheme", []string{"Authorization", "Basic " + secret}, 401},
		{"a page of another origin", []string{"Origin", "https://evil.example"}, 403},
		{"a page without an origin", []string{"Origin", "null"}, 403},
		{"a name that was rebound", []string{"Host", "evil.example"}, 403},
		{"a name that was rebound, and its page", []string{"Host", "evil.example", "Origin", "http://evil.example"}, 403},
		{"a page of this host", []string{"Host", "localhost:80", "Origin", "http://localhost:80"}, 200},
	} {
		if code, _ := post(t, address, initialize, x.header...); code != x.code {
			t.Errorf("%s: %d", x.name, code)
		}
	}
	if code, _ := post(t, address, strings.Repeat(" ", mcp.MaxLine+1)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body: %d", code)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{}
		res, err := (&http.Client{Transport: tr}).Do(r)
		if err != nil || res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a token: %v, %v", method, res, err)
		}
		if err == nil {
			res.Body.Close()
		}
		tr.CloseIdleConnections()
	}
}

// 64 sessions work at once, and one more is refused until one of them has ended.
func TestHTTPSessions(t *testing.T) {
	address := web(t, desk(t, &apitest.Gate{}, "demo"))
	var all [mcp.MaxSessions]*sdk.ClientSession
	for i := range all {
		c, err := visitor(t, address)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = c
	}
	var calls sync.WaitGroup
	for _, c := range all {
		calls.Go(func() { works(t, c, "exec", args{"command": "echo many"}, "many") })
	}
	calls.Wait()
	if code, _ := post(t, address, initialize); code != http.StatusServiceUnavailable {
		t.Errorf("one more: %d", code)
	}
	all[0].Close()
	c, err := visitor(t, address)
	if err != nil {
		t.Fatalf("after one has ended: %v", err)
	}
	works(t, c, "exec", args{"command": "echo more"}, "more")
}

// Progress and elicitations come while a call is open.
func TestHTTPAsks(t *testing.T) {
	g := newAsker()
	address := web(t, desk(t, g, "demo"))
	told, shown := make(chan string, 64), make(chan string, 1)
	o := elicited(func(text string) (string, error) { shown <- text; return "accept", nil })
	o.ProgressNotificationHandler = func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { told <- r.Params.Message }
	c, err := visits(t, address, o)
	if err != nil {
		t.Fatal(err)
	}
	p := &sdk.CallToolParams{Name: "exec", Arguments: risky}
	p.SetProgressToken("t1")
	ended := make(chan *sdk.CallToolResult, 1)
	go func() {
		r, err := c.CallTool(t.Context(), p)
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	if text := <-shown; !strings.Contains(text, "echo risky done") {
		t.Errorf("%s", text)
	}
	if text := <-told; !strings.Contains(text, "waits for approval "+string(g.newest().ID)) {
		t.Errorf("%s", text)
	}
	g.change(approval.Once, approval.Approved)
	if r := <-ended; r == nil || r.IsError || !strings.Contains(textOf(r), "risky done") {
		t.Errorf("%+v", r)
	}
}

// The time that a client has to read an answer does not end later ones on the same connection.
func TestHTTPKeptConnection(t *testing.T) {
	was := mcp.WriteWithin(100 * time.Millisecond)
	address := web(t, desk(t, &apitest.Gate{}, "demo"))
	t.Cleanup(func() { mcp.WriteWithin(was) })
	tr := &http.Transport{MaxConnsPerHost: 1}
	defer tr.CloseIdleConnections()
	id := ""
	send := func(body string, header ...string) int {
		t.Helper()
		// A body that cannot be read again is not sent again by the transport.
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Authorization": {"Bearer " + secret},
		}
		r.Header.Set("Mcp-Session-Id", id)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := (&http.Client{Transport: tr}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		id = res.Header.Get("Mcp-Session-Id")
		return res.StatusCode
	}
	exec := func(seconds string) string {
		return `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"sleep ` + seconds + `"}}}`
	}
	if code := send(initialize); code != http.StatusOK {
		t.Fatal(code)
	}
	if code := send(exec("0.3")); code != http.StatusOK { // longer than a write may take
		t.Errorf("a call: %d", code)
	}
	other, err := visitor(t, address)
	if err != nil {
		t.Fatal(err)
	}
	works(t, other, "exec", args{"command": "sleep 0.3"}, "exit code 0")
	if code := send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); code != http.StatusAccepted {
		t.Errorf("without a body: %d", code)
	}
	works(t, other, "exec", args{"command": "sleep 0.3"}, "exit code 0")
	if code := send(initialize, "Origin", "https://evil.example"); code != http.StatusForbidden {
		t.Errorf("refused: %d", code)
	}
}

// A session is opened by initialize alone: a call beside it would hold up who opens another.
func TestHTTPOpensOneAtATime(t *testing.T) {
	g := &apitest.Gate{}
	address := web(t, desk(t, g, "demo"))
	const begin = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},` +
		`"clientInfo":{"name":"x","version":"1"}}}`
	if code, _ := post(t, address, " [ "+begin+`,{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":`+
		`{"command":"sleep 2009"}}}]`); code != http.StatusBadRequest {
		t.Errorf("a batch is answered with %d", code)
	}
	if code, _ := post(t, address, begin); code != http.StatusOK {
		t.Errorf("initialize alone is answered with %d", code)
	}
}
