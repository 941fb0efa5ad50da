//go:build linux

package programs_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What is made inside, with every capability in it, has none over what it was given.
func TestNestedNamespaces(t *testing.T) {
	(&program{needs: map[string]string{"/usr/bin/python3": "python3"}}).check(t)
	attack := testdata(t) + "/nested.py"
	for _, by := range callers(t) {
		for name, flags := range map[string][]string{
			"userns":            {"--here", "--allow", "userns"},
			"userns and mounts": {"--allow", "userns", "--allow", "mounts"},
		} {
			t.Run(by.name+"/"+name, func(t *testing.T) {
				dir := by.project(t, "nested")
				args := append(append([]string{}, flags...), "-v", testdata(t)+":/mnt/attack:ro", "--", "/usr/bin/python3", "/mnt/attack/nested.py")
				r := by.run(t, dir, args...)
				if r.code != 0 || strings.Contains(r.out, "REACHED") || !strings.Contains(r.out, "tried ") {
					t.Errorf("%+v", r)
				}
				if !strings.Contains(r.err, "nested-namespaces is off, as --allow userns asked for") {
					t.Errorf("nobody is told: %s", r.err)
				}
				left, err := os.ReadDir(dir)
				if err != nil || len(left) > 0 {
					t.Errorf("left in the project: %v, %v", left, err)
				}
			})
		}
	}
	// The attacks work where nothing is locked.
	if os.Geteuid() != 0 {
		return
	}
	c := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-ec", `mount -t tmpfs x /tmp && mkdir "$2" && mount -t tmpfs x "$2" &&
		mkdir "$2/a" "$2/b" && mount -o bind "$2/a" "$2/b" && mount -o remount,bind,ro,nosuid,nodev "$2/b" && exec /usr/bin/python3 "$1" plant "$2"`,
		"sh", attack, base+"/plant")
	out, err := c.CombinedOutput()
	for _, want := range []string{
		"REACHED less restricted: " + base + "/plant/b\n", "REACHED taken away: " + base + "/plant/b\n",
		"REACHED uncovered: " + base + "/plant\n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q where nothing is locked: %v: %s", want, err, out)
		}
	}
}

// Openings that weaken a project mount are refused with a writable one, and the error names them.
func TestOpeningsThatAreRefused(t *testing.T) {
	for _, by := range callers(t) {
		dir := by.project(t, "refused")
		for _, c := range []struct {
			flags []string
			want  string
		}{
			{[]string{"--here", "--allow", "userns", "--allow", "mounts"}, "cannot allow mounts with the writable directory"},
			{[]string{"--here", "--allow", "io_uring"}, "cannot allow io_uring with the writable directory"},
			{[]string{"--allow", "mounts"}, "cannot allow mounts without userns"},
			{[]string{"--allow", "ptrace-self"}, "gdb and strace of a workspace's own processes work without it"},
			{[]string{"--allow", "root"}, "no such opening"},
		} {
			if r := by.run(t, dir, append(c.flags, "--", "true")...); r.code != 125 || !strings.Contains(r.err, c.want) {
				t.Errorf("%s: %v: %+v", by.name, c.flags, r)
			}
		}
	}
}

// A workspace that stays keeps what it was made with, over its starts, and says so; another
// that was not made so is closed.
func TestCreateWithOpenings(t *testing.T) {
	for _, by := range callers(t) {
		t.Run(by.name, func(t *testing.T) {
			dir := by.project(t, "create")
			carrel := func(args ...string) result {
				t.Helper()
				return finish(by.command(t, dir, base+"/bin/carrel", args...))
			}
			t.Cleanup(func() {
				if r := carrel("destroy", "--purge", "opened", "closed"); r.code != 0 {
					t.Errorf("%+v", r)
				}
				if by.id == 0 {
					return
				}
				if r := carrel("down"); r.code != 0 { // the caller's own, which was started for this
					t.Errorf("%+v", r)
				}
			})
			if r := carrel("create", "--allow", "userns", "opened"); r.code != 0 ||
				!strings.Contains(r.err, "nested-namespaces is off, as --allow userns asked for") {
				t.Fatalf("%+v", r)
			}
			const nest = "unshare -U true && echo nested"
			for _, again := range []bool{false, true} {
				if again {
					if r := carrel("stop", "opened"); r.code != 0 {
						t.Fatalf("%+v", r)
					}
				}
				if r := carrel("exec", "opened", "--", "sh", "-c", nest); r.out != "nested\n" {
					t.Errorf("stopped and started again: %v: %+v", again, r)
				}
			}
			if r := carrel("inspect", "-o", "json", "opened"); !strings.Contains(r.out, `"opened": "userns"`) ||
				!strings.Contains(r.out, "\"allow\": [\n    \"userns\"\n  ]") {
				t.Errorf("%+v", r)
			}
			if r := carrel("inspect", "opened"); !strings.Contains(r.out, "allows") {
				t.Errorf("%+v", r)
			}
			if r := carrel("create", "closed"); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			if r := carrel("exec", "closed", "--", "sh", "-c", nest); r.code == 0 || r.out != "" {
				t.Errorf("%+v", r)
			}
			if r := carrel("create", "--allow", "userns", "closed"); r.code == 0 || !strings.Contains(r.err, "it is there already") {
				t.Errorf("%+v", r)
			}
			if r := carrel("create", "--profile", "chat", "--allow", "userns", "chatty"); r.code == 0 || !strings.Contains(r.err, "chat.allow") {
				t.Errorf("%+v", r)
			}
			if r := carrel("audit", "show", "-o", "json"); !strings.Contains(r.out, "userns") || !strings.Contains(r.out, "denied") {
				t.Errorf("the record does not say it: %+v", r)
			}
		})
	}
}
