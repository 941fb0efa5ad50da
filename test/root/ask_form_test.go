package root_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An answer of a form is JSON alone on stdout. One that is not valid is asked for again with what is wrong, twice.
func TestAskForAForm(t *testing.T) {
	m, _, ask := newAsked(t)
	schema := filepath.Join(t.TempDir(), "schema.json")
	openWay(t, filepath.Dir(schema))
	if err := os.WriteFile(schema, []byte(`{"type":"object","required":["free"],"properties":{"free":{"type":"integer","minimum":1}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s := m.script(t, always(directly("There are 7.")), always(directly(`{"free":"7"}`)), always(directly("```json\n{\"free\": 7}\n```")))
	r := ask("--on", "none", "--output-schema", schema, "how many?")
	if r.code != 0 || r.out != "{\"free\": 7}\n" {
		t.Errorf("%+v", r)
	}
	if said := s.said(); len(said) != 3 || !strings.Contains(said[0], "minimum") || !strings.Contains(said[1], "not JSON") ||
		!strings.Contains(said[2], "integer") {
		t.Errorf("the model was asked %q", said)
	}
	s = m.script(t, always(directly("no")), always(directly("no")), always(directly("no")), always(directly(`{"free":1}`)))
	if r := ask("--on", "none", "--output-schema", schema, "how many?"); r.code != 1 || r.out != "" || len(s.said()) != 3 {
		t.Errorf("%+v, after %d", r, len(s.said()))
	}
	// What a person has denied is not asked for again.
	push := planOf("workspace demo", "git push -q https://example.invalid/in x", false)
	s = m.script(t, always(push), always(push), always(directly(`{"free":1}`)))
	if r := ask("--on", "none", "--output-schema", schema, "push"); r.code != 1 || r.out != "" || len(s.said()) != 1 {
		t.Errorf("%+v, after %d", r, len(s.said()))
	}
	for _, bad := range []string{"not json", `{"type":5}`, `{"$ref":"https://example.org/x"}`} {
		if err := os.WriteFile(schema, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := ask("--on", "none", "--output-schema", schema, "how many?"); r.code != 1 || r.out != "" || !strings.Contains(r.err, "schema") {
			t.Errorf("%s: %+v", bad, r)
		}
	}
}

// A line of an answer is on stdout before the model has written the next one.
func TestAskShowsLinesAsTheyCome(t *testing.T) {
	m, alice, _ := newAsked(t)
	goOn := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		say := func(text, stop string) {
			b, _ := json.Marshal(text)
			fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","model":"m1","choices":[{"index":0,"delta":{"content":%s},"finish_reason":%s}]}`+
				"\n\n", b, stop)
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Content-Type", "text/event-stream")
		say(`{"type":"direct_answer","answer":"the first li`, "null")
		say(`ne\nand the sec`, "null")
		<-goOn
		say(`ond"}`, `"stop"`)
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	m.says.Store(&h)
	c := m.command(t.Context(), alice, "ask", "--llm", "m1", "--model", "house", "well?")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("the first line\n"))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "the first line\n" {
		t.Errorf("%q, %v", line, err)
	}
	close(goOn)
	rest, err := io.ReadAll(out)
	if err := errors.Join(err, c.Wait()); err != nil || string(rest) != "and the second\n" {
		t.Errorf("%q, %v", rest, err)
	}
}
