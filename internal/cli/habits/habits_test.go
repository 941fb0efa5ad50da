package habits_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli/habits"
)

var names = strings.Fields("create ls inspect start stop restart destroy run exec shell port kill undo up down")

func TestNear(t *testing.T) {
	for word, want := range map[string]string{
		"crate": "create", "inspekt": "inspect", "satrt": "start", "exce": "exec", "prot": "port", "shel": "shell", "strat": "start",
		// What merely looks like something that ends or removes is not suggested.
		"info": "", "pull": "", "kil": "", "destory": "", "undos": "", "stpo": "", "dwon": "", "domn": "",
		"x": "", "": "", "frobnicate": "", strings.Repeat("create", 20): "",
	} {
		if got := habits.NearCommand(word, names); got != want {
			t.Errorf("%q: %q, not %q", word, got, want)
		}
	}
	if got := habits.Near("memry", []string{"swap", "memory"}); got != "memory" {
		t.Errorf("%q", got)
	}
}

func TestAnswers(t *testing.T) {
	if a := habits.Command("Images"); !strings.Contains(a, "carrel create") {
		t.Errorf("%q", a)
	}
	if a := habits.Command("frobnicate"); a != "" {
		t.Errorf("%q", a)
	}
	if a := habits.Flag("run", "privileged"); !strings.Contains(a, "--allow userns") {
		t.Errorf("%q", a)
	}
	if a, b := habits.Flag("exec", "user"), habits.Flag("run", "user"); a == b || a == "" || b == "" {
		t.Errorf("%q, %q", a, b)
	}
	if a := habits.Flag("ls", "privileged"); a != "" {
		t.Errorf("%q", a)
	}
}

func TestSet(t *testing.T) {
	there := []string{"@apt", "@cargo", "@npm", "@pip"}
	for name, want := range map[string]string{"@pypi": "@pip", "@NodeJS": "@npm", "@npn": "@npm", "@golang": "", "@nobody": ""} {
		if got := habits.Set(name, there); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
}

func FuzzNear(f *testing.F) {
	f.Add("crate")
	f.Fuzz(func(t *testing.T, word string) {
		if n := habits.NearCommand(word, names); n == "kill" || n == "destroy" || n == "undo" || n == "down" || n == "stop" {
			t.Errorf("%q: %q", word, n)
		}
	})
}
