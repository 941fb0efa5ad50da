package recommend_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/recommend"
	"github.com/carrel-dev/carrel/internal/agent/runbooks"
)

// times is a turn in which a command was approved so often.
func times(n int, target, text string) recommend.Turn {
	return recommend.Turn{Approved: slices.Repeat([]recommend.Command{{Target: target, Text: text}}, n)}
}

// A command that was approved three times on one target is recommended, with the line that lets it pass where there is one.
func TestApprovedOften(t *testing.T) {
	secret := "ghp_" + strings.Repeat("aB3dE6gH9", 4)
	for name, c := range map[string]struct {
		turns []recommend.Turn
		kind  recommend.Kind
		line  string // "none" where nothing is recommended
	}{
		"twice":          {[]recommend.Turn{times(2, "workspace demo", "make test")}, 0, "none"},
		"on two targets": {[]recommend.Turn{times(2, "host", "make"), times(2, "remote a", "make")}, 0, "none"},
		"of two kinds":   {[]recommend.Turn{times(2, "host", "make"), times(2, "host", "make a")}, 0, "none"},
		"in three turns": {
			slices.Repeat([]recommend.Turn{times(1, "workspace demo", "git push origin main")}, 3), recommend.Allow,
			"carrel policy allow --workspace demo -- git push origin main",
		},
		"on a host":     {[]recommend.Turn{times(3, "host", "systemctl restart nginx")}, recommend.Session, ""},
		"shell text":    {[]recommend.Turn{times(3, "workspace demo", "echo a > b; true")}, recommend.Session, ""},
		"a variable":    {[]recommend.Turn{times(3, "workspace demo", "A=b make")}, recommend.Session, ""},
		"an option":     {[]recommend.Turn{times(3, "workspace -demo x", "make")}, recommend.Session, ""},
		"with a secret": {[]recommend.Turn{times(4, "workspace demo", "curl "+secret)}, recommend.Session, ""},
		"several lines": {[]recommend.Turn{times(4, "host", "a\nb")}, 0, "none"},
		"too long":      {[]recommend.Turn{times(4, "host", strings.Repeat("a", 201))}, 0, "none"},
		"the most of all": {
			[]recommend.Turn{times(3, "host", "make"), times(4, "workspace demo", "ls")},
			recommend.Allow,
			"carrel policy allow --workspace demo -- ls",
		},
	} {
		got := recommend.Of(c.turns, nil, nil)
		switch {
		case c.line == "none" && len(got) == 0:
		case c.line == "none" || len(got) != 1 || got[0].Kind != c.kind || got[0].Line != c.line:
			t.Errorf("%s: %+v", name, got)
		case strings.Contains(got[0].Text+got[0].Line, secret):
			t.Errorf("%s: a secret is shown: %+v", name, got)
		}
	}
}

// A runbook fits the newest question by a whole word, and not one that was read or an older question.
func TestRunbook(t *testing.T) {
	books, err := runbooks.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		turns []recommend.Turn
		want  string
	}{
		"fits":         {[]recommend.Turn{{Question: "Why is the Disk full?"}}, "disk"},
		"was read":     {[]recommend.Turn{{Question: "why is the disk full?", Read: []string{"disk"}}}, ""},
		"another read": {[]recommend.Turn{{Question: "why is the disk full?", Read: []string{"load"}}}, "disk"},
		"a part":       {[]recommend.Turn{{Question: "diskette"}}, ""},
		"an older one": {[]recommend.Turn{{Question: "hello"}, {Question: "why is the disk full?"}}, ""},
		"none":         {nil, ""},
	} {
		got := recommend.Of(c.turns, books, nil)
		if (len(got) > 0) != (c.want != "") || len(got) > 0 && (got[0].Kind != recommend.Runbook || got[0].Text != c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	all := []recommend.Turn{times(3, "host", "make")}
	all[0].Question = "why is the disk full?"
	if got := recommend.Of(all, books, []string{"disk_used is 91%", "load is 5", "more"}); len(got) != recommend.Most {
		t.Errorf("%+v", got)
	}
}
