package root_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// load opens a former session, and returns the answer with what was told before it.
func (e *anEditor) load(session string) (m linerpc.Message, before string) {
	e.t.Helper()
	id := e.send("session/load", map[string]any{"sessionId": session, "cwd": e.c.Dir, "mcpServers": []any{}})
	return e.until("the answer", func(m linerpc.Message) bool { return m.Response() && string(m.ID) == id })
}

// An editor that was closed opens a former session of its user: it is told again, and goes on with what was said. Nobody else opens it,
// and no id but that of a session does.
func TestEditorLoads(t *testing.T) {
	m, alice, _ := newAsked(t)
	s := m.script(t, always(planOf("workspace demo", "echo seen-$((40+2))"+leaves, false)), always(directly("It says **seen-42**.")),
		always(directly("a second answer")), always(directly("as I said")))
	home := homeOf(t, alice)
	e := startEditor(t, m.acpAt(t, home, alice))
	e.begin()
	id := e.prompt("what does it say?")
	asked, _ := e.until("the question", func(m linerpc.Message) bool { return m.Method == "session/request_permission" })
	e.write(linerpc.Message{ID: asked.ID, Result: json.RawMessage(`{"outcome":{"outcome":"selected","optionId":"allow"}}`)})
	e.end(id)
	e.end(e.prompt("and a second one?"))
	session := e.session
	e.close()

	e = startEditor(t, m.acpAt(t, home, alice))
	answer, before := e.load(session)
	if answer.Error != nil || !strings.Contains(string(answer.Result), `"currentModeId":"act"`) {
		t.Fatalf("%s %+v", answer.Result, answer.Error)
	}
	at := -1
	for _, want := range []string{
		"what does it say?", "echo seen-$((40+2))", "1. workspace demo: done", "It says **seen-42**.", `"status":"completed","toolCallId":"1-plan-1"`,
		"and a second one?", "a second answer",
	} {
		n := strings.Index(before[at+1:], want)
		if n < 0 {
			t.Fatalf("%s does not come in its place: %s", want, before)
		}
		at += 1 + n
	}
	if !strings.Contains(before, `"sessionId":"`+session) || strings.Count(before, `"user_message_chunk"`) != 2 || strings.Contains(before, "request_permission") {
		t.Errorf("it is told so: %s", before)
	}
	e.session = session
	if reason, said := e.end(e.prompt("again?")); reason != "end_turn" || !strings.Contains(said, "as I said") {
		t.Errorf("%s: %s", reason, said)
	}
	if said := s.said(); len(said) != 4 || !strings.Contains(said[3], "what does it say?") || !strings.Contains(said[3], "a second answer") {
		t.Errorf("the model was not told what was said: %q", said)
	}
	for _, other := range []string{"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "../" + session, ""} {
		if answer, _ := e.load(other); answer.Error == nil || !strings.Contains(answer.Error.Message, "there is none with this id") &&
			!strings.Contains(answer.Error.Message, "you have none with this id") {
			t.Errorf("%q: %s %+v", other, answer.Result, answer.Error)
		}
	}
	e.close()

	// Another user has no such session, also with the file in which it is kept.
	bob := user(t, "crt-ask")
	his := homeOf(t, bob)
	e = startEditor(t, m.acpAt(t, his, bob))
	if answer, _ := e.load(session); answer.Error == nil || !strings.Contains(answer.Error.Message, "you have none with this id") {
		t.Errorf("%s %+v", answer.Result, answer.Error)
	}
	kept, err := os.ReadFile(filepath.Join(home, ".local/state/carrel/sessions", session+".json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(his, ".local/state/carrel/sessions")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, session+".json")
	if err := os.WriteFile(path, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, path} {
		if err := os.Chown(p, int(bob.Uid), int(bob.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	if answer, before := e.load(session); answer.Error == nil || strings.Contains(before, "seen-42") {
		t.Errorf("%s %+v: %s", answer.Result, answer.Error, before)
	}
}

// A client that others wrote opens a former session.
func TestEditorOfAnotherHandLoads(t *testing.T) {
	dir := os.Getenv(editorEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to an environment of Python with agent-client-protocol", editorEnv)
	}
	m, alice, _ := newAsked(t)
	m.script(t, always(directly("the first answer")), always(directly("the second answer")))
	script, err := os.ReadFile("testdata/acp-editor-load.py")
	if err != nil {
		t.Fatal(err)
	}
	c := m.acpCommand(t, alice)
	at := filepath.Join(c.Dir, "editor.py")
	if err := os.WriteFile(at, script, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	p := exec.CommandContext(ctx, filepath.Join(dir, "bin", "python"), append([]string{at, c.Path}, c.Args[1:]...)...)
	p.Env, p.Dir, p.SysProcAttr = c.Env, c.Dir, c.SysProcAttr
	r := finish(p, "")
	for _, want := range []string{
		`{"load": true}`, `{"loaded": ["act", "plan"]}`, `{"replayed": "user_message_chunk", "text": "one?"}`,
		`{"replayed": "agent_message_chunk", "text": "the first answer"}`, `{"said": "the second answer"}`, `{"end": "end_turn"}`,
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("it lacks %s: %+v", want, r)
		}
	}
}
