//go:build linux

package rootless_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// askAnswers is a model that answers one thing after the other.
type askAnswers struct {
	mu    sync.Mutex
	all   []any
	asked []string
}

func (a *askAnswers) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // what came is enough
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, string(body))
	if len(a.all) == 0 {
		http.Error(w, `{"error":{"message":"the script has ended"}}`, http.StatusBadRequest)
		return
	}
	answer, _ := json.Marshal(a.all[0])
	text, _ := json.Marshal(string(answer))
	a.all = a.all[1:]
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":%s}}]}`+"\n\n"+
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n", text)
}

func (a *askAnswers) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.asked, "\n")
}

// A user with a carrel of their own asks a model: a step in a workspace, one on the host that is approved, a patch, its
// undoing. Without a terminal nothing of it is approved, and a step that says that it only reads cannot write.
func TestOwnAsk(t *testing.T) {
	u, k := models(t, "")
	t.Cleanup(func() { u.down(t) })
	u.configure(fmt.Sprintf("egress:\n  file: %[1]s/egress.yaml\npolicy:\n  path: %[1]s/policy.yaml\n", u.home+"/.config/carrel"))
	files := u.command("", "/bin/sh", "-c", "cat > .config/carrel/policy.yaml; echo 'port = 80' > project/app.conf")
	if r := finish(files, "rules: []\n"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := finish(u.own("secret", "set", "LOCAL_KEY", "--host", "models.test:"+k.port), secretValue); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	u.must("create", "demo")
	step := func(target, command string, readOnly bool) map[string]any {
		return map[string]any{"command": command, "purpose": "to see", "read_only": readOnly, "target": target}
	}
	plan := func(steps ...any) any {
		return map[string]any{
			"type": "command_plan", "goal": "find out", "commands": steps, "risk_summary": "none", "preflight_checks": []any{},
			"verification_commands": []any{}, "rollback_commands": []any{}, "requires_root": false, "expected_side_effects": []any{},
		}
	}
	say := func(text string) any { return map[string]string{"type": "direct_answer", "answer": text} }
	model := &askAnswers{}
	k.serve = model.serve
	script := func(answers ...any) {
		model.mu.Lock()
		defer model.mu.Unlock()
		model.all, model.asked = answers, nil
	}
	ask := func(args ...string) (at *ptytest.Terminal) {
		c := u.own(append([]string{"ask", "--llm", "m", "--model", "local"}, args...)...)
		c.Dir += "/project"
		return ptytest.Start(t, c, 50, 120, false)
	}
	script(plan(step("workspace demo", "echo in-$((40+2)) > f; cat f", false)), say("it is known"))
	if r := u.carrel("ask", "--llm", "m", "--model", "local", "--on", "none", "what?"); r.code != 0 || r.out != "it is known\n" ||
		!strings.Contains(model.said(), "in-42") {
		t.Fatalf("%+v\n%s\n%s", r, model.said(), u.log())
	}
	const yes = "[y] once  [n] no: "
	script(plan(step("host", "echo on-$((40+2)) > made; cat made; id -u", false)), say("it is made"))
	at := ask("--on", "host", "make it")
	at.Expect(yes)
	at.Type("y\n")
	at.Expect("it is made")
	at.Wait()
	if !strings.Contains(model.said(), fmt.Sprintf(`on-42\\n%d\\n`, u.id)) {
		t.Errorf("the model was told %s", model.said())
	}
	script(plan(step("host", "sh -c 'touch other'", true)), say("it is over"))
	r := u.carrel("ask", "--llm", "m", "--on", "host", "look")
	if strings.Contains(r.err, ": done") || u.sh("ls project/other || ls other").code == 0 {
		t.Errorf("%+v", r)
	}
	patch := map[string]any{
		"type": "file_patch_plan", "goal": "another port", "request_intent": "update", "target": "host", "files_changed": []string{"app.conf"},
		"unified_diff": "--- a/app.conf\n+++ b/app.conf\n@@ -1 +1 @@\n-port = 80\n+port = 8080\n", "risk_summary": "r",
		"verification_commands": []any{}, "rollback_commands": []any{}, "permission_changes": []any{},
	}
	script(patch, say("it is changed"))
	at = ask("--on", "host", "change it")
	at.Expect(yes)
	if screen := at.Screen(); !strings.Contains(screen, "port = 8080") {
		t.Errorf("asked %q", screen)
	}
	at.Type("y\n")
	at.Expect("it is changed")
	at.Wait()
	if got := u.sh("cat project/app.conf").out; got != "port = 8080\n" {
		t.Errorf("%q", got)
	}
	var changes []struct{ ID string }
	if err := json.Unmarshal([]byte(u.must("undo", "-o", "json")), &changes); err != nil || len(changes) != 1 {
		t.Fatalf("%v, %v", changes, err)
	}
	u.must("undo", changes[0].ID)
	if got := u.sh("cat project/app.conf").out; got != "port = 80\n" {
		t.Errorf("undone: %q", got)
	}
	script(say("as I said"))
	if r := u.carrel("ask", "--llm", "m", "--on", "none", "--resume", "again?"); r.code != 0 || !strings.Contains(model.said(), "change it") {
		t.Errorf("%+v\n%s", r, model.said())
	}
	u.must("audit", "verify")
}
