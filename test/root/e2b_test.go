package root_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carrel-dev/carrel/gen/e2b/process"
	"github.com/carrel-dev/carrel/gen/e2b/process/processconnect"
)

// e2bHost brings up a carrel that serves programs of E2B.
func e2bHost(t *testing.T) *host {
	t.Helper()
	h := newHostWith(t, func(string) string {
		return "e2b_listen: 127.0.0.1:0\ne2b_domain: sandboxes.test\n"
	})
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	return h
}

// e2bClient is a client with an API key.
type e2bClient struct {
	t        *testing.T
	http     http.Client
	url, key string
	env      []string
}

// e2b makes a token as flags say, as a program of E2B gets it.
func (h *host) e2b(t *testing.T, flags ...string) *e2bClient {
	t.Helper()
	c := &e2bClient{t: t}
	for line := range strings.Lines(h.carrel(t, append([]string{"token", "create", "--e2b"}, flags...)...)) {
		pair, ok := strings.CutPrefix(strings.TrimSpace(line), "export ")
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case !ok:
		case name == "E2B_API_KEY":
			c.key = value
		case name == "E2B_API_URL":
			c.url = value
		}
		c.env = append(c.env, pair)
	}
	if c.url == "" || !strings.HasPrefix(c.key, "e2b_") {
		t.Fatalf("it prints %q", c.env)
	}
	return c
}

// ask sends a request of the control plane, and reads the answer into to.
func (c *e2bClient) ask(method, path string, body, to any, headers ...string) int {
	c.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	if body == nil {
		b = nil
	}
	status, text := c.send(method, path, bytes.NewReader(b), append([]string{"X-Api-Key", c.key}, headers...)...)
	if to != nil {
		if err := json.Unmarshal(text, to); err != nil {
			c.t.Fatalf("%s %s: %d %s", method, path, status, text)
		}
	}
	return status
}

func (c *e2bClient) send(method, path string, body io.Reader, headers ...string) (int, []byte) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.http.Do(r)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, text
}

// e2bSandbox is what Create answers.
type e2bSandbox struct {
	ID      string `json:"sandboxID"`
	Access  string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
	State   string `json:"state"`
	Message string `json:"message"`
}

func (c *e2bClient) create() e2bSandbox {
	c.t.Helper()
	var s e2bSandbox
	if status := c.ask("POST", "/v2/sandboxes", map[string]any{"templateID": "base", "timeout": 600}, &s); status != 201 || s.ID == "" || s.Access == "" {
		c.t.Fatalf("create: %d %+v", status, s)
	}
	return s
}

// in are the headers of a request for a sandbox.
func (s e2bSandbox) in() []string {
	return []string{"E2b-Sandbox-Id", s.ID, "E2b-Sandbox-Port", "49983", "X-Access-Token", s.Access}
}

type e2bHeaders struct {
	next    http.RoundTripper
	headers []string
}

func (h e2bHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for i := 0; i+1 < len(h.headers); i += 2 {
		r.Header.Set(h.headers[i], h.headers[i+1])
	}
	return h.next.RoundTrip(r)
}

func (c *e2bClient) processes(s e2bSandbox) processconnect.ProcessClient {
	both := &http.Transport{Protocols: new(http.Protocols)}
	both.Protocols.SetUnencryptedHTTP2(true)
	c.t.Cleanup(both.CloseIdleConnections)
	return processconnect.NewProcessClient(&http.Client{Transport: e2bHeaders{both, s.in()}}, c.url, connect.WithProtoJSON())
}

// run runs a command and returns its output, and how it ended.
func (c *e2bClient) run(s e2bSandbox, argv ...string) (string, *process.ProcessEvent_EndEvent, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	st, err := c.processes(s).Start(ctx, connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: argv[0], Args: argv[1:]},
	}))
	if err != nil {
		return "", nil, err
	}
	defer st.Close()
	var out strings.Builder
	var end *process.ProcessEvent_EndEvent
	for st.Receive() {
		if d := st.Msg().GetEvent().GetData(); d != nil {
			out.Write(d.GetStdout())
		}
		if e := st.Msg().GetEvent().GetEnd(); e != nil {
			end = e
		}
	}
	return out.String(), end, st.Err()
}

