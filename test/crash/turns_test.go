package crash_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/crash/check"
)

// turnPoints are those that TestTurnPoints and TestPatchPoints arm, beside those that scenarios have too.
var turnPoints = []string{
	"daemon.plan.told", "daemon.plan.step-begins", "daemon.plan.step-ended", "daemon.plan.step-told", "daemon.plan.job-begun",
	"daemon.plan.carried-out", "cli.patch.exchanged", "cli.patch.sealed",
}

// thinking is a model on this machine, and the carrel whose agent asks it.
type thinking struct {
	*host

	mu sync.Mutex
	// says makes the answer of what the model is asked.
	says func(asked string) string
}

// newThinking brings a carrel up with a model on this machine.
func newThinking(t *testing.T) *thinking {
	t.Helper()
	m := &thinking{host: newHost(t)}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	server := http.Server{Handler: http.HandlerFunc(m.serve), ReadHeaderTimeout: patience}
	go server.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	egress, config, value := filepath.Join(m.dir, "egress.yaml"), filepath.Join(m.dir, "carreld.yaml"), filepath.Join(m.dir, "value")
	const models = "allow: [\"127.0.0.1:%[1]s\"]\nmodels:\n  here: {api: openai, url: \"http://127.0.0.1:%[1]s/v1\", key: HERE_KEY}\n"
	must(t, os.WriteFile(egress, fmt.Appendf(nil, models, port), 0o644))
	must(t, os.WriteFile(config, []byte("egress:\n  file: "+egress+"\n"), 0o644))
	must(t, os.WriteFile(value, []byte("no-key-of-anybody"), 0o600))
	if r := m.try(append([]string{"up", "--detach", "--prefix", m.prefix, "--config", config}, m.flags()...)...); r.code != 0 {
		t.Fatalf("cannot bring carrel up: %v", r)
	}
	m.carrel(t, "secret", "set", "HERE_KEY", "--file", value, "--host", "127.0.0.1:"+port)
	return m
}

// serve speaks OpenAI's chat completions, streamed.
func (m *thinking) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the program has gone
	}
	m.mu.Lock()
	text, _ := json.Marshal(m.says(string(body))) // a text always marshals
	m.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":%s}}]}\n\n", text)
	fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"+
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
}

// think has the model answer so.
func (m *thinking) think(says func(asked string) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.says = says
}

// turnPlan is a plan of one step in a workspace.
func turnPlan(workspace, command string, background bool) string {
	b, _ := json.Marshal(map[string]any{ // texts always marshal
		"type": "command_plan", "goal": "count", "commands": []any{map[string]any{
			"command": command, "purpose": "to count", "read_only": false, "target": "workspace " + workspace, "background": background,
		}},
		"risk_summary": "none", "preflight_checks": []any{}, "verification_commands": []any{}, "rollback_commands": []any{},
		"requires_root": false, "expected_side_effects": []any{},
	})
	return string(b)
}

const turnDone = `{"type":"direct_answer","answer":"it is counted"}`

// careful is a model that proposes a step once. Once it knows of the step it looks whether that has run before it does the same,
// and once it knows that it has run it says so. It never repeats the step: if that runs twice, carrel did it.
func careful(workspace, word string, background bool) func(asked string) string {
	once := "echo " + word + " >> tokens; git push https://example.invalid/ x 2> gone; echo counted-$((40+2))"
	look := "grep -qx " + word + " tokens || echo " + word + " >> tokens; echo counted-$((40+2))"
	return func(asked string) string {
		switch {
		case strings.Contains(asked, "counted-42"), background && strings.Contains(asked, "as job c-"):
			return turnDone
		case strings.Contains(asked, word):
			return turnPlan(workspace, look, false)
		}
		return turnPlan(workspace, once, background)
	}
}

