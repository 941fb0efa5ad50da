package e2b_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carrel-dev/carrel/gen/e2b/process"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/surface/e2b"
)

// Commands outlive their clients, and each holds descriptors of the daemon's. An owner may have so many, in whatever
// sandboxes, and what has ended gives them back.
func TestCommandsThatOutliveTheirClients(t *testing.T) {
	r := startWith(t, 0, func(g *apitest.Gate) api.Gate { return g }, api.Options{Descriptors: 240}) // 30 for one
	first, second := r.processes(r.sandbox()), r.processes(r.sandbox())
	begin := func(p func() (*connect.ServerStreamForClient[process.StartResponse], error)) error {
		st, err := p()
		if err == nil && !st.Receive() {
			err = st.Err()
		}
		if st != nil {
			_ = st.Close() // its client leaves
		}
		return err
	}
	started := 0
	var last error
	for i := range 20 {
		p := first
		if i%2 == 1 {
			p = second
		}
		if err := begin(func() (*connect.ServerStreamForClient[process.StartResponse], error) {
			return p.Start(t.Context(), shell("read x", true))
		}); err != nil {
			last = err
			break
		}
		started++
	}
	if started != 10 || connect.CodeOf(last) != connect.CodeResourceExhausted {
		t.Errorf("%d were started, then: %v", started, last)
	}
	list, err := second.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
	if err != nil || len(list.Msg.GetProcesses()) != 5 {
		t.Fatalf("at the bound nothing can be listed: %v", err)
	}
	pid := list.Msg.GetProcesses()[0].GetPid()
	if _, err := second.SendSignal(t.Context(), connect.NewRequest(&process.SendSignalRequest{
		Process: byPID(pid), Signal: process.Signal_SIGNAL_SIGKILL,
	})); err != nil {
		t.Fatalf("at the bound nothing can be ended: %v", err)
	}
	for end := time.Now().Add(patience); ; {
		err := begin(func() (*connect.ServerStreamForClient[process.StartResponse], error) {
			return first.Start(t.Context(), shell("read x", true))
		})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the place of one that has ended is not given again: %v", err)
		}
	}
}

// sending counts what is taken of a body that has no end.
type sending struct {
	head string
	text string
	n    atomic.Int64
}

func (s *sending) Read(p []byte) (int, error) {
	n := copy(p, s.head)
	if s.head = s.head[n:]; n == 0 {
		n = copy(p, s.text)
	}
	s.n.Add(int64(n))
	return n, nil
}

// upload sends a body that is not at its end to /files.
func (r *rig) upload(s sandbox, body *sending, headers ...string) (int, string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/files", body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", s.id)
	req.Header.Set("X-Access-Token", s.access)
	req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// The head of a part was read up to 10 MB of each stream, before the gate was asked.
func TestHeadsOfUploads(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	long := func() *sending {
		return &sending{
			head: "--b\r\nContent-Disposition: form-data; name=f; filename=x\r\nX-Long: ", text: strings.Repeat("x", 32<<10),
		}
	}
	body := long()
	// What is on its way in the windows of HTTP/2 has been taken from the client.
	const onItsWay = 1 << 20
	if status, text := r.upload(s, body); status != 400 || !strings.Contains(text, "longer than 16384 bytes") || body.n.Load() > 2*onItsWay {
		t.Errorf("a long head: %d %s after %d bytes", status, text, body.n.Load())
	}
	looks := r.gate.Issue(t, principal.Principal{Kind: principal.User, UID: 7}, principal.Wanted{Roles: principal.Roles(principal.Approver)})
	_, answer := r.send("GET", "/sandboxes/"+s.id, "", "X-Api-Key", e2b.APIKey(looks))
	_, rest, _ := strings.Cut(answer, `"envdAccessToken":"`)
	access, _, _ := strings.Cut(rest, `"`)
	if access == "" {
		t.Fatalf("no access for who may look: %s", answer)
	}
	body = long()
	if status, text := r.upload(sandbox{s.id, access}, body); status != 403 || body.n.Load() > 2*onItsWay {
		t.Errorf("who may only look: %d %s", status, text)
	}
}

// Uploads count as streams do.
func TestUploadsAreCounted(t *testing.T) {
	r := startWith(t, 0, func(g *apitest.Gate) api.Gate { return g }, api.Options{StreamsPerOwner: 1})
	s := r.sandbox()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil { // the other one may have been first
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/files?path=x", &waits{ctx})
			if err != nil {
				return
			}
			req.Header.Set("E2b-Sandbox-Id", s.id)
			req.Header.Set("X-Access-Token", s.access)
			if res, err := r.client.Do(req); err == nil {
				res.Body.Close()
			}
		}
	}()
	status := 0
	pause := time.NewTicker(10 * time.Millisecond) // so that the first gets in: each try of it that is refused keeps its connection
	defer pause.Stop()
	for end := time.Now().Add(patience); status != http.StatusTooManyRequests && time.Now().Before(end); <-pause.C {
		status, _ = r.send("POST", "/files?path=y", "y", "E2b-Sandbox-Id", s.id, "X-Access-Token", s.access)
	}
	if status != http.StatusTooManyRequests {
		t.Errorf("a second upload is answered with %d", status)
	}
	cancel()
	<-over
}

type waits struct{ ctx context.Context }

func (w *waits) Read([]byte) (int, error) {
	<-w.ctx.Done()
	return 0, w.ctx.Err()
}

// A body in gzip can be a thousand times as long as what is sent.
func TestBombsOfGzip(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	pack := func(n int, from byte) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		for range n {
			_, _ = z.Write(bytes.Repeat([]byte{from}, 1<<20))
		}
		_ = z.Close()
		return b.String()
	}
	in := []string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access, "Content-Encoding", "gzip"}
	if status, text := r.send("POST", "/files?path=small", pack(8, 'x'), in...); status != 200 {
		t.Errorf("what is short: %d %s", status, text)
	}
	if status, text := r.send("POST", "/files?path=bomb", pack(64, 'x'), in...); status != 400 || !strings.Contains(text, "send it as it is") {
		t.Errorf("a bomb: %d %s", status, text)
	}
}

// Who asks for many sandboxes has none of others' forgotten.
func TestRememberedForSignedURLs(t *testing.T) {
	r := start(t, 0)
	as := func(id string) context.Context {
		return authn.NewContext(t.Context(), principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: id}})
	}
	if !r.server.Remembered(as("0123456789ab"), as("ba9876543210"), "ws-mine", "0123456789ab") {
		t.Error("the holder of another token had it forgotten")
	}
}
