package plan_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/plan"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

const (
	step    = `{"command":"df -h","purpose":"see","read_only":true,"target":"host"}`
	onBoth  = `{"command":"uptime","purpose":"see","read_only":true,"target":"remote b a","background":true,"timeout_seconds":60}`
	command = `{"type":"command_plan","goal":"g","commands":[` + step + `,` + onBoth + `],"risk_summary":"","preflight_checks":[],` +
		`"verification_commands":[` + step + `],"rollback_commands":[],"requires_root":false,"expected_side_effects":["a <b> & c"]}`
	filePatch = `{"type":"file_patch_plan","goal":"g","request_intent":"update","target":"workspace my chat","files_changed":["a.txt"],` +
		`"unified_diff":"--- a/a.txt\n+++ b/a.txt\n","risk_summary":"r","verification_commands":[],"rollback_commands":[],` +
		`"permission_changes":[{"path":"a.txt","mode":"0644"}]}`
	direct   = `{"type":"direct_answer","answer":"привет\n"}`
	noChange = `{"type":"no_change","answer":"a","evidence":["port 8080"]}`
	reads    = `{"type":"tool_calls","calls":[{"target":"host","tool":"read_file","path":"/etc/hosts","first_line":2,"lines":10},` +
		`{"target":"workspace my chat","tool":"journal","since":"2h","unit":"a.service","priority":"err"},` +
		`{"target":"host","tool":"runbook","name":"disk","parameters":["dir=/var"]}]}`
	more = `{"type":"continue_planning","reason":"r"}`
)

var valid = []string{command, filePatch, reads, direct, noChange, more}

