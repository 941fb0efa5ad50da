package e2b_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carrel-dev/carrel/gen/e2b/filesystem/filesystemconnect"
	"github.com/carrel-dev/carrel/gen/e2b/process"
	"github.com/carrel-dev/carrel/gen/e2b/process/processconnect"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/surface/e2b"
)

const patience = 20 * time.Second

// book keeps in memory.
type book struct {
	texts sync.Map
	told  chan<- string // gets what is kept, if it is set
}

func (b *book) SetSandbox(_ context.Context, name id.Workspace, text string) error {
	for range rand.N(100) { // others come in between, as with a database
		runtime.Gosched()
	}
	b.texts.Store(name, text)
	if b.told != nil {
		b.told <- text
	}
	return nil
}

func (b *book) Sandbox(_ context.Context, name id.Workspace) (string, error) {
	text, _ := b.texts.Load(name)
	s, _ := text.(string)
	return s, nil
}

// rig is a server over a double of the gate, whose commands are children of the test.
type rig struct {
	t      *testing.T
	url    string
	key    string
	server *e2b.Server
	book   *book
	client *http.Client
	gate   *apitest.Gate
	// history is what was done in every sandbox.
	history *history
}

func start(t *testing.T, slow time.Duration) *rig {
	t.Helper()
	return startOver(t, slow, func(g *apitest.Gate) api.Gate { return g })
}

// startOver is start with what stands between the server and the double.
func startOver(t *testing.T, slow time.Duration, over func(*apitest.Gate) api.Gate) *rig {
	t.Helper()
	return startWith(t, slow, over, api.Options{})
}

// startWith is startOver with bounds.
func startWith(t *testing.T, slow time.Duration, over func(*apitest.Gate) api.Gate, o api.Options) *rig {
	t.Helper()
	g := &apitest.Gate{}
	t.Cleanup(g.Close)
	tokens := authn.NewTokens(g)
	o.Tokens = tokens
	surface := api.NewServer(g, o)
	told, kept := &history{}, &book{}
	s := e2b.New(e2b.Options{
		Gate: over(g), Door: surface, Tokens: tokens, Book: kept, History: told, Key: []byte("key"), Domain: "sandboxes.test", Slow: slow,
	})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := surface.RemoteServer(s, nil)
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(api.Neighbours(l)) }()
	owner := principal.Principal{Kind: principal.User, UID: 7}
	secret := g.Issue(t, owner, principal.Wanted{Roles: principal.Roles(principal.Operator)})
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = h.Close()
		<-served
		s.Close()
	})
	return &rig{t, "http://" + l.Addr().String(), e2b.APIKey(secret), s, kept, &http.Client{Transport: transport}, g, told}
}

func (r *rig) send(method, path, body string, headers ...string) (int, string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// sandbox is a sandbox of the rig's own.
type sandbox struct{ id, access string }

func (r *rig) sandbox() sandbox {
	r.t.Helper()
	return r.made(`{"templateID":"base","timeout":600}`)
}

// made is a sandbox that a body asks for.
func (r *rig) made(body string) sandbox {
	r.t.Helper()
	status, b := r.send("POST", "/sandboxes", body, "X-Api-Key", r.key)
	field := func(name string) string {
		_, rest, _ := strings.Cut(b, `"`+name+`":"`)
		v, _, _ := strings.Cut(rest, `"`)
		return v
	}
	if status != http.StatusCreated || field("sandboxID") == "" {
		r.t.Fatalf("create: %d %s", status, b)
	}
	return sandbox{field("sandboxID"), field("envdAccessToken")}
}

type with struct {
	next    http.RoundTripper
	headers [4]string
}

func (w with) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(w.headers[0], w.headers[1])
	r.Header.Set(w.headers[2], w.headers[3])
	return w.next.RoundTrip(r)
}

func (r *rig) processes(s sandbox) processconnect.ProcessClient {
	return processconnect.NewProcessClient(&http.Client{
		Transport: with{r.client.Transport, [4]string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access}},
	}, r.url)
}

func (r *rig) files(s sandbox) filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(&http.Client{
		Transport: with{r.client.Transport, [4]string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access}},
	}, r.url)
}

