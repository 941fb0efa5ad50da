package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
)

// inside serves a client on a pair of connected sockets as a program in the workspace demo. ended gets why the session is over.
func inside(t *testing.T) (near net.Conn, ended <-chan error, stop func()) {
	t.Helper()
	s := desk(t, &apitest.Gate{}, "demo")
	s = mcp.AsInside(t, s)
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err = new(net.Dialer).DialContext(t.Context(), "unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		err := s.Accept(ctx, far)
		far.Close()
		over <- err
		close(over)
	}()
	t.Cleanup(func() {
		cancel()
		near.Close()
		<-over
	})
	_ = near.SetDeadline(time.Now().Add(30 * time.Second))
	return near, over, cancel
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
	`"clientInfo":{"name":"x","version":"1"}}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// A program inside gets the tools that work in its workspace, and none that takes more.
func TestInsideTools(t *testing.T) {
	near, _, _ := inside(t)
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&sdk.IOTransport{Reader: near, Writer: near}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	list, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range list.Tools {
		names = append(names, x.Name)
	}
	want := "command_output command_signal exec explain_policy inspect_workspace list_changes list_commands list_files patch_file read_file " +
		"search_files wait_approval write_file"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("it has %s", got)
	}
	for _, name := range []string{"create_workspace", "list_workspaces", "start_workspace", "stop_workspace", "show_record", "verify_record"} {
		if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args{}}); err == nil {
			t.Errorf("%s answered %s", name, textOf(r))
		}
	}
	fails(t, c, "exec", args{"argv": []string{"true"}, "workspace": "other"}, "cannot use the argument workspace")
	works(t, c, "exec", args{"argv": []string{"true"}}, "exit code")
}

// Clients that break a rule: their sessions end by themselves.
func TestInsideOfHostileClients(t *testing.T) {
	endless := func(c net.Conn) {
		_, _ = io.WriteString(c, hello+`"`)
		for line := []byte(strings.Repeat("x", 64<<10)); ; {
			if _, err := c.Write(line); err != nil {
				return
			}
		}
	}
	for what, client := range map[string]func(c net.Conn){
		"an endless line": endless,
		"no JSON":         func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n") },
		"an id twice": func(c net.Conn) {
			_, _ = io.WriteString(c, hello)
			for range 20 { // those that come before the session has begun are refused at once, and their id is free again
				_, _ = io.WriteString(c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"exec","arguments":{"argv":["hang"]}}}`+"\n")
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			near, ended, _ := inside(t)
			go func() { _, _ = io.Copy(io.Discard, near) }()
			client(near)
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("the session goes on")
			}
		})
	}
}

// A client that never reads what it asks for waits in its own writes, and its session ends.
func TestInsideNeverReads(t *testing.T) {
	defer mcp.InsideWithin(mcp.InsideWithin(time.Minute, time.Second))
	near, ended, _ := inside(t)
	sent, began := 0, time.Now()
	_, _ = io.WriteString(near, hello)
	for i := 1; ; i++ {
		n, err := fmt.Fprintf(near, `{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`+"\n", i)
		sent += n
		if err != nil {
			break
		}
	}
	if err := <-ended; err == nil {
		t.Error("the session has ended as if all was well")
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it ended after %v: each answer has waited by itself", d)
	}
	// What fits into the buffers of the sockets, and the requests that may be open.
	if sent > 128<<10 {
		t.Errorf("%d bytes of requests were taken whose answers nobody read", sent)
	}
}

// A client that connects and says nothing is not kept.
func TestInsideSaysNothing(t *testing.T) {
	defer mcp.InsideWithin(mcp.InsideWithin(100*time.Millisecond, time.Minute))
	_, ended, _ := inside(t)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the session goes on")
	}
}

// The end of the context ends the session and its calls at once.
func TestInsideEnds(t *testing.T) {
	near, ended, stop := inside(t)
	_, _ = io.WriteString(near, hello)
	r := bufio.NewReader(near)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(near, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n")
	line, err := r.ReadString('\n')
	if err != nil || !json.Valid([]byte(line)) {
		t.Fatalf("%q, %v", line, err)
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("it ended as if the client had gone")
	}
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("there is more to read")
	}
}