// A program of E2B makes a sandbox, works in it and ends it; what is not there it is told in that API's own words.
func TestE2B(t *testing.T) {
	h := e2bHost(t)
	c := h.e2b(t)
	s := c.create()
	if out, end, err := c.run(s, "sh", "-c", "echo $((6*7)); exit 3"); err != nil || out != "42\n" || end.GetExitCode() != 3 || !end.GetExited() {
		t.Errorf("%q, %v, %v", out, end, err)
	}
	if !strings.Contains(h.carrel(t, "ls"), s.ID) {
		t.Error("it is no workspace")
	}
	if n := strings.Count(mustRead(t, h), `"sh","-c","echo $((6*7)); exit 3"`); n == 0 {
		t.Error("the command is not in the record")
	}
	// Files: a path in the home, whole or not at all.
	if status, b := c.send("POST", "/files?path=d/f", strings.NewReader("old"), s.in()...); status != 200 {
		t.Errorf("upload: %d %s", status, b)
	}
	c.cutUpload(s, "/files?path=d/f", "new content that is cut")
	if status, b := c.send("GET", "/files?path=d/f", nil, s.in()...); status != 200 || string(b) != "old" {
		t.Errorf("after an upload that was cut: %d %q", status, b)
	}
	if _, end, err := c.run(s, "sh", "-c", "echo x > d/.npmrc"); err != nil || end.GetExitCode() != 0 {
		t.Errorf("%v, %v", end, err)
	}
	if status, b := c.send("GET", "/changes?path=d", nil, s.in()...); status != 200 ||
		!strings.Contains(string(b), `{"path":".npmrc","type":"file","kind":"acted","reader":"npm`) {
		t.Errorf("what changed: %d %s", status, b)
	}
	// What a person is asked about waits, and then runs once.
	done := make(chan string, 1)
	go func() {
		out, _, err := c.run(s, "sh", "-c", "git push -q https://example.invalid/in x; echo ran-$((40+2))")
		done <- fmt.Sprint(out, err)
	}()
	var id string
	until(t, "the question", func() bool {
		select {
		case got := <-done:
			t.Fatal("it did not wait: ", got)
		default:
		}
		id = approvalID.FindString(h.carrel(t, "approvals", "list"))
		return id != ""
	})
	h.carrel(t, "approvals", "approve", id)
	if got := <-done; got != "ran-42\n<nil>" {
		t.Errorf("what was approved: %s", got)
	}
	// Another template is a profile, and there is none.
	var e e2bSandbox
	if status := c.ask("POST", "/sandboxes", map[string]any{"templateID": "no such"}, &e); status/100 != 4 || e.Message == "" {
		t.Errorf("a template that is not there: %d %+v", status, e)
	}
	if status := c.ask("POST", "/sandboxes/"+s.ID+"/snapshots", nil, &e); status != 501 || e.Message == "" {
		t.Errorf("snapshots: %d %+v", status, e)
	}
	// One idempotency key makes one sandbox.
	var one, two e2bSandbox
	body := map[string]any{"templateID": "base", "timeout": 600}
	c.ask("POST", "/v2/sandboxes", body, &one, "Idempotency-Key", "once")
	c.ask("POST", "/v2/sandboxes", body, &two, "Idempotency-Key", "once")
	if one.ID == "" || one.ID != two.ID {
		t.Errorf("the same request made %q and %q", one.ID, two.ID)
	}
	// Over a restart of the daemon the sandbox and its access token hold.
	kill(t, h.part(t, "daemon"))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	c.url = h.e2b(t).url
	if out, _, err := c.run(s, "cat", "d/f"); err != nil || out != "old" {
		t.Errorf("after a restart: %q, %v", out, err)
	}
	if status := c.ask("DELETE", "/sandboxes/"+s.ID, nil, nil); status != 204 {
		t.Errorf("kill: %d", status)
	}
	if status, b := c.send("GET", "/health", nil, s.in()...); status != 502 || !strings.Contains(string(b), "sandbox was not found") {
		t.Errorf("health of one that is gone: %d %s", status, b)
	}
}

// A sandbox whose time is over is paused if it was made so, also by a daemon that was not there at that time, and goes on with what
// ran in it; by itself if that was asked for, and else when somebody connects.
func TestE2BPausedAtTheEnd(t *testing.T) {
	h := e2bHost(t)
	c := h.e2b(t)
	made := func(body map[string]any) (s e2bSandbox) {
		if status := c.ask("POST", "/sandboxes", body, &s); status != 201 {
			t.Fatalf("create: %d %+v", status, s)
		}
		return s
	}
	state := func(s e2bSandbox) string {
		var got struct{ State string }
		c.ask("GET", "/sandboxes/"+s.ID, nil, &got)
		return got.State
	}
	late := made(map[string]any{"timeout": 600, "autoPause": true})
	woken := made(map[string]any{"timeout": 4, "autoPause": true, "autoResume": map[string]any{"enabled": true}})
	ended := made(map[string]any{"timeout": 2})
	h.carrel(t, "exec", "--detach", woken.ID, "--", "sh", "-c", "echo $$ > pid; exec sleep 1000")
	until(t, "the end of the time of two", func() bool { return state(woken) == "paused" && state(ended) == "" })
	if out, _, err := c.run(woken, "sh", "-c", "kill -0 $(cat pid) && echo lives"); err != nil || out != "lives\n" {
		t.Errorf("what ran in the one that was woken: %q, %v", out, err)
	}
	if got := state(woken); got != "running" {
		t.Errorf("the one that was woken is %s", got)
	}
	if status := c.ask("POST", "/sandboxes/"+late.ID+"/timeout", map[string]any{"timeout": 1}, nil); status != 204 {
		t.Fatal(status)
	}
	kill(t, h.part(t, "daemon"))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	c.url = h.e2b(t).url
	until(t, "the end of the time of the third", func() bool { return state(late) == "paused" })
	if status, b := c.send("GET", "/health", nil, late.in()...); status != 502 {
		t.Errorf("a paused one: %d %s", status, b)
	}
	if status := c.ask("POST", "/sandboxes/"+late.ID+"/connect", map[string]any{"timeout": 600}, nil); status != 201 {
		t.Errorf("connect: %d", status)
	}
	if out, _, err := c.run(late, "echo", "back"); err != nil || out != "back\n" {
		t.Errorf("%q, %v", out, err)
	}
	if n := strings.Count(mustRead(t, h), `"reason":"it has lived its time"`); n < 4 {
		t.Errorf("%d records say why the two were paused and have no end", n)
	}
}

