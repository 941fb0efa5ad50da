package taskmcp_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/id"
)

// seatDouble notes what it is told; a plan of which the text has "hang" lasts as long as its call.
type seatDouble struct {
	mu    sync.Mutex
	calls []string
	// hangs is told that such a plan has begun, and then that it has ended.
	hangs chan string
}

func (s *seatDouble) note(kind string, text []byte) (tasks.Told, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, kind+" "+string(text))
	return tasks.Told{Reply: []byte(`{"outcome":"done"}`), Well: true}, nil
}

func (s *seatDouble) Read(_ context.Context, text []byte) (tasks.Told, error) {
	return s.note("read", text)
}

func (s *seatDouble) Remember(_ context.Context, note string) (tasks.Told, error) {
	return s.note("note", []byte(note))
}

func (s *seatDouble) Wait(context.Context) (tasks.Told, error) {
	return tasks.Told{}, fmt.Errorf("cannot wait: no plan: %w", errdefs.ErrFailedPrecondition)
}

func (s *seatDouble) Plan(ctx context.Context, text []byte) (tasks.Told, error) {
	if strings.Contains(string(text), "hang") {
		s.hangs <- "begun"
		<-ctx.Done()
		s.hangs <- "ended"
		return tasks.Told{}, context.Cause(ctx)
	}
	if strings.Contains(string(text), "bad") {
		return tasks.Told{Reply: []byte(`{"outcome":"invalid"}`)}, nil
	}
	return s.note("plan", text)
}

// An agent in the place of carrel's own has the tools of the seat and no others. Its calls come as texts of answers, and end with the task.
func TestSeat(t *testing.T) {
	f, s := setUp(t), &seatDouble{hangs: make(chan string, 2)}
	argv, end, err := f.Open(t.Context(), tasks.Opening{
		Runtime: listens{}, Task: id.NewCommand(), On: f.name, By: alice, Trace: id.NewTrace(), Seat: s,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	c := dial(t, argv[2])
	if err := c.hello(); err != nil {
		t.Fatal(err)
	}
	all, err := c.call(1, "tools/list", `{}`)
	if err != nil || !strings.Contains(all, `"name":"propose_plan"`) || !strings.Contains(all, `"name":"read_file"`) ||
		strings.Contains(all, `"name":"exec"`) || strings.Contains(all, `"name":"write_file"`) {
		t.Errorf("%s, %v", all, err)
	}
	for i, x := range []struct{ params, want string }{
		{`{"name":"read_file","arguments":{"target":"host","path":"/etc/hosts","path":"/x"}}`, `{\"outcome\":\"done\"}`},
		{`{"name":"propose_plan","arguments":{"goal":"g"}}`, `{\"outcome\":\"done\"}`},
		{`{"name":"propose_plan","arguments":{"goal":"bad"}}`, `"isError":true`},
		{`{"name":"wait_plan"}`, "cannot wait: no plan"},
		{`{"name":"exec","arguments":{"argv":["true"]}}`, "exec"},
	} {
		got, err := c.call(10+i, "tools/call", x.params)
		if err != nil || !strings.Contains(got, x.want) || i == 4 && !strings.Contains(got, `"error"`) {
			t.Errorf("%s: %s, %v", x.params, got, err)
		}
	}
	want := []string{
		`read {"type":"tool_calls","calls":[{"tool":"read_file","target":"host","path":"/etc/hosts","path":"/x"}]}`,
		`plan {"type":"command_plan","goal":"g"}`,
	}
	if got := strings.Join(s.calls, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("it was told\n%s", got)
	}
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		_, _ = c.call(20, "tools/call", `{"name":"propose_plan","arguments":{"goal":"hang"}}`) // whether it is answered is another thing
	}()
	<-s.hangs
	other := dial(t, argv[2])
	if err := other.hello(); err != nil {
		t.Fatal(err)
	}
	end()
	<-hung
	select {
	case <-s.hangs:
	case <-time.After(20 * time.Second):
		t.Error("the call has not ended with the task")
	}
	if _, err := other.r.ReadString('\n'); err == nil {
		t.Error("the session goes on")
	}
}
