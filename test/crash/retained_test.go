package crash_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// tell writes the settings that the next daemon reads.
func (h *host) tell(t *testing.T, settings string) (up func() result) {
	t.Helper()
	path := h.dir + "/carreld.yaml"
	must(t, os.WriteFile(path, []byte(settings), 0o644))
	return func() result {
		return h.try(append([]string{"up", "--detach", "--prefix", h.prefix, "--config", path}, h.flags()...)...)
	}
}

// Killed while a home is removed that was kept for its time: the next start removes what is
// left of it, and of the word of it, and homes that are to stay do.
func TestRetentionPoints(t *testing.T) {
	for _, p := range hostScenarios[4].points {
		t.Run(p, func(t *testing.T) {
			h := newHost(t)
			up := h.tell(t, "home_retention: 1h\n")
			if r := up(); r.code != 0 {
				t.Fatal(r)
			}
			h.carrel(t, "create", "crk kept")
			h.carrel(t, "exec", "crk kept", "--", "/bin/sh", "-c", "mkdir -p a/b; echo kept > a/b/file")
			home := strings.TrimSpace(h.carrel(t, "destroy", "crk kept"))
			var list []struct {
				Key, Home string
				Expires   string `json:"expires_at"`
			}
			must(t, json.Unmarshal([]byte(h.carrel(t, "ls", "--retained", "-o", "json")), &list))
			if len(list) != 1 || list[0].Key != "crk kept" || list[0].Home != home || list[0].Expires == "" {
				t.Errorf("listed: %+v", list)
			}
			if out := h.carrel(t, "ls", "--retained"); !strings.Contains(out, home) || !strings.Contains(out, "crk kept") {
				t.Errorf("listed:\n%s", out)
			}
			if b, err := os.ReadFile(home + "/a/b/file"); err != nil || string(b) != "kept\n" {
				t.Errorf("%q, %v", b, err)
			}
			h.settled(t)
			h.look(t, check.Expect{})
			// A shorter time takes effect with the next start.
			daemon, err := h.part("daemon")
			must(t, err)
			must(t, kill(daemon))
			up = h.tell(t, "home_retention: 1ms\n")
			name := h.armed(t, p)
			// It ends there or later. What could not be removed at this start is tried at the next one.
			until(t, p, func() bool { up(); return h.fired(name, 0) })
			// What fired says so before it ends, so that up may meet it alive: as a supervisor does, start again what has ended.
			until(t, "the end of the home", func() bool {
				r := up()
				return r.code == 0 && h.try("ls", "--retained", "-o", "json").out == "[]\n"
			})
			if _, err := os.Lstat(home); err == nil {
				t.Errorf("%s is there still", home)
			}
			h.settled(t)
			h.look(t, check.Expect{})
			record, err := os.ReadFile(h.data + "/daemon/audit/audit.jsonl")
			must(t, err)
			if !strings.Contains(string(record), `"kind":"home.remove"`) {
				t.Error("the record does not have it")
			}
			h.gone(t)
		})
	}
}

// What a start puts right is told: by up, as events, and in the record.
func TestMendedIsTold(t *testing.T) {
	h := newHostUp(t)
	h.carrel(t, "create", "--idle-timeout", "never", "crk lost")
	h.carrel(t, "create", "--no-start", "crk swept")
	lost, swept := h.name(t, "crk lost"), h.name(t, "crk swept")
	var d struct {
		PID int `json:"executor_pid"`
	}
	must(t, json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", "crk lost")), &d))
	h.arm(t, "broker.create.dir-made", 1)
	h.try("create", "crk undone") // ends the broker
	daemon, err := h.part("daemon")
	must(t, err)
	must(t, kill(daemon))
	must(t, kill(d.PID))
	must(t, os.WriteFile(h.data+"/broker/reports/"+swept, []byte("{}"), 0o600))
	want := map[string]string{"create_undone": "", "executor_lost": lost, "start_swept": swept}

	r := h.tryUp()
	if r.code != 0 {
		t.Fatal(r)
	}
	t.Logf("up says: %s", r.out)
	for kind, name := range want {
		if !strings.Contains(r.out, kind) || !strings.Contains(r.out, name) {
			t.Errorf("up does not tell of %s %s", kind, name)
		}
	}
	h.settled(t)
	h.look(t, check.Expect{Any: true})
	events := func() string {
		lines, end := h.events(t)
		defer end()
		var said strings.Builder
		for {
			var ev struct{ Kind, Workspace, Note, Key string }
			if err := lines.Decode(&ev); err != nil {
				t.Fatalf("the events end: %v", err)
			}
			if ev.Key == "crk last" {
				return said.String()
			}
			if ev.Kind == "broker.mended" {
				said.WriteString(ev.Workspace + " " + ev.Note + "\n")
			}
		}
	}
	h.carrel(t, "create", "--no-start", "crk last")
	said := events()
	record, err := os.ReadFile(h.data + "/daemon/audit/audit.jsonl")
	must(t, err)
	for kind, name := range want {
		if !strings.Contains(said, name+" "+kind+": ") && !(name == "" && strings.Contains(said, kind+": ")) {
			t.Errorf("no event of %s %s in\n%s", kind, name, said)
		}
		if !strings.Contains(string(record), `"kind":"`+kind+`"`) {
			t.Errorf("no record of %s", kind)
		}
	}
	if r := h.tryUp(); strings.Contains(r.out, "Put right") {
		t.Errorf("told again: %v", r)
	}

	// The daemon lives and the broker comes back.
	h.carrel(t, "start", "crk lost")
	must(t, json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", "crk lost")), &d))
	broker, err := h.part("broker")
	must(t, err)
	must(t, kill(broker))
	must(t, kill(d.PID))
	r = h.tryUp()
	if r.code != 0 || !strings.Contains(r.out, "executor_lost") || strings.Contains(r.out, "start_swept") {
		t.Errorf("with the daemon alive: %v", r)
	}
	h.settled(t)
	all, err := filepath.Glob(h.data + "/broker/reports/*")
	must(t, err)
	if len(all) != 0 {
		t.Errorf("left: %q", all)
	}
	h.gone(t)
}
