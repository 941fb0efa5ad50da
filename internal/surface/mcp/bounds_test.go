package mcp_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
)

// A line that is too long ends the session that sent it, with an error, and nothing else.
func TestOverlongLine(t *testing.T) {
	s := desk(t, &apitest.Gate{}, "demo")
	other := client(t, s, old, nil)
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Run(t.Context(), far, far) }()
	go func() {
		_, _ = io.Copy(near, io.MultiReader(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"`),
			io.LimitReader(endless{}, 2*mcp.MaxLine)))
	}()
	if err := <-served; err == nil || !strings.Contains(err.Error(), "at most 4194304 bytes") {
		t.Errorf("%v", err)
	}
	near.Close()
	works(t, other, "exec", args{"command": "echo fine"}, "fine")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// More calls than are allowed at once are refused, and the others go on.
func TestTooManyCalls(t *testing.T) {
	g := &apitest.Gate{}
	s := desk(t, g, "demo")
	c, other := client(t, s, old, nil), client(t, s, old, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			_, _ = c.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "sleep 1004"}})
		})
	}
	until(t, other, "list_commands", args{}, func(text string) bool { return strings.Count(text, "sleep 1004") == 16 })
	fails(t, c, "exec", args{"command": "true"}, "cannot run more than 16 calls at once")
	works(t, other, "exec", args{"command": "echo fine"}, "fine")
	cancel()
	all.Wait()
	until(t, other, "list_commands", args{}, func(text string) bool { return !strings.Contains(text, "sleep 1004") })
	works(t, c, "exec", args{"command": "echo again"}, "again")
}