func shell(script string, stdin bool) *connect.Request[process.StartRequest] {
	return connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "sh", Args: []string{"-c", script}}, Stdin: &stdin})
}

// begun starts a command, and returns its stream and pid.
func (r *rig) begun(p processconnect.ProcessClient, req *connect.Request[process.StartRequest]) (
	*connect.ServerStreamForClient[process.StartResponse], uint32,
) {
	r.t.Helper()
	st, err := p.Start(r.t.Context(), req)
	if err != nil || !st.Receive() {
		r.t.Fatal("it does not start: ", err)
	}
	r.t.Cleanup(func() { _ = st.Close() })
	return st, st.Msg().GetEvent().GetStart().GetPid()
}

func byPID(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

// A client that reads nothing is let go: the command goes on, and another client has all that comes from then on.
func TestSlowReader(t *testing.T) {
	r := start(t, time.Second)
	p := r.processes(r.sandbox())
	// The first reads nothing of more than its connection holds.
	_, pid := r.begun(p, shell("head -c 12000000 /dev/zero; echo end; read x; echo got $x", true))
	var out bytes.Buffer
	done := make(chan error, 1)
	again, err := p.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: byPID(pid)}))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	sent := false
	go func() {
		for again.Receive() {
			out.Write(again.Msg().GetEvent().GetData().GetStdout())
			if !sent && bytes.HasSuffix(out.Bytes(), []byte("end\n")) {
				sent = true
				_, err := p.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{
					Process: byPID(pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("it\n")}},
				}))
				if err != nil {
					done <- err
					return
				}
			}
		}
		done <- again.Err()
	}()
	select {
	case err := <-done:
		if err != nil || !strings.HasSuffix(out.String(), "end\ngot it\n") {
			t.Errorf("%v, after %d bytes", err, out.Len())
		}
	case <-time.After(patience):
		t.Fatal("who reads is held up by who does not")
	}
}

// Input that a command does not read is waited for a while, and not for ever.
func TestInputThatIsNotRead(t *testing.T) {
	r := start(t, 200*time.Millisecond)
	p := r.processes(r.sandbox())
	_, pid := r.begun(p, shell("sleep 1000", true))
	_, err := p.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{
		Process: byPID(pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: make([]byte, 1<<20)}},
	}))
	if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "it has read none") {
		t.Errorf("%v", err)
	}
	if _, err := p.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: byPID(pid)})); err != nil {
		t.Error(err)
	}
	if _, err := p.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: byPID(pid)})); connect.CodeOf(err) !=
		connect.CodeFailedPrecondition {
		t.Errorf("closed twice: %v", err)
	}
}

// Many clients start, follow and leave at once; nothing of it stays when the server closes.
func TestManyAtOnce(t *testing.T) {
	r := start(t, 0)
	p := r.processes(r.sandbox())
	_, shared := r.begun(p, shell("while read x; do echo $x; done", true))
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			st, err := p.Start(ctx, shell(fmt.Sprintf("echo %d; exit %d", i, i), false))
			if err != nil {
				t.Error(err)
				return
			}
			var out string
			code := int32(-1)
			for st.Receive() {
				out += string(st.Msg().GetEvent().GetData().GetStdout())
				if end := st.Msg().GetEvent().GetEnd(); end != nil {
					code = end.GetExitCode()
				}
			}
			if err := st.Close(); err != nil || out != fmt.Sprintf("%d\n", i) || code != int32(i) {
				t.Errorf("%d: %q, %d, %v", i, out, code, err)
			}
			_, err = p.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{
				Process: byPID(shared), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x\n")}},
			}))
			if err != nil {
				t.Error(err)
			}
			f, err := p.Connect(ctx, connect.NewRequest(&process.ConnectRequest{Process: byPID(shared)}))
			if err == nil {
				f.Receive()
				_ = f.Close()
			}
		})
	}
	all.Wait()
	list, err := p.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
	if err != nil || len(list.Msg.GetProcesses()) != 1 || list.Msg.GetProcesses()[0].GetPid() != shared {
		t.Errorf("left: %v, %v", list, err)
	}
	closed := make(chan struct{})
	go func() { r.server.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("it does not close while a command runs")
	}
}

