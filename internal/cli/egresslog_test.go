package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
)

const (
	allowedOK = `"began":"2026-01-02T03:04:04Z","duration_ms":1500,"way":"transparent","host":"a.example.org","port":443,` +
		`"rule":"*.example.org","sent_bytes":512,"received_bytes":2048,"count":1`
	deniedDNS = `"duration_ms":60000,"way":"dns","host":"b.example.org","refused":"no rule","sent_bytes":0,"received_bytes":0,"count":3`
)

func TestEgressLog(t *testing.T) {
	g := serve(t, root)
	const name, other = "ws-2a97516c", "ws-00000002"
	g.RecordConnection(name, `"status":"ok"`, allowedOK+`,"secrets":["KEY","TOKEN"]`)
	g.Record(root, "x")
	g.RecordConnection(name, `"status":"denied","error":"no rule allows it"`, deniedDNS)
	g.RecordConnection(other, `"status":"denied","error":"cut"`,
		`"way":"connect","host":"2001:db8::1","port":22,"sent_bytes":1,"received_bytes":0,"duration_ms":7,"count":1`)
	g.RecordConnection(name, `"status":"ok"`, `"untold":{"connections":12,"sent_bytes":1024,"received_bytes":3}`)

	show := func(args ...string) []string {
		t.Helper()
		r := run(t, "", append([]string{"egress", "log"}, args...)...)
		if r.code != 0 || r.err != "" {
			t.Fatalf("%v: %+v", args, r)
		}
		return strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	}
	same := func(got []string, want ...string) {
		t.Helper()
		for i, l := range got {
			got[i] = strings.Join(strings.Fields(l), " ")
		}
		if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
			t.Errorf("got\n%s\nwant\n%s", g, w)
		}
	}
	const at = "2026-01-02 03:04:05.678Z "
	const one = "a.example.org:443 transparent 512 B 2 KiB 1.5s *.example.org; secrets: KEY, TOKEN"
	const two = "b.example.org dns - - - refused 3 times: no rule allows it"
	const three = "[2001:db8::1]:22 connect 1 B 0 B 7ms refused: cut"
	const four = "12 further connections, 1 KiB sent, 3 B received"
	const head = "HOST:PORT WAY SENT RECEIVED DURATION RULE"
	same(show(name), "TIME "+head, at+one, at+two, at+four)
	same(show("demo"), "TIME "+head, at+one, at+two, at+four)
	same(show(), "TIME WORKSPACE "+head, at+name+" "+one, at+name+" "+two, at+other+" "+three, at+name+" "+four)
	same(show("-n", "1"), "TIME WORKSPACE "+head, at+name+" "+four)
	same(show("-n", "2", "--refused"), "TIME WORKSPACE "+head, at+other+" "+three, at+name+" "+four)
	same(show("-n", "0", "--refused", name), "TIME "+head, at+two, at+four)
	same(show(other, "-n", "0"), "TIME "+head, at+three)
	same(show("ws-00000009"), "TIME "+head)

	lines := show("-o", "json", "--refused")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	for i, want := range []string{"no rule allows it", "cut", ""} {
		var r struct{ Type, Error string }
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil || r.Type != "connection" || r.Error != want {
			t.Errorf("%s: %v", lines[i], err)
		}
	}
	for args, want := range map[string]string{
		"egress log -n -1":     "negative",
		"egress log nope":      "as in carrel egress log ws-",
		"egress log demo more": "takes WORKSPACE and nothing more",
	} {
		if r := run(t, "", strings.Fields(args)...); r.code != 1 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
	if r := run(t, "", "egress", "log", ""); r.code != 1 || !strings.Contains(r.err, "leave the argument out") {
		t.Errorf("an empty name shows: %+v", r)
	}
	if r := run(t, "", "__complete", "egress", "log", ""); !strings.HasPrefix(r.out, "demo\trunning\n") {
		t.Errorf("%+v", r)
	}
}

// What the record has from a workspace tells a terminal nothing, and makes no lines or connections of its own.
func TestEgressLogPrintsNothingRaw(t *testing.T) {
	for _, hostile := range []string{
		"\x1b]0;title\x07", "\x1b[2J", "\u009b31m", "\r", "\n2026-01-02 03:04:05.678Z  good.example:443", "\x7f", "a\u202eb", "\x00", "\u2028",
	} {
		g := serve(t, root)
		quoted, err := json.Marshal("x" + hostile)
		if err != nil {
			t.Fatal(err)
		}
		g.RecordConnection("ws-2a97516c", fmt.Sprintf(`"status":"denied","error":%s`, quoted), fmt.Sprintf(
			`"way":%[1]s,"host":%[1]s,"port":80,"refused":%[1]s,"secrets":[%[1]s],"sent_bytes":1,"received_bytes":1,"count":1`, quoted))
		g.RecordConnection("ws-2a97516c", `"status":"ok"`, fmt.Sprintf(`"way":"http","host":%[1]s,"rule":%[1]s,"count":1`, quoted))
		r := run(t, "", "egress", "log")
		if i := strings.IndexFunc(r.out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 || r.code != 0 {
			t.Errorf("%q prints %+v", hostile, r)
		}
		if n := strings.Count(r.out, "\n"); n != 3 {
			t.Errorf("%q makes %d lines:\n%s", hostile, n, r.out)
		}
	}
}

// Records are for administrators. An owner of a workspace sees its newest connections instead, and nobody else's.
func TestEgressLogOfAnOwner(t *testing.T) {
	g := serve(t, alice)
	g.RecordConnection("ws-2a97516c", `"status":"ok"`, allowedOK)
	r := run(t, "", "egress", "log")
	if r.code != 1 || r.out != "" || !strings.Contains(r.err, "only administrators") || !strings.Contains(r.err, "name one of yours") ||
		!strings.Contains(r.err, "members of the carrel group") {
		t.Errorf("%+v", r)
	}
	for _, args := range []string{"egress log demo", "egress log demo --refused", "egress log demo -n 1"} {
		r := run(t, "", strings.Fields(args)...)
		if lines := strings.Split(r.out, "\n"); r.code != 0 || len(lines) != 3 || !strings.Contains(lines[1], "example.net  ") ||
			!strings.Contains(lines[1], "refused 3 times: no rule allows it") {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := run(t, "", "egress", "log", "demo", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"refused":"no rule allows it"`) {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "egress", "log", "other"); r.code == 0 || r.out != "" {
		t.Errorf("a workspace that is not there: %+v", r)
	}
}

func TestEgressTop(t *testing.T) {
	serve(t, alice)
	r := run(t, "", "egress", "top", "--interval", "100ms", "demo")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 0 || len(lines) != 3 || strings.Join(strings.Fields(lines[1]), " ") != "example.org:443 1 0 B 0 B 1 B 2 B 0 0" ||
		strings.Join(strings.Fields(lines[2]), " ") != "example.net 0 0 B 0 B 0 B 0 B 0 3 no rule allows it" {
		t.Errorf("%+v", r)
	}
	r = run(t, "", "egress", "top", "--interval", "100ms", "demo", "-o", "json")
	var all []struct {
		Host          string
		Open, Refused int64
		Received      int64 `json:"received_bytes"`
	}
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all) != 2 || all[0].Open != 1 || all[0].Received != 2 ||
		all[1].Refused != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	for args, want := range map[string]string{
		"egress top":                     "WORKSPACE is missing",
		"egress top demo --interval 1ms": "give 100ms or more",
		"egress top nowhere":             "nowhere",
	} {
		if r := run(t, "", strings.Fields(args)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
}
