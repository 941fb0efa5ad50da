package runbooks_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/policy/rules"
)

func builtin(t *testing.T) []*runbooks.Runbook {
	t.Helper()
	all, err := runbooks.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func engine(t *testing.T) *rules.Engine {
	t.Helper()
	e, err := rules.New(rules.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// There are eleven, and under the usual policy each of their steps that only reads needs no question.
func TestBuiltin(t *testing.T) {
	var names []string
	e := engine(t)
	for _, r := range builtin(t) {
		names = append(names, r.Name)
		if err := r.Check(e); err != nil {
			t.Error(err)
		}
		if r.File != r.Name+".yaml" || len(r.ReadOnly()) == 0 {
			t.Errorf("%s has %d steps that only read", r.File, len(r.ReadOnly()))
		}
	}
	want := []string{"cert", "container", "disk", "load", "logs", "memory", "os", "packages", "ports", "services", "system"}
	if !slices.Equal(names, want) {
		t.Errorf("there are %q", names)
	}
	mine, err := runbooks.Parse("/etc/mine.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Join(want, ", ") + "\n"
	if got := runbooks.Titles(append(builtin(t), mine)); got != known+"mine: A title\n" {
		t.Errorf("a model is told %q", got)
	}
	if got := runbooks.Titles([]*runbooks.Runbook{mine}); got != "mine: A title\n" {
		t.Errorf("of one alone it is told %q", got)
	}
	for _, many := range [][]*runbooks.Runbook{slices.Repeat(builtin(t), 50), slices.Repeat([]*runbooks.Runbook{mine}, 300)} {
		if n := len(runbooks.Titles(many)); n > runbooks.MaxTitles || n < runbooks.MaxTitles-100 {
			t.Errorf("the titles have %d bytes", n)
		}
	}
}

const good = `name: mine
title: A title
match: [word]
parameters:
  - {name: file, pattern: "/[a-z' /$();]+", default: /tmp/a}
steps:
  - {command: "cat {file}", purpose: look, read_only: true}
advice: think
`

// A runbook of another form, or one that says wrongly that a step only reads, is an error that says where and why.
func TestRefused(t *testing.T) {
	e := engine(t)
	r, err := runbooks.Parse("good.yaml", []byte(good))
	if err == nil {
		err = r.Check(e)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ old, text, want string }{
		{"advice: think", "advice: think\nextra: 1", "[9:1]"},
		{"purpose: look", "purpose: look, why: x", "[7:"},
		{"match: [word]", "match: []", "matches no words"},
		{"name: mine", "name: My Runbook", "lower-case"},
		{"title: A title", "title: ''", "its title"},
		{"cat {file}", "cat '{file}'", "outside of quotes"},
		{"cat {file}", `cat \"{file}\"`, "outside of quotes"},
		{"cat {file}", "cat x{file}", "outside of quotes"},
		{"cat {file}", "cat {file}x", "outside of quotes"},
		{"cat {file}", "sh -c 'cat {file} x'", "outside of quotes"},
		{"default: /tmp/a", "default: -x", "its default"},
		{"default: /tmp/a", "default: etc", "its default"},
		{`pattern: "/[a-z' /$();]+"`, `pattern: "["`, "regular expression"},
		{"read_only: true", "read_only: maybe", "7:"},
		{"cat {file}", "rm -r {file}", "says that it only reads"},
		{"cat {file}", "cat /etc/shadow", "says that it only reads"},
		{"cat {file}", "touch {file}", "says that it only reads"},
		{"cat {file}", "systemctl restart ssh", "says that it only reads"},
		{"cat {file}", "cat {file} > /tmp/x", "says that it only reads"},
		{"cat {file}", `cat\nrm`, "one line"},
		{"advice: think", "advice: think\n---\nname: b", "document"},
		{"name: mine\n", "name: mine\nname: b\n", "name"},
	} {
		if strings.Count(good, x.old) != 1 {
			t.Fatalf("%q", x.old)
		}
		r, err := runbooks.Parse("bad.yaml", []byte(strings.Replace(good, x.old, x.text, 1)))
		if err == nil {
			err = r.Check(e)
		}
		if err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "bad.yaml") {
			t.Errorf("%q: %v", x.text, err)
		}
	}
	// A rule that lets a command pass does not make it one that only reads.
	own := "rules: [{id: a, level: SAFE, risk_score: 0, reason: x, match: {capability_any: [filesystem.write]}}]\n"
	bare, err := rules.New(rules.Config{NoBuiltin: true, Rules: &rules.Source{Name: "own", Data: []byte(own)}})
	if err != nil {
		t.Fatal(err)
	}
	r, err = runbooks.Parse("bad.yaml", []byte(strings.Replace(good, "cat {file}", "touch {file}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(bare); err == nil || !strings.Contains(err.Error(), "changes something: filesystem.write") {
		t.Error(err)
	}
	// What says that it changes something is not held to it.
	mutating := strings.NewReplacer("read_only: true", "read_only: false", "cat {file}", "rm {file}").Replace(good)
	if r, err := runbooks.Parse("b", []byte(mutating)); err != nil || r.Check(e) != nil {
		t.Error(err, r.Check(e))
	}
}

// A value is one word of a shell, whatever is in it.
func TestValuesAreWords(t *testing.T) {
	r, err := runbooks.Parse("good.yaml", []byte(strings.Replace(good, "cat {file}", "printf '<%s>' a {file} b", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"/a b", "/it's", "/$(id)", "/a; id", "/'$(id)'"} {
		text, err := r.Text(map[string]string{"file": v})
		if err != nil {
			t.Fatal(err)
		}
		_, command, _ := strings.Cut(text, "look\n  ")
		command, _, _ = strings.Cut(command, "\n")
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", command).Output()
		if want := fmt.Sprintf("<a><%s><b>", v); err != nil || string(out) != want {
			t.Errorf("%s printed %q, %v", command, out, err)
		}
	}
	for values, want := range map[string]map[string]string{
		"does not begin": {"file": "-rf"}, "matches": {"file": "/A"}, "no parameter": {"other": "x"}, "one line": {"file": "/a\nb"},
	} {
		if _, err := r.Text(want); err == nil || !strings.Contains(err.Error(), values) {
			t.Errorf("%v: %v", want, err)
		}
	}
	loose, err := runbooks.Parse("good.yaml", []byte(strings.Replace(good, `pattern: "/[`, `pattern: "[-/][`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := loose.Text(map[string]string{"file": "-rf"}); err == nil {
		t.Error("an option is a value")
	}
	if text, err := r.Text(nil); err != nil || !strings.Contains(text, "a '/tmp/a' b") || !strings.Contains(text, "think") {
		t.Errorf("%q, %v", text, err)
	}
}
