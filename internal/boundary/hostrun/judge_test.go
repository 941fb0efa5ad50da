package hostrun_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A required control without a finding, or with one that does not hold, is unmet, and has a remedy.
func TestJudge(t *testing.T) {
	for _, p := range allProfiles {
		var all [][3]string
		required := 0
		for _, c := range hostrun.Judge(p).Controls {
			all = append(all, [3]string{c.ID, "ok", "holds"})
			if c.Required {
				required++
			}
			if c.Required && (c.State != workspace.Unavailable || c.Remedy == "") {
				t.Errorf("%s: %s without a finding is %s, remedy %q", p, c.ID, c.State, c.Remedy)
			}
		}
		if unmet := hostrun.Judge(p, all...).Unmet(); unmet != nil {
			t.Errorf("%s: %v are unmet", p, unmet)
		}
		for _, f := range all {
			r := hostrun.Judge(p, append(all, [3]string{f[0], "no", "open"})...)
			for _, c := range r.Unmet() {
				required--
				if c.ID != f[0] || c.State != workspace.Failed || !strings.Contains(c.Evidence, "open") {
					t.Errorf("%s: %s broken makes %s %s: %s", p, f[0], c.ID, c.State, c.Evidence)
				}
			}
		}
		if required != 0 {
			t.Errorf("%s: %d required controls are met when they are broken", p, required)
		}
	}
}

func TestJudgeMounts(t *testing.T) {
	path := t.TempDir() + "/mountinfo"
	const held = `20 1 8:1 / / ro,nosuid,relatime - ext4 /dev/sda1 rw
21 20 0:5 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw
22 20 0:6 / /var/tmp rw,nosuid,nodev - tmpfs tmpfs rw
23 20 0:7 / /dev/pts rw,nosuid - devpts devpts rw
24 20 8:1 / /srv/a\040b ro,nosuid - ext4 /dev/sda1 rw
`
	const project = `30 20 8:1 / /srv/p rw,nosuid,nodev - ext4 /dev/sda1 rw
31 30 8:1 / /srv/p/.git ro,nosuid,nodev - ext4 /dev/sda1 rw
`
	for name, c := range map[string]struct {
		mounts string
		p      hostrun.Profile
		locked string
		ok     bool
	}{
		"held":               {held, hostrun.ReadOnly, "", true},
		"none":               {"", hostrun.ReadOnly, "", false},
		"writable root":      {strings.Replace(held, "/ / ro", "/ / rw", 1), hostrun.ReadOnly, "", false},
		"writable mount":     {strings.Replace(held, "b ro", "b rw", 1), hostrun.ReadOnly, "", false},
		"set-uid":            {strings.Replace(held, "b ro,nosuid", "b ro", 1), hostrun.ReadOnly, "", false},
		"project, read-only": {held + project, hostrun.ReadOnly, "", false},
		"project":            {held + project, hostrun.WorkspaceWrite, ".git", true},
		"not locked":         {held + project, hostrun.WorkspaceWrite, ".envrc", false},
		"writable name":      {held + strings.Replace(project, ".git ro", ".git rw", 1), hostrun.WorkspaceWrite, ".git", false},
	} {
		if err := os.WriteFile(path, []byte(c.mounts), 0o600); err != nil {
			t.Fatal(err)
		}
		var locked []string
		if c.locked != "" {
			locked = []string{c.locked}
		}
		ok, says, err := hostrun.JudgeMounts(path, c.p, "/srv/p", locked...)
		if err != nil || ok != c.ok {
			t.Errorf("%s: %t, %s, %v", name, ok, says, err)
		}
	}
	if err := os.WriteFile(path, []byte("20 1 8:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := hostrun.JudgeMounts(path, hostrun.ReadOnly, "/"); err == nil {
		t.Error("a line that cannot be understood is no error")
	}
}

// Where a profile cannot hold a command, the command does not run, and less is not done instead: here inside of one that
// may make no namespace.
func TestNothingLess(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		for p, runs := range map[hostrun.Profile]bool{hostrun.ReadOnly: false, hostrun.WorkspaceWrite: false, hostrun.None: true} {
			inner, err := json.Marshal(hostrun.Command{Argv: []string{"echo", "ran"}, Profile: p, Dir: u.in(t, "project"), AllowRoot: true})
			if err != nil {
				t.Fatal(err)
			}
			r := u.sh(t, hostrun.ReadOnly, asked+"='"+string(inner)+"' "+program(t, u))
			var a answer
			if err := json.Unmarshal(r.Stdout.Head, &a); err != nil {
				t.Fatalf("%v: %s%s", err, r.Stdout.Text(), r.Stderr.Text())
			}
			ran := a.Result.Stdout.Text() == "ran\n"
			if ran != runs || !runs && a.Kind != "failed_precondition" || p == hostrun.ReadOnly && !strings.Contains(a.Error, "so it was not run") {
				t.Errorf("%s: ran %t, %s: %s", p, ran, a.Kind, a.Error)
			}
		}
	})
}
