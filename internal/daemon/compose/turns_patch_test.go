package compose_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

// changing is a plan that changes a file.
func changing(target, file string) string {
	b, _ := json.Marshal(map[string]any{
		"type": "file_patch_plan", "goal": "g", "request_intent": "update", "target": target, "files_changed": []string{file},
		"unified_diff": "--- a/" + file + "\n+++ b/" + file + "\n@@ -1 +1 @@\n-guess\n+b\n", "risk_summary": "r",
		"verification_commands": []any{}, "rollback_commands": []any{}, "permission_changes": []any{},
	})
	return string(b)
}

// A change to files reads them, so one of which tools may not read a file is refused before anybody opens it, also where only the plan
// was asked for. Where a file is read, that is recorded, and what the agent is told of it has no secrets.
func TestPatchReadsNothing(t *testing.T) {
	files := []string{".env", "web/.env", ".ssh/id_ed25519", "conf/secrets.yaml"}
	for _, target := range []string{"host", "remote web-1"} {
		for two := range slices.Chunk(files, 2) {
			h, told := proposing(t, judged, changing(target, two[0]), changing(target, two[1]))
			d := &hostsDouble{local: true, remotes: []string{"web-1"}, patch: func(runtime.HostPatch) (runtime.HostPatched, error) {
				return runtime.HostPatched{}, errors.New(`line 1 is "TOKEN=abc"`)
			}}
			at := len(h.records())
			h.turn(d)
			for _, file := range two {
				if r := next(t, told); r.Outcome != "refused" || !strings.Contains(r.Why, "does not let tools read it") || len(d.all()) > 0 {
					t.Errorf("%s: %s: %+v, ran %q", target, file, r, d.all())
				}
			}
			denied := 0
			for _, r := range h.records()[at:] {
				if r.Type == "denial" {
					denied++
				}
			}
			if denied != 2 {
				t.Errorf("%d refusals are recorded", denied)
			}
		}
	}
	// A directory that is reached by a link leads to a file that tools may not read.
	h, told := proposing(t, judged, changing("host", "app.conf"), changing("host", "app.conf"))
	h.redacts()
	n := 0
	d := &hostsDouble{local: true, patch: func(runtime.HostPatch) (runtime.HostPatched, error) {
		if n++; n == 1 {
			return runtime.HostPatched{}, errors.New("cannot change it: password=hunter2 is there")
		}
		return runtime.HostPatched{Digest: "sha256:aa", Diff: "+b\n", Files: []string{"/home/alice/.ssh/id_rsa"}}, nil
	}}
	at := len(h.records())
	h.turn(d)
	if r := next(t, told); r.Outcome != "invalid" || strings.Contains(r.Why, "hunter2") || !strings.Contains(r.Why, "[redacted:") {
		t.Errorf("%+v", r)
	}
	if r := next(t, told); r.Outcome != "refused" {
		t.Errorf("%+v", r)
	}
	reads := 0
	for _, r := range h.records()[at:] {
		if r.Type == "read" && strings.Contains(string(r.Action), `{"kind":"patch.plan","target":"host","files":["app.conf"]}`) {
			reads++
		}
	}
	if reads != 2 {
		t.Errorf("%d readings are recorded", reads)
	}
}
