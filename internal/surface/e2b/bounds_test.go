package e2b_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carrel-dev/carrel/gen/e2b/process"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
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