func TestParse(t *testing.T) {
	a, err := plan.Parse([]byte(" \n" + command + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	host := plan.Target{Kind: operation.Host}
	see := plan.Step{Command: "df -h", Purpose: "see", ReadOnly: true, Target: host}
	want := plan.Answer{Type: plan.CommandPlanType, Commands: &plan.CommandPlan{
		Type: plan.CommandPlanType, Goal: "g", SideEffects: []string{"a <b> & c"},
		Commands: []plan.Step{see, {
			Command: "uptime", Purpose: "see", ReadOnly: true, Background: true, TimeoutSeconds: 60,
			Target: plan.Target{Kind: operation.Remote, Names: []string{"b", "a"}},
		}},
		PreflightChecks: []plan.Step{}, Verification: []plan.Step{see}, Rollback: []plan.Step{},
	}}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("%+v", a.Commands)
	}
	a, err = plan.Parse([]byte(filePatch))
	if err != nil || a.Patch == nil || a.Patch.Intent != plan.Update || !slices.Equal(a.Patch.Target.Names, []string{"my chat"}) ||
		a.Patch.UnifiedDiff == "" || a.Patch.Permissions[0] != (plan.PermissionChange{Path: "a.txt", Mode: "0644"}) {
		t.Errorf("%+v, %v", a.Patch, err)
	}
	if a.Patch.Text() != a.Patch.UnifiedDiff || a.Patch.Permissions[0].Bits() != 0o644 {
		t.Errorf("%q, %o", a.Patch.Text(), a.Patch.Permissions[0].Bits())
	}
	a, err = plan.Parse([]byte(strings.Replace(filePatch, "unified_diff", "patch", 1)))
	if err != nil || a.Patch.Text() != a.Patch.Patch || a.Patch.Text() == "" {
		t.Errorf("%+v, %v", a.Patch, err)
	}
	a, err = plan.Parse([]byte(reads))
	if err != nil || a.Tools == nil || a.Tools.Calls[0].Target.Kind != operation.Host || a.Tools.Calls[0].Path != "/etc/hosts" ||
		a.Tools.Calls[0].FirstLine != 2 || a.Tools.Calls[1].Tool != "journal" || a.Tools.Calls[1].Unit != "a.service" {
		t.Errorf("%+v, %v", a.Tools, err)
	}
	for _, text := range valid {
		a, err := plan.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := a.Canonical(); err != nil || string(b) != text {
			t.Errorf("%s\nis written %s, %v", text, b, err)
		}
	}
}

// Each refusal names the place and what is allowed there.
func TestRefusals(t *testing.T) {
	in := func(in, old, text string) string {
		if strings.Count(in, old) < 1 {
			t.Fatalf("%s has no %s", in, old)
		}
		return strings.Replace(in, old, text, 1)
	}
	deep := strings.Repeat("[", plan.MaxDepth) + strings.Repeat("]", plan.MaxDepth)
	list := func(one string, n int) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	for _, c := range []struct{ text, says string }{
		{"", "it is empty; give exactly one JSON object"},
		{"```json\n" + direct + "\n```", "begins with \"```json"},
		{"Here it is: " + direct, "without prose"},
		{"\ufeff" + direct, "begins with"},
		{direct + " I hope this helps", "something follows the object at line 1, column 52"},
		{direct + "\n" + direct, "something follows the object at line 2, column 1"},
		{direct + "\n```", "something follows"},
		{direct[:len(direct)-1], "no JSON at line 1"},
		{in(direct, `"answer"`, `answer`), "no JSON at line 1, column 25"},
		{in(direct, `}`, `,}`), "no JSON"},
		{"{\"type\":\"direct_answer\",\"answer\":\"\xff\"}", "not UTF-8 at byte 34"},
		{in(direct, "привет", `\ud800`), "half of a surrogate pair at line 1, column 35"},
		{in(direct, "привет", `\udc00\ud800`), "half of a surrogate pair"},
		{in(direct, "привет", `\ud800\u0041`), "half of a surrogate pair"},
		{in(direct, "привет", strings.Repeat("x", plan.MaxAnswer)), "at most 262144 are allowed"},
		{in(direct, `"answer"`, `"x":`+deep+`,"answer"`), "nested more than 32 deep"},
		{`[` + direct + `]`, "begins with"},
		{`{}`, "type: is missing; give one of command_plan, file_patch_plan, tool_calls, direct_answer, no_change, continue_planning"},
		{`{"type":null}`, "type: nothing is no type"},
		{`{"type":"shell"}`, `type: the text "shell" is no type`},
		{in(reads, `"path":"/etc/hosts",`, ``), "calls[0].path: is missing, and read_file needs it; give an absolute path"},
		{in(reads, `"/etc/hosts"`, `"../hosts"`), "calls[0].path: is not usable"},
		{in(reads, `"/etc/hosts"`, `"/etc/ho\u202ests"`), "calls[0].path: has the character U+202E"},
		{in(reads, `"lines":10`, `"lines":10,"sort":"cpu"`), "calls[0].sort: is not a parameter of read_file; it takes path, first_line, lines"},
		{in(reads, `"lines":10`, `"lines":10,"depth":1`), "calls[0].depth: is not known"},
		{in(reads, `"read_file"`, `"write_file"`), `calls[0].tool: is "write_file"; give one of read_file`},
		{in(reads, `"workspace my chat"`, `"remote a b"`), "calls[1].target: \"remote a b\" is more than one place"},
		{in(reads, `"target":"host",`, ``), "calls[0].target: is missing"},
		{`{"type":"tool_calls","calls":[]}`, "calls: is an empty list"},
		{`{"type":"tool_calls","calls":[` + list(`{"target":"host","tool":"sockets"}`, 9) + `]}`, "calls: has 9 elements"},
		{in(direct, `"type"`, `"Type"`), "type: is missing"},
		{in(direct, `}`, `,"note":1}`), "note: is not known; the members are answer"},
		{in(direct, `}`, `,"a b":1}`), `"a b": is not known`},
		{in(direct, `}`, `,"answer":"y"}`), "answer: is there twice"},
		{in(direct, `}`, `,"\u0061nswer":"y"}`), "answer: is there twice"},
		{in(direct, `}`, `,"type":"direct_answer"}`), "type: is there twice"},
		{in(direct, `"answer"`, `"Answer"`), "Answer: is not known"},
		{in(direct, `"привет\n"`, `""`), "answer: is empty"},
		{in(direct, `"привет\n"`, `" \n"`), "answer: is empty"},
		{in(direct, `"привет\n"`, `1`), "answer: is a number; give a text of 1 to"},
		{in(direct, `"привет\n"`, `null`), "answer: is nothing"},
		{in(direct, `"привет\n"`, `{}`), "answer: is an object"},
		{in(direct, `"привет\n"`, `["a"]`), "answer: is a list"},
		{in(direct, `привет`, `a\u001b[2J`), "answer: has the character U+001B at byte 1"},
		{in(command, `"goal":"g",`, ``), "goal: is missing"},
		{in(command, `,"target":"host"`, ``), `commands[0].target: is missing; give "host" (this machine), "workspace NAME"`},
		{in(command, `"host"`, `""`), "commands[0].target:"},
		{in(command, `"host"`, `null`), "commands[0].target: is nothing"},
		{in(command, `"host"`, `"local"`), "commands[0].target:"},
		{in(command, `"host"`, `"host web"`), "commands[0].target:"},
		{in(command, `"host"`, `"Host"`), "commands[0].target:"},
		{in(command, `"host"`, `" host"`), "commands[0].target:"},
		{in(command, `"remote b a"`, `"remote b b"`), `"b" is named twice`},
		{in(command, `"remote b a"`, `"remote"`), "commands[1].target:"},
		{in(command, `"remote b a"`, `"remote "`), "commands[1].target:"},
		{in(command, `"remote b a"`, `"remote b  a"`), "commands[1].target:"},
		{in(command, `"remote b a"`, `"remote b *"`), "* stands for all hosts"},
		{in(command, `"remote b a"`, `"remote -oProxyCommand=x"`), "is not the name of a host"},
		{in(command, `"remote b a"`, `"remote a/b"`), "is not the name of a host"},
		{in(command, `"remote b a"`, `"remote `+strings.Repeat("a", plan.MaxHostName+1)+`"`), "is not the name of a host"},
		{in(command, `"remote b a"`, `"remote `+many(plan.MaxNames+1)+`"`), "names 65 hosts"},
		{in(command, `"remote b a"`, `"workspace"`), "commands[1].target:"},
		{in(command, `"remote b a"`, `"workspace  a"`), "commands[1].target:"},
		{in(command, `"remote b a"`, `"workspace a\u202eb"`), "commands[1].target: has the character U+202E"},
		{in(command, `"remote b a"`, `["host"]`), "commands[1].target: is a list"},
		{in(command, `[`+step+`,`+onBoth+`]`, `[]`), "commands: is an empty list; give a list of 1 to 32 objects with command, purpose,"},
		{in(command, `[`+step+`,`+onBoth+`]`, `[`+list(step, plan.MaxCommands+1)+`]`), "commands: has 33 elements"},
		{in(command, `[`+step+`,`+onBoth+`]`, `{}`), "commands: is an object"},
		{in(command, `[`+step+`,`+onBoth+`]`, `["ls"]`), `commands[0]: is the text "ls"; give an object`},
		{in(command, `"preflight_checks":[]`, `"preflight_checks":[`+list(step, plan.MaxCommands+1)+`]`), "preflight_checks: has 33 elements"},
		{in(command, `"rollback_commands":[]`, `"rollback_commands":[{"command":"x"}]`), "rollback_commands[0].target: is missing"},
		{in(command, `"rollback_commands":[]`, `"rollback_commands":null`), "rollback_commands: is nothing"},
		{in(command, `"read_only":true`, `"read_only":"yes"`), "commands[0].read_only:"},
		{in(command, `"read_only":true`, `"read_only":true,"read_only":false`), "commands[0].read_only: is there twice"},
		{in(command, `"read_only":true`, `"read_only":true,"sudo":true`), "commands[0].sudo: is not known"},
		{in(command, `"df -h"`, `"df\n-h"`), "commands[0].command: has the character U+000A"},
		{in(command, `"df -h"`, `"df\r-h"`), "U+000D"},
		{in(command, `"df -h"`, `"df\u0000-h"`), "U+0000"},
		{in(command, `"df -h"`, `"df\u007f-h"`), "U+007F"},
		{in(command, `"df -h"`, `"df\u0085-h"`), "U+0085"},
		{in(command, `"df -h"`, `"df\u202e-h"`), "commands[0].command: has the character U+202E at byte 2"},
		{in(command, `"df -h"`, `"df\u2066-h"`), "U+2066"},
		{in(command, `"df -h"`, `"df\u200b-h"`), "U+200B"},
		{in(command, `"df -h"`, `"df\u2028-h"`), "U+2028"},
		{in(command, `"df -h"`, `"df\u3164-h"`), "U+3164"},
		{in(command, `"df -h"`, `"df\udb40\udc41-h"`), "U+E0041"},
		{in(command, `"df -h"`, `"  "`), "commands[0].command: is empty"},
		{in(command, `"df -h"`, `"`+strings.Repeat("x", plan.MaxCommand+1)+`"`), "commands[0].command: has 16385 bytes"},
		{in(command, `"timeout_seconds":60`, `"timeout_seconds":0`), "commands[1].timeout_seconds: is 0; give a whole number from 1 to 86400"},
		{in(command, `"timeout_seconds":60`, `"timeout_seconds":1.5`), "commands[1].timeout_seconds:"},
		{in(command, `"timeout_seconds":60`, `"timeout_seconds":1e99`), "commands[1].timeout_seconds:"},
		{in(command, `"timeout_seconds":60`, `"timeout_seconds":"60"`), "commands[1].timeout_seconds:"},
		{in(command, `"a <b> & c"`, `1`), "expected_side_effects[0]: is a number"},
		{in(filePatch, `"update"`, `"delete"`), "request_intent: is \"delete\"; give one of create, update, unknown"},
		{in(filePatch, `"workspace my chat"`, `"remote a b"`), "target: \"remote a b\" is more than one place"},
		{in(filePatch, `"workspace my chat"`, `"remote *"`), "is more than one place"},
		{in(filePatch, `["a.txt"]`, `[]`), "files_changed: is an empty list"},
		{in(filePatch, `["a.txt"]`, `["a","b","a"]`), `files_changed[2]: names "a" again`},
		{in(filePatch, `["a.txt"]`, `["a\u0000"]`), "files_changed[0]: has the character U+0000"},
		{in(filePatch, `["a.txt"]`, `["`+strings.Repeat("a", plan.MaxPath+1)+`"]`), "files_changed[0]: has 4096 bytes"},
		{in(filePatch, `"unified_diff"`, `"patch":"x","unified_diff"`), "patch: is there beside unified_diff"},
		{in(filePatch, `"unified_diff":"--- a/a.txt\n+++ b/a.txt\n",`, ``), "give either unified_diff or patch"},
		{in(filePatch, `"unified_diff":"--- a/a.txt\n+++ b/a.txt\n",`, `"patch":null,`), "give either unified_diff or patch"},
		{in(filePatch, `"0644"`, `"rw-r--r--"`), "permission_changes[0].mode:"},
		{in(filePatch, `"0644"`, `"4755"`), "permission_changes[0].mode:"},
		{in(filePatch, `"0644"`, `420`), "permission_changes[0].mode: is a number; give three octal digits"},
		{in(filePatch, `]}`, `,{"path":"a.txt","mode":"600"}]}`), `permission_changes[1]: names "a.txt" again`},
		{in(noChange, `["port 8080"]`, `[]`), "evidence: is an empty list"},
		{in(noChange, `["port 8080"]`, `["a"]`), "evidence[0]: has only 1 bytes"},
	} {
		a, err := plan.Parse([]byte(c.text))
		switch {
		case !errdefs.IsInvalidArgument(err):
			t.Errorf("%.200s is %+v, %v", c.text, a, err)
		case !strings.Contains(err.Error(), c.says):
			t.Errorf("%.200s: no %q in:\n%v", c.text, c.says, err)
		case !reflect.ValueOf(a).IsZero():
			t.Errorf("%.200s: beside an error comes %+v", c.text, a)
		}
	}
}

func many(n int) string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("h", i))
	}
	return strings.Join(names, " ")
}