// cutUpload sends half of a body and goes.
func (c *e2bClient) cutUpload(s e2bSandbox, path, body string) {
	c.t.Helper()
	u, err := url.Parse(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", path, 2*len(body))
	for i, h := 0, s.in(); i+1 < len(h); i += 2 {
		head += h[i] + ": " + h[i+1] + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"+body); err != nil {
		c.t.Fatal(err)
	}
}

// A client that leaves does not end its command, another may follow it, and who does not read holds nobody up.
func TestE2BFollowers(t *testing.T) {
	h := e2bHost(t)
	c := h.e2b(t)
	s := c.create()
	p := c.processes(s)
	ctx, cancel := context.WithCancel(t.Context())
	tag := "mine"
	st, err := p.Start(ctx, connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "sh", Args: []string{"-c", "while ! test -e go; do sleep 0.05; done; echo went; exit 7"}}, Tag: &tag,
	}))
	if err != nil || !st.Receive() || st.Msg().GetEvent().GetStart().GetPid() == 0 {
		t.Fatal("it does not start: ", err)
	}
	cancel()
	st.Close()
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}}
	again, err := p.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: sel}))
	if err != nil || !again.Receive() || again.Msg().GetEvent().GetStart() == nil {
		t.Fatal("it cannot be followed: ", err)
	}
	defer again.Close()
	if status, b := c.send("POST", "/files?path=go", strings.NewReader(""), s.in()...); status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	var out string
	for again.Receive() {
		out += string(again.Msg().GetEvent().GetData().GetStdout())
		if end := again.Msg().GetEvent().GetEnd(); end != nil {
			out += fmt.Sprint(end.GetExitCode())
		}
	}
	if out != "went\n7" {
		t.Errorf("the second client sees %q", out)
	}
	_, err = p.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("input for one that has ended: %v", err)
	}
	// The bound of commands that are followed.
	endless := func() error {
		st, err := p.Start(t.Context(), connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "sleep", Args: []string{"1000"}}}))
		if err == nil && !st.Receive() {
			err = cmp.Or(st.Err(), errors.New("no start"))
		}
		return err
	}
	for n := 0; ; n++ {
		if err := endless(); err != nil {
			if connect.CodeOf(err) != connect.CodeResourceExhausted || n < 16 {
				t.Errorf("number %d: %v", n, err)
			}
			break
		}
		if n > 600 {
			t.Fatal("there is no bound")
		}
	}
}

