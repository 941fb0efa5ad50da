package root_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// The records of a turn are told as what happened: the prompt, what the model used, the plan with its verdicts, who was asked,
// what they answered, where each step ran, and how each ended.
func TestStoryOfATurn(t *testing.T) {
	m, alice, _ := newAsked(t)
	m.script(t,
		always(planOfAll(planStep("workspace demo", "true", true),
			planStep("workspace demo", "git push -q https://example.invalid/in x", false))),
		always(directly("it is done")))
	x := ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--model", "house", "--on", "none", "push"), 50, 120, false)
	x.Expect(question)
	x.Type("y\n")
	x.Expect("it is done")
	x.Wait()
	trace := ""
	for line := range strings.Lines(m.try(nil, "", "audit", "show", "--last", "20", "-o", "json").out) {
		var r struct{ Trace, Type string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Type == "request" {
			trace = r.Trace
		}
	}
	var got string
	until(t, "what was used of the model", func() bool {
		got = m.try(nil, "", "audit", "show", "--trace", trace).out
		return strings.Contains(got, "model house")
	})
	want := regexp.MustCompile(`^trace ` + trace + ` of uid:\d+: .*, records \d+ to \d+
 *\+\S+s  task in workspace (crt-[\w-]+), agent, prompt of 4 bytes [0-9a-f]{12}  \[SAFE \d+\]
 *\+\S+s  workspace crt-[\w-]+: \./\.carrel/agent/carrel-agent-\w+ --model m1  \[SAFE \d+\]: exit code 0, \S+
 *\+\S+s  plan 1: find out: a person is asked, ap-\w+
 +1\. workspace demo: true  \[SAFE 0, only reads\]
 +2\. workspace demo: git push -q https://example\.invalid/in x  \[CONFIRM \d+\]
 *\+\S+s  uid:\d+ answered ap-\w+: once
 *\+\S+s  plan 1 runs, by ap-\w+
 *\+\S+s  workspace crt-[\w-]+: true  \[SAFE 0\]: exit code 0, \S+
 *\+\S+s  workspace crt-[\w-]+: git push -q https://example\.invalid/in x  \[CONFIRM \d+\], by ap-\w+: exit code \d+, \S+
 *\+\S+s  plan 1: failed, 2 steps run
 *\+\S+s  task completed
 *\+\S+s  model house \(m1\): 2 requests, 20 tokens
 +1\. m1: sent \d+ bytes [0-9a-f]{12}, 200: came \d+ bytes [0-9a-f]{12}
 +2\. m1: sent \d+ bytes [0-9a-f]{12}, 200: came \d+ bytes [0-9a-f]{12}
$`)
	if !want.MatchString(got) {
		t.Errorf("the story is\n%s", got)
	}
}

// calledIn are the calls of models that the records of a filter list.
func calledIn(t *testing.T, m *modeled, filter ...string) (all []call) {
	t.Helper()
	for line := range strings.Lines(m.try(nil, "", append([]string{"audit", "show", "-o", "json"}, filter...)...).out) {
		var r struct {
			Data struct{ Models []struct{ Calls []call } }
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		for _, m := range r.Data.Models {
			all = append(all, m.Calls...)
		}
	}
	return all
}

type call struct {
	Model, Sent, Came string
	SentBytes         int `json:"sent_bytes"`
	Status            int
	Whole             bool
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// The record has the SHA-256 of what the host of the model got and sent in a turn. A program inside that says other digests,
// in headers and in the body, changes nothing: what counts are the bytes that passed.
func TestDigestsOfATurn(t *testing.T) {
	m, alice, ask := newAsked(t)
	s := m.script(t, always(planOf("workspace demo", "echo here", true)), always(directly("done")), always(directly("to a forger")))
	if r := ask("--on", "none", "look"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	var trace string
	for line := range strings.Lines(m.try(nil, "", "audit", "show", "--last", "20", "-o", "json").out) {
		var r struct {
			Trace  string
			Action struct{ Kind string }
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Action.Kind == "plan.run" {
			trace = r.Trace
		}
	}
	var calls []call
	until(t, "the calls of the turn", func() bool {
		calls = calledIn(t, m, "--trace", trace)
		return len(calls) > 0
	})
	said, gave := s.said(), s.gave()
	if len(calls) != 2 {
		t.Fatalf("%+v", calls)
	}
	for i, c := range calls {
		want := call{"m1", digestOf(said[i]), digestOf(gave[i]), len(said[i]), 200, true}
		if c != want {
			t.Errorf("%+v, not %+v", c, want)
		}
		if short := m.try(nil, "", "audit", "show", "--trace", trace).out; !strings.Contains(short, c.Sent[:12]+", 200: came") ||
			strings.Contains(short, c.Sent) {
			t.Errorf("the story is\n%s", short)
		}
	}
	forged := digestOf("forged")
	const body = `{"model":"m1","sent":"SHA","came":"SHA","call":{"sent":"SHA"}}`
	if r := m.try(alice, "", "exec", "agent", "--", "/bin/sh", "-c", strings.ReplaceAll(`curl -sS -m 30 -o /dev/null -H "Digest: sha-256=SHA" `+
		`-H "X-Carrel-Sent: SHA" $OPENAI_BASE_URL/chat/completions -d '`+body+`'`, "SHA", forged)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := m.try(alice, "", "stop", "agent"); r.code != 0 { // which has the rest recorded
		t.Fatalf("%+v", r)
	}
	all := calledIn(t, m, "--last", "10")
	last := call{}
	if len(all) > 0 {
		last = all[len(all)-1]
	}
	if want := strings.ReplaceAll(body, "SHA", forged); last.Sent != digestOf(want) || last.Came != digestOf(s.gave()[2]) || last.Sent == forged {
		t.Errorf("a forger has %+v", all)
	}
}