// An error names several places, not without bound, and quotes little.
func TestErrorsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	var members []string
	for i := range 1000 {
		members = append(members, fmt.Sprintf("%q:%q", fmt.Sprint(long, i), long))
	}
	_, err := plan.Parse([]byte(`{"type":"direct_answer",` + strings.Join(members[:100], ",") + `}`))
	if err == nil || strings.Count(err.Error(), "\n- ") != 8 || len(err.Error()) > 4096 {
		t.Errorf("%d bytes: %v", len(fmt.Sprint(err)), err)
	}
	_, err = plan.Parse([]byte(`{"type":"` + long + `"}`))
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("%v", err)
	}
}

func TestTargets(t *testing.T) {
	for text, one := range map[string]bool{
		"host": true, "workspace demo": true, "workspace ws-2a97516c": true, "workspace telegram:-100 23": true, "remote web-1": true,
		"remote a b": false, "remote *": false, "remote web_1.example.org 10.0.0.1": false,
	} {
		target, err := plan.ParseTarget(text)
		if err != nil || target.String() != text || target.One() != one {
			t.Errorf("%q is %+v, %q, one %t, %v", text, target, target, target.One(), err)
		}
	}
	for _, bad := range []plan.Target{
		{},
		{Kind: operation.Workspace},
		{Kind: operation.Host, Names: []string{"a"}},
		{Kind: operation.Remote, Names: []string{"a b", "b"}},
		{Kind: operation.Workspace, Names: []string{""}},
		{Kind: operation.Archive, Names: []string{"a"}},
	} {
		if b, err := bad.MarshalText(); err == nil {
			t.Errorf("%+v is written %s", bad, b)
		}
	}
}

