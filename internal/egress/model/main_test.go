package model_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const (
	patience = 10 * time.Second
	key      = "sk-ant-api03-realkeyrealkeyrealkey"
)

// rig is a handler between a program and a host.
type rig struct {
	t     *testing.T
	front *httptest.Server
	host  *httptest.Server
	room  *room.Room

	mu     sync.Mutex
	models []string
	calls  []model.Call // of the usages, in their order
	soFar  []model.Usage
	usages chan model.Usage
}

// start serves an API in front of a host that does what serve says. change may be nil.
func start(t *testing.T, api model.API, serve http.HandlerFunc, change func(*model.Config)) *rig {
	t.Helper()
	r := &rig{t: t, usages: make(chan model.Usage, 100), room: room.New()}
	r.host = httptest.NewUnstartedServer(serve)
	r.host.Config.ErrorLog = nil
	r.host.StartTLS()
	t.Cleanup(r.host.Close)
	roots := r.host.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	transport := model.NewTransport("example.com", roots, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.host.Listener.Addr().String())
	})
	t.Cleanup(transport.CloseIdleConnections)
	c := model.Config{
		API: api, Upstream: "https://example.com", Key: redact.NewValue(key), Transport: transport, Room: r.room, Reserve: r.reserve,
	}
	if change != nil {
		change(&c)
	}
	h, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	r.front = httptest.NewServer(h)
	t.Cleanup(r.front.Close)
	return r
}

func (r *rig) reserve(_ context.Context, q model.Request) (model.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models = append(r.models, q.Model)
	done := func(u model.Usage, c model.Call) {
		r.mu.Lock()
		r.calls = append(r.calls, c)
		r.mu.Unlock()
		r.usages <- u
	}
	progress := func(u model.Usage) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.soFar = append(r.soFar, u)
	}
	return model.Lease{Done: done, Progress: progress}, nil
}

func (r *rig) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.models)
}

// used waits for what a request has used.
func (r *rig) used() model.Usage {
	r.t.Helper()
	select {
	case u := <-r.usages:
		return u
	case <-time.After(patience):
		r.t.Fatal("no usage was told")
		return model.Usage{}
	}
}

// told waits for what is told of a request's bodies.
func (r *rig) told() model.Call {
	r.t.Helper()
	r.used()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[len(r.calls)-1]
}

// do sends a request, with fields that are NAME: VALUE, and hands the response on.
func (r *rig) do(method, path, body string, take func(*http.Response), fields ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.front.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Error(err)
		return
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	res, err := r.front.Client().Do(req)
	if err != nil {
		r.t.Error(err)
		return
	}
	defer res.Body.Close()
	take(res)
}

// get returns status and body of a request.
func (r *rig) get(method, path, body string, fields ...string) (status int, text string) {
	r.t.Helper()
	r.do(method, path, body, func(res *http.Response) {
		b, err := io.ReadAll(res.Body)
		if err != nil {
			r.t.Error(err)
		}
		status, text = res.StatusCode, string(b)
	}, fields...)
	return status, text
}

// freed waits until a room of a size is empty: a body is freed just after the program has its response.
func freed(t *testing.T, r *room.Room, size int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); r.Left() != size; {
		if time.Now().After(deadline) {
			t.Errorf("%d bytes of %d are left of the room", r.Left(), size)
			return
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // there is no event for memory that is given back
	}
}

// problem returns type and message of an error in the form of an API, and fails if it has another.
func problem(t *testing.T, api model.API, body string) (kind, message string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if api == model.Anthropic {
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := d.Decode(&e); err != nil || e.Type != "error" {
			t.Errorf("%s is no error of Anthropic: %v", body, err)
		}
		return e.Error.Type, e.Error.Message
	}
	var e struct {
		Error struct {
			Type, Message string
			Param, Code   *string
		}
	}
	if err := d.Decode(&e); err != nil {
		t.Errorf("%s is no error of OpenAI: %v", body, err)
	}
	return e.Error.Type, e.Error.Message
}

// answer serves a fixed response.
func answer(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}
