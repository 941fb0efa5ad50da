package e2b_test

import (
	"encoding/json"
	"net/http"
	"testing"
)

// What the workspace holds is told by name and kind, and a time that is none is refused with its form.
func TestChanges(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	in := []string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access}
	status, text := r.send("GET", "/changes?path=src&since=2026-01-31T15:04:05Z&limit=5", "", in...)
	var got struct {
		Changes []struct{ Path, Type string }
		More    bool
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if len(got.Changes) != 1 || got.Changes[0].Path != "/home/work/src" || got.Changes[0].Type != "file" || got.More {
		t.Errorf("%s", text)
	}
	for _, bad := range []string{"since=yesterday", "limit=x", "since=1960-01-01T00:00:00Z", "username=root", "limit=-1"} {
		if status, text := r.send("GET", "/changes?"+bad, "", in...); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
}
