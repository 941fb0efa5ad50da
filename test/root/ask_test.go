package root_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// newAsked is a carrel with a model for the agent of alice, and a workspace of hers.
func newAsked(t *testing.T) (m *modeled, alice *syscall.Credential, ask func(args ...string) result) {
	t.Helper()
	m = newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	alice = user(t, "crt-ask")
	if r := m.try(alice, "", "create", "demo"); r.code != 0 {
		t.Fatal(r.err)
	}
	return m, alice, func(args ...string) result {
		return m.try(alice, "", append([]string{"ask", "--llm", "m1", "--model", "house"}, args...)...)
	}
}

// A question is answered with what a command in a workspace printed: the model proposes, the daemon runs, the model answers.
// The agent's workspace is made for it, and everything is in the record.
func TestAsk(t *testing.T) {
	m, _, ask := newAsked(t)
	s := m.script(t,
		always(planOf("workspace demo", "echo seen-$((40+2)) > f; cat f", false)),
		func(asked string) string {
			if !strings.Contains(asked, "seen-42") {
				return directly("there is no output")
			}
			return directly("It says **seen-42**.")
		},
	)
	mark := m.mark(t)
	r := ask("--on", "none", "what", "does it say?")
	if r.code != 0 || r.out != "It says **seen-42**.\n" || !strings.Contains(r.err, "1. workspace ") {
		t.Fatalf("%+v", r)
	}
	if said := s.said(); len(said) != 2 || !strings.Contains(said[0], "what does it say?") || !strings.Contains(said[0], "- workspace demo") {
		t.Errorf("the model was asked %q", said)
	}
	m.recorded(t, mark, `"kind":"plan.run"`, "echo seen-")
	m.recorded(t, mark, `"kind":"command.exec"`, "echo seen-")
	// It goes on from what was said.
	s = m.script(t, always(directly("as I said")))
	if r := ask("--on", "none", "--resume", "again?"); r.code != 0 || r.out != "as I said\n" {
		t.Fatalf("%+v", r)
	}
	if said := s.said(); !strings.Contains(said[0], "what does it say?") || !strings.Contains(said[0], "It says **seen-42**.") {
		t.Errorf("the model was not told what was said before: %q", said)
	}
}

// What names no target that there is, or one that nobody serves, is refused as a whole before anything is shown or run; a
// model that goes on so is not asked for ever.
func TestAskForOtherTargets(t *testing.T) {
	m, _, ask := newAsked(t)
	left := filepath.Join(t.TempDir(), "left")
	for name, target := range map[string]string{
		"a workspace that there is not": "workspace other", "the host, which nobody serves": "host",
		"a host that there is not": "remote web-1", "all hosts": "remote *", "no target": "", "another kind": "cluster a",
	} {
		mark := m.mark(t)
		both := planOfAll(planStep("workspace demo", "touch ran", false), planStep(target, "touch "+left, false))
		m.script(t, always(both), always(both), always(both), always(directly("done")))
		r := ask("--on", "none", "do it")
		if r.code == 0 && r.out == "done\n" {
			t.Errorf("%s: %+v", name, r)
		}
		for _, rec := range m.since(t, mark) {
			if strings.Contains(rec.raw, "touch ran") {
				t.Errorf("%s: a step was run: %s", name, rec.raw)
			}
		}
		if _, err := os.Lstat(left); err == nil {
			t.Fatalf("%s: a step was run on this machine", name)
		}
	}
	if r := m.try(nil, "", "exec", "demo", "--", "ls"); strings.Contains(r.out, "ran") {
		t.Errorf("a step of a refused plan was run: %+v", r)
	}
}

// Without a terminal nobody can answer: what needs an answer is not run, and the turn says so at once. With one, the plan is
// shown whole, and runs on a yes alone.
func TestAskAsksAPerson(t *testing.T) {
	m, alice, ask := newAsked(t)
	push := planOf("workspace demo", "echo ran-$((40+2)) > ran; git push -q https://example.invalid/in x", false)
	m.script(t, always(push), always(directly("done")))
	if r := ask("--on", "none", "push"); r.code != 1 || r.out != "" || !strings.Contains(r.err, "there is no answer: the plan was not approved") {
		t.Errorf("%+v", r)
	}
	terminal := func() *ptytest.Terminal {
		return ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--model", "house", "--on", "none", "push"), 50, 120, false)
	}
	for i, key := range []string{"n\n\n", "y\n"} {
		ran := i == 1
		m.script(t, always(push), always(directly("it is done")))
		x := terminal()
		x.Expect(question)
		if screen := x.Screen(); !strings.Contains(screen, "git push") || !strings.Contains(screen, ". workspace ") {
			t.Errorf("the plan is not shown: %q", screen)
		}
		x.Type(key)
		if ran {
			x.Expect("it is done")
		} else {
			x.Expect("not approved")
		}
		if code := x.Wait(); code != 1-i { // no answer is a failure to a script
			t.Errorf("answered %q: exit code %d", key, code)
		}
		r := m.try(alice, "", "exec", "demo", "--", "cat", "ran")
		if got := strings.Contains(r.out, "ran-42"); got != ran {
			t.Errorf("answered %q: ran %v", key, got)
		}
	}
}

