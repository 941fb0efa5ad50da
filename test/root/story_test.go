package root_test

import (
	"context"
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
 *\+\S+s  task in workspace (crt-\w+), agent, prompt of 4 bytes [0-9a-f]{12}  \[SAFE \d+\]
 *\+\S+s  workspace crt-\w+: \./\.carrel/agent/carrel-agent-\w+ --model m1  \[SAFE \d+\]: exit code 0, \S+
 *\+\S+s  plan 1: find out: a person is asked, ap-\w+
 +1\. workspace crt-\w+: true  \[SAFE 0, only reads\]
 +2\. workspace crt-\w+: git push -q https://example\.invalid/in x  \[CONFIRM \d+\]
 *\+\S+s  uid:\d+ answered ap-\w+: once
 *\+\S+s  plan 1 runs, by ap-\w+
 *\+\S+s  workspace crt-\w+: true  \[SAFE 0\]: exit code 0, \S+
 *\+\S+s  workspace crt-\w+: git push -q https://example\.invalid/in x  \[CONFIRM \d+\], by ap-\w+: exit code \d+, \S+
 *\+\S+s  plan 1: failed, 2 steps run
 *\+\S+s  task completed
 *\+\S+s  model house \(m1\): 2 requests, 20 tokens
$`)
	if !want.MatchString(got) {
		t.Errorf("the story is\n%s", got)
	}
}