func TestEvidence(t *testing.T) {
	a, err := plan.Parse([]byte(noChange))
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Evidence(a, []string{"x", "listen on port 8080;\n"}); err != nil {
		t.Error(err)
	}
	for _, outputs := range [][]string{nil, {"port", " 8080"}, {"Port 8080"}, {"port  8080"}} {
		if err := plan.Evidence(a, outputs); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "evidence[0]") {
			t.Errorf("%q: %v", outputs, err)
		}
	}
	a.NoChange.Evidence = []string{" "}
	if err := plan.Evidence(a, []string{"a b"}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	other, err := plan.Parse([]byte(direct))
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Evidence(other, []string{"x"}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

func TestCanonical(t *testing.T) {
	a, err := plan.Parse([]byte(command))
	if err != nil {
		t.Fatal(err)
	}
	// Order, white space, escapes and members that are null make no difference.
	var o map[string]any
	if err := json.Unmarshal([]byte(command), &o); err != nil {
		t.Fatal(err)
	}
	o["commands"].([]any)[0].(map[string]any)["background"] = nil
	text, err := json.MarshalIndent(o, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	b, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	first, err1 := a.Canonical()
	second, err2 := b.Canonical()
	if err1 != nil || err2 != nil || !bytes.Equal(first, second) {
		t.Errorf("%s, %v\n%s, %v", first, err1, second, err2)
	}
	for _, bad := range []plan.Answer{{}, {Type: plan.NoChangeType}, {Type: "x"}, {Type: plan.DirectAnswerType, NoChange: &plan.NoChange{}}} {
		if b, err := bad.Canonical(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %s, %v", bad, b, err)
		}
	}
	// A target that was put together wrongly has no canonical form.
	a.Commands.Commands[0].Target = plan.Target{}
	if b, err := a.Canonical(); err == nil {
		t.Errorf("without a target: %s", b)
	}
}