// Steps on this machine run as the user who asked and nobody else. One that says that it only reads cannot change anything,
// whatever it tries; one that changes something runs on a yes alone.
func TestAskOnTheHost(t *testing.T) {
	m, alice, ask := newAsked(t)
	dir := t.TempDir()
	openWay(t, dir)
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(own, int(alice.Uid), int(alice.Gid)); err != nil {
		t.Fatal(err)
	}
	// A person is asked about what a model writes for a host, if only for that; with --yes-safe they have answered.
	s := m.script(t, always(planOf("host", "id -u", true)), always(directly("it is done")))
	at := ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--model", "house", "--on", "host", "--yes-safe", "who am I?"),
		50, 120, false)
	at.Expect("it is done")
	if code, screen := at.Wait(), at.Screen(); code != 0 || !strings.Contains(screen, "--yes-safe") || !strings.Contains(screen, "1. host: done") {
		t.Fatalf("%d, %q", code, screen)
	}
	if said := s.said()[1]; !strings.Contains(said, fmt.Sprintf(`\"stdout\":\"%d\\n\"`, alice.Uid)) || !strings.Contains(said, "controls verified") {
		t.Errorf("the model was told %q", said)
	}
	// What is said to read is held by the kernel, also where a person believed it.
	script := filepath.Join(dir, "look")
	if err := os.WriteFile(script, []byte("#!/bin/sh\ntouch "+own+"/a || mkdir "+own+"/b || kill -9 $PPID\nexit 9\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, write := range []string{script, "sh " + script} {
		s := m.script(t, always(planOf("host", write, true)), always(directly("done")))
		x := ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--on", "host", "read"), 50, 120, false)
		x.Expect(question)
		x.Type("y\n")
		x.Expect("done")
		x.Wait()
		if said := s.said(); len(said) != 2 || !strings.Contains(said[1], `\"outcome\":\"failed\"`) {
			t.Errorf("%s: the model was told %q", write, said[len(said)-1])
		}
		if left, err := os.ReadDir(own); err != nil || len(left) > 0 {
			t.Fatalf("%s left %v, %v", write, left, err)
		}
	}
	change := planOf("host", "touch "+own+"/made", false)
	m.script(t, always(change), always(directly("done")))
	if r := ask("--on", "host", "make it"); r.code != 1 || r.out != "" || !strings.Contains(r.err, "not approved") {
		t.Errorf("%+v", r)
	}
	m.script(t, always(change), always(directly("it is made")))
	x := ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--on", "host", "make it"), 50, 120, false)
	x.Expect(question)
	x.Type("y\n")
	x.Expect("it is made")
	x.Wait()
	fi, err := os.Stat(own + "/made")
	if err != nil || fi.Sys().(*syscall.Stat_t).Uid != alice.Uid {
		t.Errorf("%v, %v", fi, err)
	}
	// Root offers nothing without a word.
	m.script(t, always(planOf("host", "id", true)), always(directly("done")))
	if r := m.try(nil, "", "ask", "--llm", "m1", "--model", "house", "--agent", "roots", "--on", "host", "who?"); !strings.Contains(r.err, "--as-root") ||
		strings.Contains(r.err, "1. host: done") {
		t.Errorf("%+v", r)
	}
}

// A chat tells what was said before, goes on after a turn that was stopped, and ends with its input.
func TestChat(t *testing.T) {
	m, alice, _ := newAsked(t)
	s := m.script(t, always(directly("the first answer")), always(directly("the second answer")))
	x := ptytest.Start(t, m.command(context.Background(), alice, "chat", "--plain", "--llm", "m1", "--model", "house", "--on", "none"), 50, 120, false)
	x.Expect("you> ")
	x.Type("one question\n")
	x.ExpectAfter("the first answer", "you> ")
	x.Type("another question\n")
	x.ExpectAfter("the second answer", "you> ")
	if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "one question") || !strings.Contains(said[1], "the first answer") {
		t.Errorf("the model was asked %q", said)
	}
	hold := make(chan struct{})
	asked := make(chan struct{}, 1)
	m.script(t, func(string) string {
		asked <- struct{}{}
		<-hold
		return directly("too late")
	}, always(directly("the last answer")))
	x.Type("a long one\n")
	<-asked
	x.Type("\x03")
	x.ExpectAfter("stopped", "you> ")
	close(hold)
	x.Type("/new\n")
	x.Type("a new one\n")
	x.ExpectAfter("the last answer", "you> ")
	x.Type("/quit\n")
	if code := x.Wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, x.Screen())
	}
	if r := m.try(alice, "", "task", "ls", "agent"); strings.Count(r.out, "stopped") != 1 || strings.Count(r.out, "completed") != 3 {
		t.Errorf("%+v", r)
	}
}

