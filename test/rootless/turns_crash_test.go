package rootless_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// turnCrashes are the places of a turn where the daemon of one user, or that user's carrel ask, is killed.
var turnCrashes = []string{
	"daemon.task.kept", "daemon.plan.told", "daemon.approval.requested", "daemon.approval.asked", "daemon.approval.recorded",
	"daemon.approval.answered", "daemon.approval.spent", "daemon.approval.settled", "daemon.plan.step-begins", "daemon.plan.step-ended",
	"daemon.plan.step-told", "daemon.plan.carried-out", "daemon.task.ended", "cli.patch.exchanged", "cli.patch.sealed",
}

// thinks is a model that does what a function of what it is asked says.
type thinks struct {
	mu   sync.Mutex
	says func(asked string) any
}

func (x *thinks) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // what came is enough
	x.mu.Lock()
	answer, _ := json.Marshal(x.says(string(body)))
	x.mu.Unlock()
	text, _ := json.Marshal(string(answer))
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":%s}}]}`+"\n\n"+
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n", text)
}

func (x *thinks) think(says func(asked string) any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.says = says
}

// A user's own daemon, or the process that asks, is killed at every step of a turn whose steps run on the host: the turn goes on to its
// answer, no step runs twice, and a change to files is made as a whole or not.
func TestOwnTurnCrashes(t *testing.T) {
	built := crashable(t)
	u, k := models(t, "")
	t.Cleanup(func() { u.down(t) })
	u.configure(fmt.Sprintf("egress:\n  file: %[1]s/egress.yaml\npolicy:\n  path: %[1]s/policy.yaml\n", u.home+"/.config/carrel"))
	if r := finish(u.command("", "/bin/sh", "-c", "cat > .config/carrel/policy.yaml"), "rules: []\n"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	own := func(args ...string) *exec.Cmd {
		return u.command("", filepath.Join(built, "carrel"), append([]string{"--rootless"}, args...)...)
	}
	arm := u.points()
	if r := finish(own("secret", "set", "LOCAL_KEY", "--host", "models.test:"+k.port), secretValue); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	model := &thinks{}
	k.serve = model.serve
	step := func(command string) any {
		return map[string]any{
			"type": "command_plan", "goal": "count", "commands": []any{map[string]any{
				"command": command, "purpose": "to count", "read_only": false, "target": "host",
			}},
			"risk_summary": "none", "preflight_checks": []any{}, "verification_commands": []any{}, "rollback_commands": []any{},
			"requires_root": false, "expected_side_effects": []any{},
		}
	}
	say := func(text string) any { return map[string]string{"type": "direct_answer", "answer": text} }
	// ask asks, answers yes to every question, and has the daemon started again where it is gone, until the turn is over.
	ask := func(t *testing.T) (screen string) {
		c := own("ask", "--llm", "m", "--model", "local", "--on", "host", "count")
		c.Dir += "/project"
		x := ptytest.Start(t, c, 50, 160, false)
		over := make(chan struct{})
		var beside sync.WaitGroup
		beside.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(200 * time.Millisecond):
					_ = own("ls", "-q").Run() // which starts the daemon
				}
			}
		})
		beside.Go(func() {
			x.Wait()
			close(over)
		})
		const yes = "[n] no: " // beside the other answers that there are
		late := time.After(time.Minute)
		for answered := 0; ; answered++ {
			for asked := false; !asked; {
				select {
				case <-over:
					beside.Wait()
					return x.Screen()
				case <-late:
					_ = c.Process.Kill()
					<-over
					t.Fatalf("the turn goes on: %q\n%s", x.Screen(), u.log())
				case <-time.After(20 * time.Millisecond):
					asked = strings.Count(x.Screen(), yes) > answered
				}
			}
			_ = x.Terminal.Type("y\n") // it may be over
		}
	}
	model.think(func(string) any { return say("ready") })
	if screen := ask(t); !strings.Contains(screen, "ready") { // the agent is there already: it is not what is killed
		t.Fatalf("%q\n%s", screen, u.log())
	}
	for _, point := range turnCrashes {
		t.Run(point, func(t *testing.T) {
			u.t = t
			word := "w-" + rand.Text()
			patches := strings.HasPrefix(point, "cli.")
			asked := 0
			model.think(func(said string) any {
				asked++
				switch {
				case patches && asked == 1:
					return map[string]any{
						"type": "file_patch_plan", "goal": "be new", "request_intent": "update", "target": "host", "files_changed": []string{"a", "b"},
						"unified_diff": "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-old\n+new\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-old\n+new\n",
						"risk_summary": "r", "verification_commands": []any{}, "rollback_commands": []any{}, "permission_changes": []any{},
					}
				case patches, strings.Contains(said, "counted-42"):
					return say("it is counted")
				case strings.Contains(said, word):
					return step("grep -qx " + word + " tokens || echo " + word + " >> tokens; echo counted-$((40+2))")
				}
				return step("echo " + word + " >> tokens; echo counted-$((40+2))")
			})
			u.sh("cd project && echo old > a && echo old > b")
			passed := arm(point, 1)
			screen := ask(t)
			if !passed() {
				t.Errorf("it was not passed: %q", screen)
			}
			if point == "daemon.task.kept" || patches { // nobody knows of the task yet, or the client was killed
				screen = ask(t)
			}
			if !strings.Contains(screen, "it is counted") {
				t.Errorf("the turn ends with %q\n%s", screen, u.log())
			}
			if patches {
				if got := u.sh("cat project/a project/b").out; got != "old\nold\n" && got != "new\nnew\n" {
					t.Errorf("half a change: %q", got)
				}
			} else if n := strings.Count(u.sh("cat project/tokens").out, word); n != 1 {
				t.Errorf("the step ran %d times", n)
			}
			if r := finish(own("audit", "verify"), ""); !strings.HasPrefix(r.out, "ok") {
				t.Errorf("%+v", r)
			}
			until(t, "an outcome for each intent", func() bool {
				got := finish(own("audit", "show", "--last", "100000"), "").out
				return strings.Count(got, "  intent ") == strings.Count(got, "  outcome ")
			})
		})
	}
	u.t = t
}