// finish waits for a turn, answers each of its questions, and brings up again what was killed. acked are the answers that were
// acknowledged.
func (m *thinking) finish(t *testing.T, client *carrel.Client, done <-chan result) (r result, acked []string) {
	t.Helper()
	answered := map[string]bool{}
	until(t, "the end of the turn", func() bool {
		select {
		case r = <-done:
			return true
		default:
		}
		all, err := client.Approvals().ListApprovals(t.Context(), connect.NewRequest(&carrelv1.ListApprovalsRequest{}))
		if err != nil {
			_ = m.tryUp() // a point may be armed for its start too
			return false
		}
		for _, a := range all.Msg.GetApprovals() {
			if a.GetState() != "pending" || answered[a.GetId()] {
				continue
			}
			_, err := client.Approvals().AnswerApproval(t.Context(),
				connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: a.GetId(), Kind: "once", Terminal: true}))
			if err == nil {
				answered[a.GetId()] = true
				acked = append(acked, a.GetId())
			}
		}
		return false
	})
	return r, acked
}

// asking begins a turn beside the test.
func (m *thinking) asking(t *testing.T, dir string, args ...string) <-chan result {
	t.Helper()
	done := make(chan result, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	c := m.command(ctx, append([]string{"ask", "--llm", "m1", "--wait", "1m"}, args...)...)
	if c.Dir = dir; dir == "" {
		c.Dir = "/"
	}
	c.Env = append(c.Env, "HOME="+m.dir, "XDG_STATE_HOME="+m.dir+"/state")
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	must(t, c.Start())
	go func() {
		_ = c.Wait()
		done <- result{c.ProcessState.ExitCode(), out.String(), errs.String()}
	}()
	return done
}

// The daemon, or the executor of the step's workspace, is killed at every step of a turn: the turn goes on to its answer, an
// answer of a person that was acknowledged is in the record, no step is run twice by carrel, and nothing seems to run afterwards.
func TestTurnPoints(t *testing.T) {
	m := newThinking(t)
	client, err := carrel.New(carrel.Options{Host: "unix://" + m.run + "/carrel.sock"})
	must(t, err)
	defer client.Close()
	for _, point := range []string{
		"daemon.task.spawned", "daemon.task.kept", "daemon.plan.told", "daemon.approval.requested", "daemon.approval.asked",
		"daemon.approval.recorded", "daemon.approval.answered", "daemon.approval.spent", "daemon.approval.settled", "daemon.plan.step-begins",
		"executor.exec.cloned", "executor.exec.started", "executor.exec.reaped", "executor.exec.final",
		"daemon.plan.step-ended", "daemon.plan.step-told", "daemon.plan.carried-out", "daemon.task.ended", "daemon.plan.job-begun",
	} {
		t.Run(point, func(t *testing.T) {
			key, word := "crk "+rand.Text()[:10], "w-"+rand.Text()
			m.carrel(t, "create", key)
			name, job := m.name(t, key), point == "daemon.plan.job-begun"
			file := m.data + "/homes/" + name + "/tokens"
			m.think(careful(name, word, job))
			// The agent is there already: it is not what is killed.
			mark := m.logEnd()
			m.arm(t, point, 1)
			if strings.HasPrefix(point, "executor.") { // it is told of the point when it starts
				m.carrel(t, "stop", key)
				m.carrel(t, "start", key)
			}
			r, acked := m.finish(t, client, m.asking(t, "", "--on", "none", "--model", "here", "count"))
			m.up(t)
			if !m.fired(point, mark) {
				t.Fatalf("nothing ended at %s: %v", point, r)
			}
			m.settled(t)
			if early := strings.HasPrefix(point, "daemon.task.") && point != "daemon.task.ended"; early {
				// Nobody knows yet of the task that was to be made: the client says so, and the same can be asked again.
				if r.code == 0 || !strings.HasPrefix(r.err, "carrel: ") && !strings.Contains(r.err, "\ncarrel: ") {
					t.Errorf("what a person is told: %v", r)
				}
				r, acked = m.finish(t, client, m.asking(t, "", "--on", "none", "count"))
			}
			if r.code != 0 || r.out != "it is counted\n" {
				t.Errorf("the turn ends with %v", r)
			}
			until(t, "the step's line", func() bool { // a job goes on by itself
				b, err := os.ReadFile(file)
				return err == nil && strings.Contains(string(b), word) || err != nil && !errors.Is(err, os.ErrNotExist)
			})
			m.settled(t)
			b, err := os.ReadFile(file)
			must(t, err)
			if n := strings.Count(string(b), word); n != 1 {
				t.Errorf("the step ran %d times: %v", n, r)
			}
			record := m.carrel(t, "audit", "show", "--last", "200", "-o", "json")
			for _, id := range acked {
				if !strings.Contains(record, `"type":"approval"`) || !strings.Contains(record, `"approval":"`+id+`"`) {
					t.Errorf("the answer to %s was acknowledged, and is not in the record", id)
				}
			}
			for line := range strings.Lines(m.carrel(t, "task", "ls", "agent")) {
				if strings.Contains(line, "running") {
					t.Errorf("a task seems to run: %s", line)
				}
			}
			m.carrel(t, "destroy", "--purge", key)
			m.settled(t)
		})
	}
	m.carrel(t, "destroy", "--purge", "agent")
	m.carrel(t, "secret", "rm", "HERE_KEY")
	m.carrel(t, "audit", "verify")
	m.settled(t)
	m.look(t, check.Expect{})
	m.gone(t)
}

// The process that changes files is killed between the renames of a change, and after it was sealed: all files are changed or
// none once the next one has come, and "carrel undo" knows of a change that was made.
func TestPatchPoints(t *testing.T) {
	m := newThinking(t)
	client, err := carrel.New(carrel.Options{Host: "unix://" + m.run + "/carrel.sock"})
	must(t, err)
	defer client.Close()
	for _, point := range []string{"cli.patch.exchanged#1", "cli.patch.exchanged#2", "cli.patch.sealed"} {
		t.Run(point, func(t *testing.T) {
			name, count, _ := strings.Cut(point, "#")
			n := 1
			if count == "2" {
				n = 2
			}
			dir := filepath.Join(m.dir, "work-"+rand.Text()[:8])
			must(t, os.Mkdir(dir, 0o700))
			for _, f := range []string{"a", "b"} {
				must(t, os.WriteFile(filepath.Join(dir, f), []byte("old\n"), 0o600))
			}
			change, _ := json.Marshal(map[string]any{ // texts always marshal
				"type": "file_patch_plan", "goal": "be new", "request_intent": "update", "target": "host", "files_changed": []string{"a", "b"},
				"unified_diff": "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-old\n+new\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-old\n+new\n",
				"risk_summary": "r", "verification_commands": []any{}, "rollback_commands": []any{}, "permission_changes": []any{},
			})
			asked := 0
			m.think(func(string) string {
				if asked++; asked == 1 {
					return string(change)
				}
				return turnDone
			})
			mark := m.logEnd()
			m.arm(t, name, n)
			r, _ := m.finish(t, client, m.asking(t, dir, "--on", "host", "--as-root", "--model", "here", "change"))
			if r.code != -1 || !m.fired(name, mark) {
				t.Fatalf("nothing ended at %s: %v", point, r)
			}
			// The next process of the same person finishes what was begun, or undoes it.
			r, _ = m.finish(t, client, m.asking(t, dir, "--on", "host", "--as-root", "and now?"))
			if r.code != 0 {
				t.Errorf("the next turn: %v", r)
			}
			got := ""
			for _, f := range []string{"a", "b"} {
				b, err := os.ReadFile(filepath.Join(dir, f))
				must(t, err)
				got += string(b)
			}
			left, err := os.ReadDir(dir)
			must(t, err)
			if got != "new\nnew\n" && got != "old\nold\n" || name == "cli.patch.sealed" && got != "new\nnew\n" || len(left) != 2 {
				t.Errorf("the files have %q, of %v", got, left)
			}
			c := m.command(t.Context(), "undo", "-o", "json")
			c.Env = append(c.Env, "HOME="+m.dir, "XDG_STATE_HOME="+m.dir+"/state")
			b, err := c.Output()
			if made := strings.Contains(string(b), filepath.Join(dir, "a")); err != nil || made != (got == "new\nnew\n") {
				t.Errorf("undo knows of it: %v, and the files have %q: %s, %v", made, got, b, err)
			}
			m.settled(t)
		})
	}
	m.carrel(t, "destroy", "--purge", "agent")
	m.carrel(t, "secret", "rm", "HERE_KEY")
	m.settled(t)
	m.look(t, check.Expect{})
	m.gone(t)
}