// A patch that a model writes is shown with its lines, made on a yes alone as the user who asked, and undone.
func TestAskForAPatch(t *testing.T) {
	o := newOperator(t)
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	file := o.write(t, "work/app.conf", []byte("port = 80\r\nname = a\r\n"))
	change := func(path string) string {
		b, _ := json.Marshal(map[string]any{
			"type": "file_patch_plan", "goal": "use another port", "request_intent": "update", "target": "host", "files_changed": []string{path},
			"unified_diff": "--- a/" + path + "\n+++ b/" + path + "\n@@ -1,2 +1,2 @@\n-port = 80\r\n+port = 8080\r\n name = a\r\n",
			"risk_summary": "r", "verification_commands": []any{planStep("host", "grep 8080 "+file, true)}, "rollback_commands": []any{},
			"permission_changes": []any{},
		})
		return string(b)
	}
	carrel := func(args ...string) *exec.Cmd {
		c := m.command(context.Background(), o.Credential, args...)
		c.Env, c.Dir = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME="), filepath.Dir(file)
		return c
	}
	is := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%q, %v", b, err)
		}
	}
	for i, key := range []string{"n\n\n", "y\n"} {
		m.script(t, always(change("app.conf")), always(directly("it is changed")))
		x := ptytest.Start(t, carrel("ask", "--llm", "m1", "--model", "house", "--on", "host", "change it"), 50, 120, false)
		x.Expect(question)
		if screen := x.Screen(); !strings.Contains(screen, "port = 8080") || !strings.Contains(screen, "app.conf") {
			t.Errorf("asked %q", screen)
		}
		x.Type(key)
		if i == 0 {
			x.Expect("not approved")
		} else {
			x.Expect("it is changed")
		}
		x.Wait()
		is([]string{"port = 80\r\nname = a\r\n", "port = 8080\r\nname = a\r\n"}[i])
	}
	list := finish(carrel("undo", "-o", "json"), "")
	var changes []struct{ ID, State string }
	if err := json.Unmarshal([]byte(list.out), &changes); err != nil || len(changes) != 1 || changes[0].State != "made" {
		t.Fatalf("%+v, %v", list, err)
	}
	if r := finish(carrel("undo", changes[0].ID), ""); r.code != 0 {
		t.Errorf("%+v", r)
	}
	is("port = 80\r\nname = a\r\n")
	// A file that changes elsewhere before the answer keeps both; one that changes there, or is none any more, stays.
	const long = "port = 80\r\nname = a\r\nb\r\nc\r\nd\r\n"
	for happens, is := range map[string]string{
		"printf 'port = 80\r\nname = a\r\nb\r\nc\r\nd\r\nmore\r\n' > app.conf": "port = 8080\r\nname = a\r\nb\r\nc\r\nd\r\nmore\r\n",
		"printf 'port = 81\r\nname = a\r\nb\r\nc\r\nd\r\n' > app.conf":         "port = 81\r\nname = a\r\nb\r\nc\r\nd\r\n",
		"mv app.conf s; ln -s s app.conf":                                      long,
		"mv app.conf s; mkfifo app.conf":                                       "",
	} {
		if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, []byte(long), 0o644), os.Chown(file, int(o.Uid), int(o.Gid))); err != nil {
			t.Fatal(err)
		}
		m.script(t, always(change("app.conf")), always(directly("it is over")))
		x := ptytest.Start(t, carrel("ask", "--llm", "m1", "--model", "house", "--on", "host", "change it"), 50, 120, false)
		x.Expect(question)
		c := exec.CommandContext(t.Context(), "/bin/sh", "-c", happens)
		c.Dir, c.SysProcAttr = filepath.Dir(file), &syscall.SysProcAttr{Credential: o.Credential}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		x.Type("y\n")
		merged := strings.Contains(is, "8080")
		if merged {
			x.Expect("done; merged, as it had changed elsewhere meanwhile: app.conf")
		} else {
			x.Expect("has changed since")
		}
		x.Expect("it is over")
		x.Wait()
		if fi, err := os.Lstat(file); err != nil || fi.Mode()&os.ModeNamedPipe == 0 {
			if b, err := os.ReadFile(file); err != nil || string(b) != is {
				t.Errorf("%s: %q, %v", happens, b, err)
			}
		} else if is != "" {
			t.Errorf("%s: %v, %v", happens, fi, err)
		}
		if merged {
			list := finish(carrel("undo", "-o", "json"), "")
			if err := json.Unmarshal([]byte(list.out), &changes); err != nil {
				t.Fatal(err)
			}
			for _, c := range changes {
				if c.State == "made" {
					finish(carrel("undo", c.ID), "")
				}
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != strings.Replace(is, "8080", "80", 1) {
				t.Errorf("undone: %q, %v", b, err)
			}
		}
		_ = os.Remove(filepath.Join(filepath.Dir(file), "s"))
	}
	if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, []byte("port = 80\r\nname = a\r\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	// Nothing outside of the directory is changed, by whatever name, and no secret in it is read for a change.
	env := filepath.Join(filepath.Dir(file), ".env")
	if err := os.WriteFile(env, []byte("TOKEN=planted-content\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../.ssh/id_ed25519", filepath.Join(o.home, ".ssh/id_ed25519"), "/etc/hostname", ".env"} {
		s := m.script(t, always(change(path)), always(directly("done")))
		if r := finish(carrel("ask", "--llm", "m1", "--on", "host", "change it"), ""); r.code != 0 || strings.Contains(r.err, "plan 1") {
			t.Errorf("%s: %+v", path, r)
		}
		if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "invalid") && !strings.Contains(said[1], "does not let tools read it") ||
			strings.Contains(said[1], "planted") {
			t.Errorf("%s: the model was told %q", path, said)
		}
	}
}

