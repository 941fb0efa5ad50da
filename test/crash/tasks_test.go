package crash_test

import (
	"encoding/json"
	"testing"
)

// task runs a task that ends at once.
func task(key string) []string {
	return []string{
		"task", "run", "-p", "hello", key, "--", "/bin/sh", "-c", `read -r prompt; echo '{"jsonrpc":"2.0","id":1,"result":{}}'`,
	}
}

// tasksEnded sees that no task seems to run, and that the one of after the crash is well.
func tasksEnded(t *testing.T, h *host, key string) {
	t.Helper()
	var all []struct{ State, Reason string }
	if err := json.Unmarshal([]byte(h.carrel(t, "task", "ls", "-o", "json", key)), &all); err != nil {
		t.Fatal(err)
	}
	for i, x := range all {
		if i == 0 && x.State != "completed" || x.State == "running" {
			t.Errorf("task %d, the newest first: %+v", i, x)
		}
	}
	if len(all) == 0 {
		t.Error("no task is kept")
	}
}