// What a client has seen the end of is in no list.
func TestEndedIsNotListed(t *testing.T) {
	r := start(t, 0)
	p := r.processes(r.sandbox())
	for range 100 {
		st, pid := r.begun(p, shell("true", false))
		for st.Receive() && st.Msg().GetEvent().GetEnd() == nil {
		}
		list, err := p.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
		if err != nil || len(list.Msg.GetProcesses()) != 0 {
			t.Fatalf("after the end of %d: %v, %v", pid, list, err)
		}
	}
}

// Requests that are wrong are answered in the form of E2B's API, and change nothing.
func TestWrongRequests(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	long := strings.Repeat("x", 9<<10)
	for what, x := range map[string]struct {
		method, path, body string
		status             int
		headers            []string
	}{
		"no key":              {"GET", "/sandboxes", "", 401, nil},
		"not JSON":            {"POST", "/sandboxes", `{"templateID":`, 400, []string{"X-Api-Key", r.key}},
		"long metadata":       {"POST", "/sandboxes", `{"metadata":{"k":"` + long + `"}}`, 400, []string{"X-Api-Key", r.key}},
		"no time":             {"POST", "/sandboxes", `{"timeout":0}`, 400, []string{"X-Api-Key", r.key}},
		"eternal":             {"POST", "/sandboxes", `{"timeout":9223372036854775807}`, 400, []string{"X-Api-Key", r.key}},
		"resumed, not paused": {"POST", "/sandboxes", `{"autoResume":{"enabled":true}}`, 400, []string{"X-Api-Key", r.key}},
		"resumed, no memory": {
			"POST", "/sandboxes", `{"autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`, 400, []string{"X-Api-Key", r.key},
		},
		"a proxy": {"POST", "/sandboxes", `{"network":{"egressProxy":{"address":"p:1"}}}`, 501, []string{"X-Api-Key", r.key}},
		"rules":   {"POST", "/sandboxes", `{"network":{"rules":{"h.example":[{}]}}}`, 501, []string{"X-Api-Key", r.key}},
		"a mask":  {"POST", "/sandboxes", `{"network":{"maskRequestHost":"h"}}`, 501, []string{"X-Api-Key", r.key}},
		"TLS":     {"POST", "/sandboxes", `{"network":{"httpsPorts":[1]}}`, 501, []string{"X-Api-Key", r.key}},
		"a proxy later": {
			"PUT", "/sandboxes/" + s.id + "/network", `{"egressProxy":{"address":"p:1"}}`, 501, []string{"X-Api-Key", r.key},
		},
		"a page of nothing":  {"GET", "/v2/sandboxes?nextToken=zz", "", 400, []string{"X-Api-Key", r.key}},
		"too many":           {"GET", "/v2/sandboxes?limit=1000000", "", 400, []string{"X-Api-Key", r.key}},
		"another route":      {"GET", "/templates", "", 404, []string{"X-Api-Key", r.key}},
		"two keys":           {"GET", "/sandboxes", "", 401, []string{"X-Api-Key", r.key + "00"}},
		"an empty sandbox":   {"GET", "/health", "", 401, []string{"E2b-Sandbox-Id", "none", "X-Access-Token", s.access}},
		"by its host":        {"GET", "/health", "", 204, []string{"Host", "49983-" + s.id + ".sandboxes.test", "X-Access-Token", s.access}},
		"a port by its host": {"GET", "/", "", 502, []string{"Host", "80-" + s.id + ".sandboxes.test", "X-Access-Token", s.access}},
		"a tunnel":           {"CONNECT", "/", "", 405, []string{"E2b-Sandbox-Id", s.id, "E2b-Sandbox-Port", "80", "X-Access-Token", s.access}},
		"form without a file": {"POST", "/files", "--b\r\n\r\nx\r\n--b--", 400, []string{
			"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access, "Content-Type", "multipart/form-data; boundary=b",
		}},
		"form that ends": {"POST", "/files", "--b\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\nx", 400, []string{
			"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access, "Content-Type", "multipart/form-data; boundary=b",
		}},
		"no gzip": {"POST", "/files?path=x", "x", 400, []string{
			"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access, "Content-Encoding", "gzip",
		}},
	} {
		status, b := r.send(x.method, x.path, x.body, x.headers...)
		if status != x.status || status >= 400 && !strings.HasPrefix(b, fmt.Sprintf(`{"code":%d,"message":"`, status)) {
			t.Errorf("%s: %d %.200s", what, status, b)
		}
	}
	// What is sent beyond the bound is read slowly, so this is a connection of its own.
	r.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if status, b := r.send("POST", "/sandboxes", `{"x":"`+strings.Repeat("x", 2<<20)+`"}`, "X-Api-Key", r.key); status != 400 {
		t.Errorf("a huge body: %d %.100q", status, b)
	}
	if status, b := r.send("GET", "/files?path=x", "", "E2b-Sandbox-Id", s.id, "X-Access-Token", s.access); status != 404 {
		t.Errorf("something was written: %d %.100q", status, b)
	}
}

