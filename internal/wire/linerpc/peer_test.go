package linerpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// Answers go to the calls that wait for them, in whatever order they come, and what nobody waits for is passed over.
func TestPeerCalls(t *testing.T) {
	r, w := io.Pipe()
	p := linerpc.NewPeer(w)
	in := linerpc.NewReader(r)
	type end struct {
		m   linerpc.Message
		err error
	}
	var ends [2]chan end
	var ids [2]json.RawMessage
	for i := range ends {
		ends[i] = make(chan end, 1)
		go func() {
			m, err := p.Call(t.Context(), "m", map[string]int{"n": i})
			ends[i] <- end{m, err}
		}()
		m, err := in.Read()
		if err != nil || m.Method != "m" || string(m.Params) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Fatalf("%+v, %v", m, err)
		}
		ids[i] = m.ID
	}
	p.Answered(linerpc.Message{ID: json.RawMessage("99"), Result: json.RawMessage("0")})
	p.Answered(linerpc.Message{ID: ids[1], Result: json.RawMessage("1")})
	p.Answered(linerpc.Message{ID: ids[1], Result: json.RawMessage("2")}) // twice
	p.Answered(linerpc.Message{ID: ids[0], Error: &linerpc.Error{Message: "no"}})
	if e := <-ends[0]; e.err != nil || e.m.Error == nil || e.m.Error.Message != "no" {
		t.Errorf("the first call got %+v", e)
	}
	if e := <-ends[1]; e.err != nil || string(e.m.Result) != "1" {
		t.Errorf("the second call got %+v", e)
	}
}

// A call that is given up makes room for another one; more at once than may be are refused.
func TestPeerIsBounded(t *testing.T) {
	p := linerpc.NewPeer(io.Discard)
	why := errors.New("given up")
	over, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for range 2 * linerpc.MaxCalls {
		if _, err := p.Call(over, "m", struct{}{}); !errors.Is(err, why) {
			t.Fatal(err)
		}
	}
	r, w := io.Pipe()
	p = linerpc.NewPeer(w)
	in := linerpc.NewReader(r)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	for range linerpc.MaxCalls {
		go func() { _, err := p.Call(ctx, "m", struct{}{}); ended <- err }()
		if _, err := in.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Call(ctx, "m", struct{}{}); err == nil || !strings.Contains(err.Error(), "64 requests") {
		t.Errorf("one too many: %v", err)
	}
	cancel(why)
	for range linerpc.MaxCalls {
		if err := <-ended; !errors.Is(err, why) {
			t.Error(err)
		}
	}
}

// A notification is not answered.
func TestPeerAnswersRequestsAlone(t *testing.T) {
	var out strings.Builder
	p := linerpc.NewPeer(&out)
	err := errors.Join(
		p.Reply(linerpc.Message{Method: "m"}, 1), p.Refuse(linerpc.Message{Method: "m"}, linerpc.Refused, "no"),
		p.Reply(linerpc.Message{Method: "m", ID: json.RawMessage("7")}, 1), p.Notify("n", map[string]int{"a": 1}),
	)
	want := `{"jsonrpc":"2.0","id":7,"result":1}` + "\n" + `{"jsonrpc":"2.0","method":"n","params":{"a":1}}` + "\n"
	if err != nil || out.String() != want {
		t.Errorf("%v: %s", err, out.String())
	}
}
