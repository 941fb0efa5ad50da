package compose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// An agent is told the newest turns whole and older ones in brief, with what was asked, planned, run and answered; what is left out is
// said, and all of it is bounded.
func TestLongConversations(t *testing.T) {
	type told struct{ Role, Text string }
	histories := make(chan []told, 1)
	var number int
	h := taskHouse(t, func(a *agentDouble) int {
		if c, err := a.read(); err != nil || c.Method != "initialize" {
			return 1
		}
		a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}`)
		c, err := a.read()
		if err != nil {
			return 1
		}
		var meta struct{ Carrel struct{ History []told } }
		b, _ := json.Marshal(c.Params["_meta"])
		_ = json.Unmarshal(b, &meta)
		histories <- meta.Carrel.History
		a.say(`{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}`)
		if _, err := a.read(); err != nil {
			return 1
		}
		plan, _ := json.Marshal(planText(onTarget("host", fmt.Sprintf("look at number %d", number))))
		if _, err := a.ask(20, "_carrel/propose", fmt.Sprintf(`{"sessionId":"s1","plan":%s}`, plan)); err != nil {
			return 1
		}
		text, _ := json.Marshal(fmt.Sprintf("answer %d. %s", number, strings.Repeat("words ", 400)))
		a.say(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk",` +
			`"content":{"type":"text","text":` + string(text) + `}}}}`)
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`)
		return drained(a)
	})
	h.policy = rulesOf(judged)
	h.crash()
	h.start()
	d := &hostsDouble{local: true, run: func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{Status: &execapi.Status{}, Stdout: []byte("printed by " + c.Argv[2] + strings.Repeat(" x", 300))}, nil
	}}
	var after id.Command
	var last []told
	for number = range 32 {
		question := fmt.Sprintf("question %d?", number) + strings.Repeat(" so", 200)
		spec := workspace.TaskSpec{Protocol: "agent", Prompt: question, Serve: true, After: after}
		if number == 24 { // with a file
			spec.Prompt += strings.Repeat(" long", 20000)
		}
		task, err := h.RunTask(t.Context(), alice, "demo", run("agent"), spec)
		if err != nil {
			t.Fatal(err)
		}
		leave, _, err := h.ServeHosts(t.Context(), alice, "demo", task.ID, d)
		if err != nil {
			t.Fatal(err)
		}
		last = <-histories
		if _, end := h.follows(task, 0); end.State != workspace.TaskCompleted {
			t.Fatalf("%+v", end)
		}
		leave()
		after = task.ID
	}
	size, all := 0, ""
	for _, s := range last {
		size += len(s.Text)
		all += s.Role + ": " + s.Text + "\n"
	}
	if size > 48<<10+100 || size < 30<<10 {
		t.Errorf("it is told %d bytes", size)
	}
	for n := 25; n < 31; n++ { // whole
		for _, form := range []string{"user: question %d?", "printed by look at number %d", "assistant: answer %d."} {
			if want := fmt.Sprintf(form, n); !strings.Contains(all, want) {
				t.Errorf("it is not told %q", want)
			}
		}
	}
	for _, want := range []string{
		"user: question 20?", "- on host: look at number 20: exit code 0", "plan: g", "assistant: answer 20.", "user: question 24? so",
	} {
		if !strings.Contains(all, want) { // in brief
			t.Errorf("it is not told %q", want)
		}
	}
	for _, no := range []string{"printed by look at number 20", "question 0?"} {
		if strings.Contains(all, no) {
			t.Errorf("it is told %q", no)
		}
	}
	if !strings.HasPrefix(all, "user: What was said before is left out") {
		t.Errorf("it begins with %.200q", all)
	}
}