// A file is compressed for who asks for gzip and for nothing else: what runtimes send by themselves lists more, and for a client of the
// same host compressing takes longer than sending.
func TestCompressedOnRequest(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	in := []string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access}
	text := strings.Repeat("carrel ", 40000)
	if status, b := r.send("POST", "/files?path=x", text, in...); status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	for accepts, want := range map[string]bool{"gzip": true, "gzip, deflate": false, "": false, "identity": false, "br, gzip": false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/files?path=x", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(in); i += 2 {
			req.Header.Set(in[i], in[i+1])
		}
		req.Header.Set("Accept-Encoding", accepts)
		res, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body := io.Reader(res.Body)
		if packed := res.Header.Get("Content-Encoding") == "gzip"; packed != want {
			t.Errorf("%q: compressed is %v", accepts, packed)
		} else if packed {
			if body, err = gzip.NewReader(res.Body); err != nil {
				t.Fatal(err)
			}
		}
		if b, err := io.ReadAll(body); err != nil || string(b) != text {
			t.Errorf("%q: %d bytes, %v", accepts, len(b), err)
		}
		res.Body.Close()
	}
}

// A command of a sandbox that is killed did not end by itself, and nothing is said of its exit code.
func TestKilledWithItsCommand(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	st, pid := r.begun(r.processes(s), shell("exec sleep 1000", false))
	signalled, _ := r.begun(r.processes(s), shell("kill $$", false))
	for signalled.Receive() {
		if end := signalled.Msg().GetEvent().GetEnd(); end != nil && end.GetExitCode() != -1 {
			t.Errorf("one that a signal ended: %v", end)
		}
	}
	if err := signalled.Err(); err != nil {
		t.Errorf("one that a signal ended: %v", err)
	}
	if status, b := r.send("DELETE", "/sandboxes/"+s.id, "", "X-Api-Key", r.key); status != 204 {
		t.Fatalf("%d %s", status, b)
	}
	for st.Receive() {
		if end := st.Msg().GetEvent().GetEnd(); end != nil {
			t.Errorf("%d ended: %v", pid, end)
		}
	}
	if connect.CodeOf(st.Err()) != connect.CodeUnavailable || !strings.Contains(st.Err().Error(), "killed or reached its timeout") {
		t.Errorf("%v", st.Err())
	}
}

// A program inside sees that it is in a sandbox, and in which, unless it is told otherwise.
func TestVariablesOfASandbox(t *testing.T) {
	r := start(t, 0)
	s := r.made(`{"envVars":{"E2B_TEMPLATE_ID":"mine"}}`)
	st, _ := r.begun(r.processes(s), shell("echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID", false))
	var out string
	for st.Receive() {
		out += string(st.Msg().GetEvent().GetData().GetStdout())
	}
	if out != "true "+s.id+" mine\n" || st.Err() != nil {
		t.Errorf("%q, %v", out, st.Err())
	}
}

// An API key is a token in hexadecimal digits behind e2b_, and a token as it is will do.
func TestAPIKey(t *testing.T) {
	r := start(t, 0)
	b, err := hex.DecodeString(strings.TrimPrefix(r.key, "e2b_"))
	if err != nil || !strings.HasPrefix(string(b), "crl_") {
		t.Fatalf("%q, %v", b, err)
	}
	for _, key := range []string{r.key, string(b)} {
		if status, body := r.send("GET", "/sandboxes", "", "X-Api-Key", key); status != 200 || body != "[]\n" {
			t.Errorf("%d %s", status, body)
		}
	}
}
