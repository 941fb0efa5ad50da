package e2b_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// history is a double of who tells what was done. It holds nobody back.
type history []workspace.Entry

func (h *history) History(_ context.Context, _ principal.Principal, _ string, want workspace.EntriesWanted) ([]workspace.Entry, error) {
	var all []workspace.Entry
	for _, e := range *h {
		if !e.Time.Before(want.From) && (want.Until.IsZero() || e.Time.Before(want.Until)) && want.Take(&e) {
			all = append(all, e)
		}
	}
	if want.Newest {
		return all[max(0, len(all)-want.Most):], nil
	}
	return all[:min(len(all), want.Most)], nil
}

func at(ms int64) time.Time { return time.UnixMilli(ms) }

// Both generations show what was done, in the form and by the queries of E2B.
func TestLogs(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	*r.history = history{
		{Time: at(1000), Seq: 1, Type: "intent", Kind: "command.exec", Command: "c-1", Words: []string{"sh", "-c", "exit 3"}, Principal: "uid:7"},
		{
			Time: at(2000), Seq: 2, Intent: 1, Type: "outcome", Status: "ok", Kind: "command.exec", Command: "c-1",
			Words: []string{"sh", "-c", "exit 3"}, Exit: &workspace.Exit{Code: 3},
		},
		{Time: at(3000), Seq: 3, Type: "denial", Status: "denied", Kind: "command.exec", Words: []string{"rm"}, Error: "a rule"},
		{Time: at(4000), Seq: 4, Type: "read", Kind: "file.read", Words: []string{"/f"}},
		{Time: at(5000), Seq: 5, Intent: 4, Type: "outcome", Status: "failed", Kind: "file.write", Error: "no room"},
	}
	type entry struct {
		Time    time.Time         `json:"timestamp"`
		Level   string            `json:"level"`
		Message string            `json:"message"`
		Fields  map[string]string `json:"fields"`
		Line    string            `json:"line"`
	}
	var got struct{ Logs, LogEntries []entry }
	ask := func(path string) string {
		t.Helper()
		got.Logs, got.LogEntries = nil, nil
		status, b := r.send("GET", path, "", "X-Api-Key", r.key)
		if err := json.Unmarshal([]byte(b), &got); status != 200 || err != nil {
			t.Fatalf("%s: %d %s", path, status, b)
		}
		var all []string
		for _, e := range got.Logs {
			all = append(all, fmt.Sprint(e.Time.UnixMilli()/1000, " ", e.Level, " ", e.Message))
		}
		return strings.Join(all, "\n")
	}
	two := "/v2/sandboxes/" + s.id + "/logs"
	list := []string{
		`1 info begins: command.exec: sh -c "exit 3"`,
		`2 warn ended, exit code 3: command.exec: sh -c "exit 3"`,
		`3 warn denied: command.exec: rm: a rule`,
		`4 debug read: file.read: /f`,
		`5 error failed: file.write: no room`,
	}
	backward := []string{list[4], list[3]}
	for query, want := range map[string][]string{
		"": list, "?cursor=2000": list[1:], "?cursor=2001": list[2:], "?limit=2": list[:2], "?limit=0": nil,
		"?level=warn":       {list[1], list[2], list[4]},
		"?search=exit+code": {list[1]}, "?search=EXIT": nil, "?direction=backward&limit=2": backward,
		"?direction=backward&limit=2&cursor=5000": {list[3], list[2]}, "?direction=forward&cursor=2000&limit=1": {list[1]},
	} {
		if text := ask(two + query); text != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s", query, text)
		}
	}
	ask(two)
	if f := got.Logs[1].Fields; f["command"] != "c-1" || f["exit_code"] != "3" || f["operation"] != "command.exec" || f["record"] != "2" {
		t.Errorf("%v", f)
	}
	ask("/sandboxes/" + s.id + "/logs?start=2000&limit=1")
	var line map[string]string
	if len(got.Logs) != 1 || len(got.LogEntries) != 1 || json.Unmarshal([]byte(got.Logs[0].Line), &line) != nil || line["logger"] == "" ||
		line["level"] != "warn" || "2 warn "+line["message"] != list[1] || line["command"] != "c-1" ||
		got.LogEntries[0].Message != line["message"] {
		t.Errorf("the first generation: %+v", got)
	}
	for _, q := range []string{
		"limit=1001", "limit=-1", "limit=x", "cursor=-1", "cursor=x", "level=fatal", "direction=up", "search=" + strings.Repeat("x", 257),
	} {
		if status, b := r.send("GET", two+"?"+q, "", "X-Api-Key", r.key); status != 400 {
			t.Errorf("%s: %d %s", q, status, b)
		}
	}
	if status, b := r.send("GET", "/v2/sandboxes/ws-00000000/logs", "", "X-Api-Key", r.key); status != 404 {
		t.Errorf("of none: %d %s", status, b)
	}
}

// The end of what a detached command wrote is shown when it has ended, at that time, and a bounded part of it.
func TestLogsOfOutput(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	p := principal.Principal{Kind: principal.User, UID: 7}
	detach := func(script string) id.Command {
		t.Helper()
		cmd, err := r.gate.Detach(t.Context(), p, s.id, execapi.ExecParams{Argv: []string{"sh", "-c", script}}, false)
		if err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ended := detach("for i in $(seq 150); do echo line-$i; done; printf 'no\\376end'")
	if _, _, err := r.gate.Wait(t.Context(), p, s.id, ended); err != nil {
		t.Fatal(err)
	}
	detach("echo runs; exec sleep 1000")
	ask := func(query string) (messages []string, last time.Time) {
		t.Helper()
		var got struct {
			Logs []struct {
				Time    time.Time         `json:"timestamp"`
				Message string            `json:"message"`
				Fields  map[string]string `json:"fields"`
			}
		}
		status, b := r.send("GET", "/v2/sandboxes/"+s.id+"/logs"+query, "", "X-Api-Key", r.key)
		if err := json.Unmarshal([]byte(b), &got); status != 200 || err != nil {
			t.Fatalf("%d %s", status, b)
		}
		for _, e := range got.Logs {
			if e.Fields["command"] != string(ended) || e.Fields["operation"] != "output" {
				t.Errorf("%+v", e)
			}
			messages, last = append(messages, e.Message), e.Time
		}
		return messages, last
	}
	all, when := ask("")
	if len(all) != 100 || all[0] != "line-52" || all[98] != "line-150" || all[99] != "no\uFFFDend" {
		t.Fatalf("%q", all)
	}
	if newer, _ := ask(fmt.Sprintf("?cursor=%d", when.UnixMilli()+1)); len(newer) != 0 {
		t.Errorf("what is newer: %q", newer)
	}
	if some, _ := ask("?search=line-15"); len(some) != 1 || some[0] != "line-150" {
		t.Errorf("%q", some)
	}
	if some, _ := ask("?direction=backward&limit=2"); len(some) != 2 || some[0] != all[99] || some[1] != all[98] {
		t.Errorf("backward: %q", some)
	}
}
