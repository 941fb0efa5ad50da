package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// Lines by name and by number count, and of an id without a name the number is told.
func TestSubordinate(t *testing.T) {
	for _, c := range []struct {
		name, uid, subuid, subgid string
		state                     probe.State
		found, remedy             string
	}{
		{"me", "1234", "me:100000:65536\n", "me:100000:65536\n", probe.Yes, "me has subordinate ids", ""},
		{"me", "1234", "1234:100000:65536\n", "me:100000:65536\n", probe.Yes, "me has subordinate ids", ""},
		{"me", "", "me:100000:65536\n", "me:100000:65536\n", probe.Yes, "me has subordinate ids", ""},
		{
			"me", "1234", "you:1:9\n", "me:100000:65536\n", probe.No, "subuid gives me no ids",
			"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 me",
		},
		{"me", "1234", "me:100000:1\n", "me:100000:65536\n", probe.No, "subuid gives me no ids", "usermod"},
		{"me", "1234", "me:100000:many\nme:1:2:3\n", "me:100000:65536\n", probe.No, "subuid gives me no ids", "usermod"},
		{"me", "1234", "me:100000:65536\n", "", probe.No, "subgid gives me no ids", "usermod"},
		{
			"", "1234", "me:100000:65536\n:1:65536\n", "", probe.No, "subuid gives uid 1234 no ids",
			"echo 1234:100000:65536 | tee -a DIR/subuid DIR/subgid",
		},
		{
			"", "1234", "1234:100000:65536\n", "1234:100000:65536\n", probe.No, "uid 1234 has subordinate ids and no entry in passwd",
			"useradd --no-create-home --uid 1234 NAME",
		},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"subuid": c.subuid, "subgid": c.subgid} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		state, found, remedy := probe.Subordinate(c.name, c.uid, dir+"/subuid", dir+"/subgid")
		if state != c.state || !strings.Contains(found, c.found) || !strings.Contains(strings.ReplaceAll(remedy, dir, "DIR"), c.remedy) ||
			(remedy == "") != (c.remedy == "") {
			t.Errorf("%+v: %s, %q, %q", c, state, found, remedy)
		}
	}
}