// Who is not given a sandbox gets nothing of it, whatever they send.
func TestE2BStrangers(t *testing.T) {
	h := e2bHost(t)
	c, other := h.e2b(t), h.e2b(t, "--owner", "uid:61999")
	s := c.create()
	mine := other.create()
	secret := "planted-5up3r"
	if status, _ := c.send("POST", "/files?path=secret", strings.NewReader(secret), s.in()...); status != 200 {
		t.Fatal("upload")
	}
	refused := func(what string, status int, b []byte) {
		t.Helper()
		if status/100 == 2 || bytes.Contains(b, []byte(secret)) || bytes.Contains(b, []byte(s.Access)) {
			t.Errorf("%s: %d %.200s", what, status, b)
		}
	}
	for _, x := range [][2]string{
		{"GET", ""},
		{"DELETE", ""},
		{"POST", "/timeout"},
		{"POST", "/refreshes"},
		{"POST", "/pause"},
		{"POST", "/resume"},
		{"POST", "/connect"},
		{"GET", "/metrics"},
		{"GET", "/logs"},
		{"PUT", "/network"},
	} {
		for _, v := range []string{"", "/v2"} {
			status, b := other.send(x[0], v+"/sandboxes/"+s.ID+x[1], strings.NewReader(`{"timeout":5,"duration":5}`), "X-Api-Key", other.key)
			refused(x[0]+" "+v+x[1], status, b)
		}
	}
	if _, b := other.send("GET", "/sandboxes", nil, "X-Api-Key", other.key); bytes.Contains(b, []byte(s.ID)) || !bytes.Contains(b, []byte(mine.ID)) {
		t.Errorf("the list of another: %s", b)
	}
	sign := func(access, path, operation, until string) string {
		raw := path + ":" + operation + "::" + access
		if until != "" {
			raw += ":" + until
		}
		sum := sha256.Sum256([]byte(raw))
		q := url.Values{"path": {path}, "signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}
		if until != "" {
			q.Set("signature_expiration", until)
		}
		return "/files?" + q.Encode()
	}
	id := []string{"E2b-Sandbox-Id", s.ID}
	good := fmt.Sprint(time.Now().Add(time.Minute).Unix())
	if status, b := c.send("GET", sign(s.Access, "secret", "read", good), nil, id...); status != 200 || string(b) != secret {
		t.Fatalf("a signed URL: %d %s", status, b)
	}
	tokenID, _, _ := strings.Cut(s.Access, ".")
	for what, x := range map[string]struct {
		method, path string
		headers      []string
	}{
		"no token":                       {"GET", "/files?path=secret", id},
		"the key instead":                {"GET", "/files?path=secret", append(id, "X-Access-Token", c.key)},
		"the API key alone":              {"GET", "/files?path=secret", append(id, "X-Api-Key", c.key)},
		"another's token":                {"GET", "/files?path=secret", append(id, "X-Access-Token", mine.Access)},
		"a token that is cut":            {"GET", "/files?path=secret", append(id, "X-Access-Token", s.Access[:len(s.Access)-1])},
		"a token without MAC":            {"GET", "/files?path=secret", append(id, "X-Access-Token", tokenID+".")},
		"this token for another sandbox": {"GET", "/files?path=secret", []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", s.Access}},
		"signed for writing":             {"GET", sign(s.Access, "secret", "write", good), id},
		"signed for another path":        {"GET", strings.Replace(sign(s.Access, "other", "read", good), "other", "secret", 1), id},
		"signed, expired":                {"GET", sign(s.Access, "secret", "read", "1000000000"), id},
		"signed, expiry changed":         {"GET", strings.Replace(sign(s.Access, "secret", "read", "1000000000"), "1000000000", good, 1), id},
		"signed by another":              {"GET", sign(mine.Access, "secret", "read", good), id},
		"signed without a token":         {"GET", sign("", "secret", "read", good), id},
		"a link out":                     {"GET", "/files?path=out", s.in()},
		"another user":                   {"GET", "/files?path=secret&username=root", s.in()},
		"another port":                   {"GET", "/", []string{"E2b-Sandbox-Id", s.ID, "E2b-Sandbox-Port", "8000", "X-Access-Token", s.Access}},
		"a browser":                      {"GET", "/sandboxes", []string{"X-Api-Key", c.key, "Origin", "https://example.org"}},
	} {
		if what == "a link out" {
			if _, _, err := c.run(s, "ln", "-s", "/proc/1/environ", "out"); err != nil {
				t.Fatal(err)
			}
		}
		status, b := c.send(x.method, x.path, nil, x.headers...)
		refused(what, status, b)
	}
	// Another user than the workspace's is refused, and a token that may only look runs and feeds nothing.
	looker := h.e2b(t, "--role", "approver")
	var look e2bSandbox
	if status := looker.ask("GET", "/sandboxes/"+s.ID, nil, &look); status != 200 || look.Access == "" {
		t.Fatalf("one who may look: %d", status)
	}
	look.ID = s.ID
	if out, _, err := looker.run(look, "id"); connect.CodeOf(err) != connect.CodePermissionDenied || out != "" {
		t.Errorf("one who may only look runs: %q, %v", out, err)
	}
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: 1}}
	if _, err := looker.processes(look).SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel})); connect.CodeOf(err) !=
		connect.CodePermissionDenied {
		t.Errorf("one who may only look sends input: %v", err)
	}
	// An access token ends with the token that it came of.
	h.carrel(t, "token", "revoke", tokenID)
	status, b := c.send("GET", "/files?path=secret", nil, s.in()...)
	refused("after the token was revoked", status, b)
	// Nothing that was refused was done.
	if out := h.carrel(t, "ls", "-o", "json"); !strings.Contains(out, s.ID) {
		t.Error("the sandbox is gone")
	}
}

func mustRead(t *testing.T, h *host) string {
	t.Helper()
	b, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
