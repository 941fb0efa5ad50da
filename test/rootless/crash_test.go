package rootless_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// crashes are what is killed on its way, by the places in the source where: those that a
// daemon for one user passes.
var crashes = []struct {
	name string
	// before brings the workspace k to where args can be asked for; args is asked for again
	// after the crash. args are words, and nothing in them has spaces.
	before []string
	args   string
	points []string
}{
	{"create", nil, "create k", []string{
		"broker.create.allocated", "broker.create.user-added", "userbroker.create.home-made", "broker.create.dirs-made",
		"userbroker.start.prepared", "userbroker.start.launched", "broker.create.started", "broker.ledger.written", "broker.ledger.synced",
		"executor.start.entered",
	}},
	{"start", []string{"create --no-start k"}, "start k", []string{"broker.start.launched", "broker.start.kept", "userbroker.start.launched"}},
	{"stop", []string{"create k"}, "stop k", []string{"broker.stop.killed", "broker.stop.cleaned"}},
	{"destroy", []string{"create -v project:/workspace k"}, "destroy k", []string{
		"broker.destroy.begun", "broker.destroy.cleaned", "broker.destroy.processes-ended", "broker.destroy.user-removed",
		"userbroker.destroy.home-renamed", "broker.destroy.home-gone", "broker.destroy.tmp-removed",
	}},
	{"revive", []string{"create k", "destroy k"}, "revive k", []string{
		"daemon.revive.begun", "broker.revive.begun", "broker.revive.user-added", "userbroker.revive.home-renamed", "broker.revive.home-taken",
	}},
	{"purge", []string{"create k"}, "destroy --purge k", []string{"broker.destroy.home-gone", "broker.stop.killed"}},
}

// A daemon that is killed at any step leaves what the next one finishes or undoes.
func TestOwnCrashes(t *testing.T) {
	built := crashable(t)
	u := newOwner(t)
	arm := u.points()
	carrel := func(line string) result {
		return finish(u.command("", filepath.Join(built, "carrel"), append([]string{"--rootless"}, strings.Fields(line)...)...), "")
	}
	for _, c := range crashes {
		for _, p := range c.points {
			t.Run(c.name+"/"+p, func(t *testing.T) {
				u.t = t
				must := func(line string) string {
					t.Helper()
					r := carrel(line)
					if r.code != 0 {
						t.Fatalf("%s: %+v\n%s", line, r, u.log())
					}
					return r.out
				}
				for _, line := range c.before {
					must(line)
				}
				pid := u.daemon()
				passed := arm(p, 1)
				first := carrel(c.args)
				// Places in executors are lent to them at their start, and stay armed.
				if !passed() && !strings.HasPrefix(p, "executor.") {
					t.Errorf("it was not passed: %+v", first)
				}
				if pid != 0 && !strings.HasPrefix(p, "executor.") {
					gone(t, pid)
				}
				again := carrel(c.args)
				if again.code != 0 && !(strings.HasPrefix(c.args, "destroy") && strings.Contains(again.err, "there is none")) {
					t.Errorf("again: %+v", again)
				}
				if !strings.HasPrefix(c.args, "destroy") {
					must("destroy --purge k")
				}
				if got := must("ls -q"); got != "" {
					t.Errorf("workspaces are left: %q", got)
				}
				state := filepath.Join(u.home, ".local/state/carrel")
				for _, d := range []string{"homes", "tmp", "runs"} {
					list, err := os.ReadDir(filepath.Join(state, d))
					if err != nil {
						t.Error(err)
					}
					for _, e := range list {
						if e.Name() != ".lock" {
							t.Errorf("%s/%s is left", d, e.Name())
						}
					}
				}
				if got := u.sh("ls -A project").out; got != ".git\n" {
					t.Errorf("left in the project: %q", got)
				}
				if got := must("audit verify"); !strings.HasPrefix(got, "ok") {
					t.Errorf("%s", got)
				}
				// What the daemon does on its own account may still be under way.
				until(t, "an outcome for each intent", func() bool {
					got := must("audit show --last 100000")
					return strings.Count(got, "  intent ") == strings.Count(got, "  outcome ")
				})
				if os.Geteuid() == 0 {
					daemon := u.daemon()
					for _, pid := range u.processes() {
						b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
						if pid != daemon && strings.HasPrefix(string(b), "carrel-exec") {
							t.Errorf("executor %d is left", pid)
						}
					}
				}
			})
		}
	}
	u.t = t
}

// Every place that is a daemon's for one user alone is in the table.
func TestEveryOwnPointIsExercised(t *testing.T) {
	files, err := filepath.Glob("../../internal/rootless/userbroker/*.go")
	own, err2 := filepath.Glob("../../internal/rootless/*.go")
	files, err = append(files, own...), errors.Join(err, err2)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	found := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`crashpoint\.Here\("(.*)"\)`).FindAllStringSubmatch(string(b), -1) {
			found++
			exercised := false
			for _, c := range crashes {
				exercised = exercised || slices.Contains(c.points, m[1])
			}
			for _, p := range runCrashes {
				exercised = exercised || p.point == m[1]
			}
			if !exercised || !strings.HasPrefix(m[1], "userbroker.") && !strings.HasPrefix(m[1], "run.") {
				t.Errorf("%s: no scenario passes %s", f, m[1])
			}
		}
	}
	if found < 4 {
		t.Errorf("%d places", found)
	}
}
