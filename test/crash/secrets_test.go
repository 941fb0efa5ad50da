package crash_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// keyPoints are those that TestKeyPoints arms, and secretPoints those of TestSecretPoints.
var (
	keyPoints    = []string{"daemon.up.secrets-key-written", "daemon.up.secrets-key-linked"}
	secretPoints = []string{"daemon.secret.set", "daemon.secret.rotated", "daemon.secret.removed"}
)

// The first daemon is killed while it makes the key of its secrets: the next one makes it, or has it whole, and leaves
// nothing beside it. What is sealed with it opens from then on.
func TestKeyPoints(t *testing.T) {
	value := filepath.Join(t.TempDir(), "value")
	must(t, os.WriteFile(value, []byte("a value that is kept"), 0o600))
	for _, point := range keyPoints {
		t.Run(point, func(t *testing.T) {
			h := newHost(t)
			h.arm(t, point, 1)
			if r := h.tryUp(); r.code == 0 || !h.fired(point, 0) {
				t.Fatalf("the daemon was not killed at %s: %v", point, r)
			}
			before, _ := os.ReadFile(h.data + "/daemon/secrets.key")
			h.up(t)
			keys, err := filepath.Glob(h.data + "/daemon/secrets.key*")
			if err != nil || len(keys) != 1 {
				t.Errorf("there are %v, %v", keys, err)
			}
			after, err := os.ReadFile(h.data + "/daemon/secrets.key")
			if made := point == keyPoints[1]; err != nil || made != (len(before) > 0) || made && string(before) != string(after) {
				t.Errorf("another start made another key: %v", err)
			}
			h.carrel(t, "secret", "set", "A_KEY", "--host", "a.example", "--file", value)
			h.end(t, "daemon")
			h.up(t)
			h.carrel(t, "secret", "rotate", "A_KEY", "--file", value) // which opens what is there
			h.settled(t)
			h.look(t, check.Expect{})
			h.gone(t)
		})
	}
}

// The daemon is killed after a secret was stored, had got another value or was removed, and before the client was
// answered: it is so when the client looks, and saying it again harms nothing.
func TestSecretPoints(t *testing.T) {
	h := newHostUp(t)
	value := filepath.Join(t.TempDir(), "value")
	must(t, os.WriteFile(value, []byte("a value that is kept"), 0o600))
	crash := func(point string, args ...string) {
		t.Helper()
		mark := h.logEnd()
		h.arm(t, point, 1)
		if r := h.try(args...); r.code == 0 {
			t.Errorf("%q was answered by a daemon that ended at %s", args, point)
		}
		h.up(t)
		if !h.fired(point, mark) {
			t.Fatalf("nothing ended at %s", point)
		}
		h.settled(t)
	}
	type secret struct {
		Name    string
		Rotated *string `json:"rotated_at"`
	}
	list := func() (all []secret) {
		t.Helper()
		must(t, json.Unmarshal([]byte(h.carrel(t, "secret", "ls", "-o", "json")), &all))
		return all
	}
	set := []string{"secret", "set", "A_KEY", "--host", "a.example", "--file", value}
	rotate := []string{"secret", "rotate", "A_KEY", "--file", value}
	crash(secretPoints[0], set...)
	if all := list(); len(all) != 1 || all[0].Rotated != nil {
		t.Fatalf("it is not there once: %v", all)
	}
	if r := h.try(set...); r.code == 0 || !strings.Contains(r.err, "carrel secret rotate A_KEY") {
		t.Errorf("it was stored again: %v", r)
	}
	crash(secretPoints[1], rotate...)
	if all := list(); len(all) != 1 || all[0].Rotated == nil {
		t.Errorf("it has no other value: %v", all)
	}
	h.carrel(t, rotate...)
	crash(secretPoints[2], "secret", "rm", "A_KEY")
	if all := list(); len(all) != 0 {
		t.Errorf("it is there still: %v", all)
	}
	if r := h.try("secret", "rm", "A_KEY"); r.code == 0 || !strings.Contains(r.err, "cannot find secret A_KEY") {
		t.Errorf("it was removed again: %v", r)
	}
	h.carrel(t, set...)
	h.carrel(t, "secret", "rm", "A_KEY")
	h.settled(t)
	h.look(t, check.Expect{})
	h.gone(t)
}
