package rootless_test

import (
	"strings"
	"testing"
)

// A user's own carrel runs tasks, also where executor and commands share one id.
func TestOwnTasks(t *testing.T) { eachOwner(t, ownTasks) }

func ownTasks(t *testing.T, u *user) {
	u.must("create", "one")
	run := func(script string) result {
		t.Helper()
		return u.carrel("task", "run", "-p", "say hello", "one", "--", "sh", "-c", script)
	}
	r := run(`read -r prompt; echo '{"jsonrpc":"2.0","method":"report_message","params":{"text":"hello"}}'
		echo '{"jsonrpc":"2.0","method":"report_completion","params":{}}'`)
	if r.code != 0 || !strings.Contains(r.out, "2 message {\"text\":\"hello\"}\n3 completion {}\n") {
		t.Errorf("%+v", r)
	}
	if r := run(`exit 4`); r.code != 1 || !strings.Contains(r.err, "Executor terminated unexpectedly: it exited with 4") {
		t.Errorf("%+v", r)
	}
	if out := u.must("task", "ls", "one"); !strings.Contains(out, "completed") || !strings.Contains(out, "failed") {
		t.Errorf("listed are\n%s", out)
	}
}
