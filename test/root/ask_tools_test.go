package root_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// callsOf is an answer with calls of tools that read.
func callsOf(calls ...map[string]any) string {
	b, _ := json.Marshal(map[string]any{"type": "tool_calls", "calls": calls})
	return string(b)
}

func toolCall(target, tool string, more ...string) map[string]any {
	c := map[string]any{"target": target, "tool": tool}
	for i := 0; i+1 < len(more); i += 2 {
		c[more[i]] = more[i+1]
	}
	return c
}

// A model looks at this machine and at a workspace without a question, under the profile of commands that only read. What it
// may not see it is not told: secrets by name, by a link and by a search, and what is outside of the roots.
func TestAskReadsByTools(t *testing.T) {
	o := newOperator(t)
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	if r := m.try(o.Credential, "", "create", "demo"); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := m.try(o.Credential, "", "exec", "demo", "--", "sh", "-c", "echo inside-$((40+2)) > note"); r.code != 0 {
		t.Fatal(r.err)
	}
	where := m.try(o.Credential, "", "exec", "demo", "--", "pwd")
	note := filepath.Join(strings.TrimSpace(where.out), "note")
	log := o.write(t, "work/app.log", []byte("all well\nERROR planted-fault at 10:20:30\n"))
	work := filepath.Dir(log)
	o.write(t, "work/.env", []byte("KEY=planted-fault-hidden\n"))
	for name, to := range map[string]string{
		"key": filepath.Join(o.home, ".ssh/id_ed25519"), "list": "/etc/shadow", "same": log, "out": o.home + "/.profile",
	} {
		if err := os.Symlink(to, filepath.Join(work, name)); err != nil {
			t.Fatal(err)
		}
	}
	o.write(t, ".profile", []byte("outside-of-the-roots\n"))
	carrel := func(args ...string) result {
		c := m.command(context.Background(), o.Credential, append([]string{"ask", "--llm", "m1", "--model", "house", "--on", "host"}, args...)...)
		c.Env, c.Dir = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME="), work
		return finish(c, "")
	}
	quoted := func(asked string) string {
		if !strings.Contains(asked, "planted-fault at 10:20:30") {
			return directly("there is nothing")
		}
		b, _ := json.Marshal(map[string]any{"type": "no_change", "answer": "found it", "evidence": []string{"planted-fault at 10:20:30"}})
		return string(b)
	}
	mark := m.mark(t)
	s := m.script(t,
		always(callsOf(
			toolCall("host", "search_files", "path", work, "pattern", "planted-fault"), toolCall("host", "read_file", "path", "/etc/os-release"),
			toolCall("host", "read_file", "path", filepath.Join(work, "same")), toolCall("workspace demo", "read_file", "path", note),
			toolCall("host", "processes"), toolCall("host", "get_system_info"), toolCall("host", "read_file", "path", filepath.Join(work, "key")),
			toolCall("host", "read_file", "path", filepath.Join(work, "out")),
		)),
		quoted,
	)
	r := carrel("what is in the log?")
	if r.code != 0 || r.out != "found it\n" || strings.Contains(r.err, "plan 1") {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"host: search_files path=" + work, "workspace ", "host: processes: read"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("%q is not shown: %s", want, r.err)
		}
	}
	told := s.said()[1]
	for _, want := range []string{"inside-42", "PRETTY_NAME", "MemTotal", "controls verified", "lines are left out", "all well"} {
		if !strings.Contains(told, want) {
			t.Errorf("the model is not told %q", want)
		}
	}
	for _, secret := range []string{"planted-fault-hidden", "OPENSSH PRIVATE KEY", "outside-of-the-roots"} {
		if strings.Contains(told, secret) {
			t.Errorf("the model is told %q", secret)
		}
	}
	m.recorded(t, mark, `"kind":"command.exec"`, "search_files")
	for name, c := range map[string]map[string]any{
		"the password file": toolCall("host", "read_file", "path", "/etc/shadow"),
		"a key":             toolCall("host", "read_file", "path", filepath.Join(o.home, ".ssh/id_ed25519")),
		"an environment":    toolCall("host", "read_file", "path", "/proc/1/environ"),
	} {
		s := m.script(t, always(callsOf(toolCall("host", "sockets"), c)), always(directly("I may not")))
		if r := carrel("read it"); r.code != 0 || strings.Contains(r.err, "sockets: read") || !strings.Contains(r.err, "refused") {
			t.Errorf("%s: %+v", name, r)
		}
		if told := s.said()[1]; !strings.Contains(told, "no tool was called") {
			t.Errorf("%s: the model is told %q", name, told)
		}
	}
	// By a link it is refused as well, and where the person works in another directory so is the file itself.
	s = m.script(t, always(callsOf(toolCall("host", "read_file", "path", log))), always(directly("I may not")))
	if r := carrel("--files", "/srv", "read it"); r.code != 0 || !strings.Contains(s.said()[1], "it was not run: cannot read "+log) {
		t.Errorf("%+v", r)
	}
	s = m.script(t, always(callsOf(toolCall("host", "read_file", "path", filepath.Join(work, "list")))), always(directly("I may not")))
	if r := carrel("read it"); r.code != 0 || !strings.Contains(s.said()[1], "password file") {
		t.Errorf("%+v", r)
	}
	// A plan alone may be asked for, and what it is made from is read.
	s = m.script(t, always(callsOf(toolCall("host", "read_file", "path", log))), always(planOf("host", "id", true)), always(directly("done")))
	if r := carrel("--plan-only", "look"); r.code != 0 || r.out != "" || !strings.Contains(s.said()[1], "planted-fault") || strings.Contains(r.err, "1. host: done") {
		t.Errorf("%+v", r)
	}
}

// A model is told of the runbooks by name and reads one by a tool, with its parameters as quoted words. What it takes out of
// one is judged as ever: a command that changes something is asked about.
func TestAskReadsARunbook(t *testing.T) {
	m, _, ask := newAsked(t)
	call := toolCall("workspace demo", "runbook", "name", "disk")
	call["parameters"] = []string{"dir=/srv"}
	s := m.script(t, always(callsOf(call)), always(planOf("workspace demo", "git push -q https://example.invalid/in x", false)),
		always(directly("done")))
	r := ask("--on", "none", "is the disk full?")
	if r.code != 1 || !strings.Contains(r.err, "runbook name=disk") || !strings.Contains(r.err, "not approved") {
		t.Errorf("%+v", r)
	}
	said := s.said()
	if !strings.Contains(said[0], "container, disk, load, ") || strings.Contains(said[0], "du -xh") {
		t.Errorf("the model is asked %q", said[0])
	}
	if !strings.Contains(said[1], "du -xh --max-depth=2 '/srv'") || !strings.Contains(said[1], "This is advice") {
		t.Errorf("the model is told %q", said[1])
	}
	for name, bad := range map[string]map[string]any{
		"another runbook":   toolCall("workspace demo", "runbook", "name", "none"),
		"another value":     {"target": "workspace demo", "tool": "runbook", "name": "disk", "parameters": []string{"dir=-rf"}},
		"another parameter": {"target": "workspace demo", "tool": "runbook", "name": "disk", "parameters": []string{"file=/a"}},
	} {
		s := m.script(t, always(callsOf(bad)), always(directly("done")))
		if r := ask("--on", "none", "look"); r.code != 0 || !strings.Contains(r.err, "invalid") || !strings.Contains(s.said()[1], "runbook") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
