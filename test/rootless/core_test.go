package rootless_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The limit that keeps crashes from the host's handler of core dumps holds, also where executor and command
// share an id. A user who may have no core files cannot have it either: the report says so, and commands run.
func TestCoreDumps(t *testing.T) {
	u := newUser(t)
	state := func() string {
		b, err := os.ReadFile(filepath.Join(u.home, "proof.json"))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?s)"core-dumps",.*?"state": *"(\w+)"`).FindSubmatch(b)
		if m == nil {
			t.Fatalf("no core-dumps in %s", b)
		}
		return string(m[1])
	}
	const script = "ulimit -c 0; ulimit -c unlimited; grep -c 'Max core file size *1 *1 ' /proc/self/limits"
	r := u.run("--here", "--report", "../proof.json", "--", "bash", "-c", script)
	if s := state(); r.code != 0 || strings.TrimSpace(r.out) != "1" || s != "verified" {
		t.Errorf("%+v, %s", r, s)
	}
	r = u.sh("cd project && ulimit -c 0; exec " + filepath.Join(programs, "carrel") + " run --here --report ../proof.json -- true")
	if s := state(); r.code != 0 || s != "unavailable" || strings.Contains(r.err, "core-dumps") {
		t.Errorf("%+v, %s", r, s)
	}
}
