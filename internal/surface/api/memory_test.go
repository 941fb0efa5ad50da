package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

const execPath = "/carrel.v1.CommandService/Exec"

// memoryRig has a workspace of alice's and one of mallory's, and connects as whoever is set.
type memoryRig struct {
	t       *testing.T
	socket  string
	server  *api.Server
	caller  atomic.Pointer[principal.Principal]
	mallory principal.Principal
}

func newMemoryRig(t *testing.T, o api.Options) *memoryRig {
	r := &memoryRig{t: t, mallory: principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}}
	r.caller.Store(&alice)
	r.socket, r.server = apitest.ServeAs(t, &apitest.Gate{}, func() principal.Principal { return *r.caller.Load() }, o)
	create(t, r.socket, "demo")
	r.caller.Store(&r.mallory)
	create(t, r.socket, "hers")
	return r
}

func (r *memoryRig) dial() net.Conn {
	conn, err := new(net.Dialer).DialContext(r.t.Context(), "unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// served checks that somebody else is served, also what is large.
func (r *memoryRig) served() {
	r.t.Helper()
	r.caller.Store(&alice)
	defer r.caller.Store(&r.mallory)
	c := carrelv1connect.NewCommandServiceClient(unix(r.t, r.socket, true), "http://carrel")
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	req := &carrelv1.ExecRequest{Workspace: "demo", Command: command("head", "-c", "200000", "/dev/zero"), Stdin: make([]byte, 100_000)}
	res, err := c.Exec(ctx, connect.NewRequest(req))
	if err != nil || len(res.Msg.GetStdout()) != 200_000 {
		r.t.Errorf("somebody else: %v", err)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.After(10 * time.Second); !f(); {
		select {
		case <-end:
			t.Fatal(what)
		case <-time.After(time.Millisecond):
		}
	}
}

// Answers that nobody reads have a bound and a time. Before, 32 of them took half a gigabyte for ever.
func TestAnswersTakeTheirOwnersMemory(t *testing.T) {
	const bound = 2 << 20
	r := newMemoryRig(t, api.Options{Memory: bound, StallTimeout: 2 * time.Second})
	body, err := json.Marshal(map[string]any{
		"workspace": "hers", "command": map[string]any{"argv": []string{"head", "-c", "250000", "/dev/zero"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 24 {
		fmt.Fprintf(r.dial(), "POST %s HTTP/1.1\r\nHost: carrel\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", execPath,
			len(body), body)
	}
	var most int64
	until(t, "nothing is held of what is not read", func() bool {
		most = max(most, r.server.HeldMemory(r.mallory.Owner()))
		return most > bound/2
	})
	r.served()
	until(t, "what nobody reads is kept", func() bool {
		most = max(most, r.server.HeldMemory(r.mallory.Owner()))
		return r.server.HeldMemory(r.mallory.Owner()) == 0
	})
	if most > bound {
		t.Errorf("%d bytes are held for one owner", most)
	}
}

// Bodies are counted before they are read.
func TestBodiesTakeTheirOwnersMemory(t *testing.T) {
	const bound, size = 5 << 20, 900_000
	r := newMemoryRig(t, api.Options{Memory: bound})
	var all []net.Conn
	for range 12 {
		conn := r.dial()
		all = append(all, conn)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: carrel\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", execPath, size)
		go func() { _, _ = conn.Write(bytes.Repeat([]byte("x"), size-1)) }()
	}
	until(t, "nothing is held of what was sent", func() bool { return r.server.HeldMemory(r.mallory.Owner()) >= 2*2*size })
	r.served()
	if n := r.server.HeldMemory(r.mallory.Owner()); n > bound {
		t.Errorf("%d bytes are held for one owner", n)
	}
	for _, c := range all {
		c.Close()
	}
	until(t, "bodies that have gone are held", func() bool { return r.server.HeldMemory(r.mallory.Owner()) == 0 })
}

// So are messages on connections with descriptors, finished or not, and on streams.
func TestMessagesTakeTheirOwnersMemory(t *testing.T) {
	const bound, size = 3 << 20, 900_000
	r := newMemoryRig(t, api.Options{Memory: bound})
	var all []net.Conn
	for range 8 {
		conn, status := send(t, r.socket, upgrade)
		if status != http.StatusSwitchingProtocols {
			t.Fatal(status)
		}
		all = append(all, conn)
		go func() {
			fmt.Fprintf(conn, `{"jsonrpc":"2.0","id":1,"method":%q,"params":{"start":"`, fdapi.Spawn)
			_, _ = conn.Write(bytes.Repeat([]byte("x"), size))
		}()
	}
	until(t, "nothing is held of messages that have begun", func() bool { return r.server.HeldMemory(r.mallory.Owner()) > bound/2 })
	refused := make(chan string, len(all))
	for _, c := range all {
		go func() {
			b, _ := io.ReadAll(c)
			refused <- string(b)
		}()
	}
	if text := <-refused; !strings.Contains(text, "resource_exhausted") {
		t.Errorf("one that is too much is told %q", text)
	}
	if n := r.server.HeldMemory(r.mallory.Owner()); n > bound {
		t.Errorf("%d bytes are held for one owner", n)
	}
	r.served()
	for _, c := range all {
		c.Close()
	}
	until(t, "messages that have gone are held", func() bool { return r.server.HeldMemory(r.mallory.Owner()) == 0 })

	stream := r.dial()
	fmt.Fprint(stream, "POST /carrel.v1.CommandService/Stream HTTP/1.1\r\nHost: carrel\r\nContent-Type: application/connect+json\r\n"+
		"Transfer-Encoding: chunked\r\n\r\n8\r\n\x00\x00\x0e\x00\x00abc\r\n")
	until(t, "nothing is held of a message of a stream", func() bool { return r.server.HeldMemory(r.mallory.Owner()) == 2*0xe0000 })
	stream.Close()
	until(t, "a message of a stream that has gone is held", func() bool { return r.server.HeldMemory(r.mallory.Owner()) == 0 })
}
