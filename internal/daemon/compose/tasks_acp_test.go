package compose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// An ACP agent: what it is told of its client, its updates, a permission with all of its input, and its end.
func TestACP(t *testing.T) {
	wrong := make(chan string, 10)
	h := taskHouse(t, func(a *agentDouble) int {
		c, _ := a.read()
		caps, _ := c.Params["clientCapabilities"].(map[string]any)
		fs, _ := caps["fs"].(map[string]any)
		if c.Method != "initialize" || c.Params["protocolVersion"] != 1.0 || caps["terminal"] != false || fs["readTextFile"] != false {
			wrong <- fmt.Sprintf("initialize %+v", c)
		}
		a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true},"authMethods":[]}}`)
		if c, _ = a.read(); c.Method != "session/new" || c.Params["cwd"] != workspace.Home {
			wrong <- fmt.Sprintf("session/new %+v", c)
		}
		a.say(`{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}`)
		if c, _ = a.read(); c.Method != "session/prompt" || c.Params["sessionId"] != "s1" {
			wrong <- fmt.Sprintf("session/prompt %+v", c)
		}
		a.say(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"plan","entries":[]}}}`)
		if c, _ = a.ask(1, "fs/read_text_file", `{"sessionId":"s1","path":"/etc/passwd"}`); !strings.Contains(string(c.Error), "-32601") {
			wrong <- fmt.Sprintf("fs %+v", c)
		}
		c, _ = a.ask(1, "session/request_permission", `{"sessionId":"s1","toolCall":{"toolCallId":"t","title":"Run it","rawInput":`+
			`{"command":["rm","-rf","build"],"cwd":"/x"}},"options":[{"optionId":"always","name":"Always","kind":"allow_always"},`+
			`{"optionId":"yes","name":"Yes","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}]}`)
		if o, _ := c.Result["outcome"].(map[string]any); o["outcome"] != "selected" || o["optionId"] != "yes" {
			wrong <- fmt.Sprintf("permission %+v %s", c, c.Error)
		}
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`)
		return drained(a)
	})
	var task workspace.Task
	a := h.pendingOf(func() { task = h.task("acp") })
	if !slices.Equal(a.Argv, []string{"rm", "-rf", "build"}) ||
		!strings.Contains(strings.Join(a.Decision.Reasons, "\n"), `Run it {"cwd":"/x"}`) {
		t.Errorf("asked %+v", a)
	}
	h.answer(admin, a, approval.Once)
	all, end := h.follows(task, 0)
	if end.State != workspace.TaskCompleted || len(all) != 5 || all[1] != `2 message {"sessionUpdate":"plan","entries":[]}` {
		t.Errorf("%q, %+v", all, end)
	}
	close(wrong)
	for w := range wrong {
		t.Error(w)
	}
}

// get_api_key gives the placeholder of a secret that the workspace uses, once, and never the value.
func TestTaskKey(t *testing.T) {
	answers := make(chan call, 3)
	h := taskHouse(t, func(a *agentDouble) int {
		_, _ = a.read()
		for i, name := range []string{"API_KEY", "API_KEY", "OTHER_KEY"} {
			c, _ := a.ask(10+i, "get_api_key", fmt.Sprintf(`{"name":%q}`, name))
			answers <- c
		}
		a.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		return drained(a)
	})
	h.keepSecret(alice, "API_KEY", "api.example")
	h.keepSecret(alice, "OTHER_KEY", "api.example")
	kept, _ := h.store.ByKey("demo")
	h.mustDo(h.store.Update(t.Context(), kept.Name, func(w *workspace.Kept) {
		w.Secrets.Uses = []workspace.SecretUse{{Name: "API_KEY", Placeholder: "carrel-placeholder-of-a-key"}}
	}))
	end := h.endOf("")
	if end.State != workspace.TaskCompleted {
		t.Errorf("%+v", end)
	}
	if c := <-answers; c.Result["placeholder"] != "carrel-placeholder-of-a-key" {
		t.Errorf("the first: %+v %s", c, c.Error)
	}
	if c := <-answers; !strings.Contains(string(c.Error), "each is given once") {
		t.Errorf("the second: %+v", c)
	}
	if c := <-answers; !strings.Contains(string(c.Error), "no raw key enters a workspace") || !strings.Contains(string(c.Error), "--model") {
		t.Errorf("one that the workspace does not use: %s", c.Error)
	}
	var story []string
	for _, r := range h.records() {
		if strings.Contains(string(r.Action), `"kind":"task.key"`) {
			story = append(story, fmt.Sprint(r.Type))
		}
	}
	if len(story) != 2 { // the intent of one, and the denial of another
		t.Errorf("recorded %q", story)
	}
}