// openWay lets every user come to a directory of the test's. What is open already, as /tmp, stays as it is.
func openWay(t *testing.T, dir string) {
	t.Helper()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if err == nil && fi.Mode().Perm()&0o055 != 0o055 {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A daemon that is killed in the middle of a step on this machine ends the step and the question. The record says that they
// were interrupted, nothing is run again, and the turn goes on once there is a daemon.
func TestAskOfADaemonThatIsKilled(t *testing.T) {
	m, alice, _ := newAsked(t)
	m.script(t, always(planOf("host", "echo begun; sleep 4217", true)), always(directly("done")))
	x := ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--model", "house", "--on", "host", "--yes-safe", "wait"),
		50, 120, false)
	x.Expect("--yes-safe")
	runs := func() bool {
		return exec.CommandContext(t.Context(), "pgrep", "-U", fmt.Sprint(alice.Uid), "-f", "^sleep 4217").Run() == nil
	}
	await := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); runs() != want; {
			if time.Now().After(deadline) {
				t.Fatalf("the step runs: %v, and has to: %v", !want, want)
			}
		}
	}
	await(true)
	kill(t, m.part(t, "daemon"))
	await(false)
	if err := m.up(); err != nil {
		t.Fatal(err)
	}
	x.Expect("the turn was cut off, and goes on")
	x.Expect("done")
	if code := x.Wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, x.Screen())
	}
	m.settled(t)
	interrupted := 0
	for _, r := range m.since(t, 0) {
		if strings.Contains(r.raw, `"status":"interrupted"`) {
			interrupted++
		}
	}
	if interrupted < 2 || runs() {
		t.Errorf("%d are recorded as interrupted, and the step runs: %v", interrupted, runs())
	}
	if r := m.try(alice, "", "task", "ls", "agent"); strings.Count(r.out, "failed") != 1 {
		t.Errorf("%+v", r)
	}
}

// What the agent has to work with is shown, and nothing is made or asked for it.
func TestAgentCheck(t *testing.T) {
	m, alice, ask := newAsked(t)
	check := func() result { return m.try(alice, "", "agent", "check", "--model", "house", "--on", "host") }
	r := check()
	if r.code != 0 || !strings.Contains(r.out, "the first question makes") || !strings.Contains(r.out, "house") ||
		!strings.Contains(r.out, "profile system_inspect") || !strings.Contains(r.out, "read_file(path") ||
		!strings.Contains(r.out, "200 matches") {
		t.Errorf("%+v", r)
	}
	if r := m.try(alice, "", "inspect", "agent"); r.code == 0 {
		t.Error("a check made the agent's workspace")
	}
	m.script(t, always(directly("done")))
	if r := ask("--on", "none", "anything?"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := check(); r.code != 0 || !strings.Contains(r.out, "running") || strings.Contains(r.out, "makes") || m.asked.Load() != 1 {
		t.Errorf("%+v, and the model was asked %d times", r, m.asked.Load())
	}
}
