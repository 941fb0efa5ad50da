package root_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// compiled are the attack programs, by name.
var compiled struct {
	sync.Mutex
	programs map[string]string
}

// compile builds testdata/NAME.c for this host.
func compile(t testing.TB, name string) string {
	t.Helper()
	needRoot(t)
	compiled.Lock()
	defer compiled.Unlock()
	if p, ok := compiled.programs[name]; ok {
		return p
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: the attack programs are written in C; apt-get install gcc libc6-dev")
	}
	path := filepath.Join(base, "attack-"+name)
	out, err := exec.CommandContext(t.Context(), gcc, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path,
		filepath.Join("testdata", name+".c")).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot compile %s: %v\n%s", name, err, out)
	}
	if compiled.programs == nil {
		compiled.programs = map[string]string{}
	}
	compiled.programs[name] = path
	return path
}

// install puts an attack program into the workspace's home.
func (d *desk) install(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(compile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	d.put(t, name, b, "755")
	return "./" + name
}

// attempt is one line of an attack program.
type attempt struct{ outcome, what, result string }

// attempts reads what an attack program printed.
func attempts(t testing.TB, out string) []attempt {
	t.Helper()
	var all []attempt
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || !slices.Contains([]string{"REACHED", "denied", "unclear"}, f[0]) {
			t.Logf("says: %s", strings.TrimSpace(line))
			continue
		}
		all = append(all, attempt{f[0], strings.Join(f[1:len(f)-1], " "), f[len(f)-1]})
	}
	return all
}

// attack runs an attack program in the workspace. Every attempt must be refused, but for
// those in allowed, which must work; and there must be at least so many.
func (d *desk) attack(t *testing.T, least int, allowed []string, name string, args ...string) {
	t.Helper()
	r := d.try(append([]string{d.install(t, name)}, args...)...)
	if r.code != 0 {
		t.Fatalf("%s: exit code %d: %s%s", name, r.code, r.out, r.err)
	}
	judge(t, least, allowed, r.out)
}

func judge(t *testing.T, least int, allowed []string, out string) {
	t.Helper()
	all := attempts(t, out)
	errnos := map[string][]string{}
	for _, a := range all {
		switch want := slices.Contains(allowed, a.what); {
		case a.outcome == "denied" && !want:
			errnos[a.result] = append(errnos[a.result], a.what)
		case a.outcome == "REACHED" && want:
		default:
			t.Errorf("%s: %s (%s)", a.what, a.outcome, a.result)
		}
	}
	for errno, what := range errnos {
		t.Logf("%s: %s", errno, strings.Join(what, ", "))
	}
	if len(all) < least {
		t.Errorf("%d attempts were made, fewer than %d:\n%s", len(all), least, out)
	}
}

// unconfined runs an attack program as root on the host, in namespaces of its own so that
// it changes nothing there, and returns what it reached.
func unconfined(t *testing.T, name string, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, compile(t, name), args...)
	c.Dir = t.TempDir()
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC, Unshareflags: syscall.CLONE_NEWNS,
	}
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	var reached []string
	for _, a := range attempts(t, string(out)) {
		if a.outcome == "REACHED" {
			reached = append(reached, a.what)
		}
	}
	return reached
}

// canReach sees that an attack program, run where nothing holds it, reaches at least these.
func canReach(t *testing.T, reached []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(reached, w) {
			t.Errorf("the attempt %q fails even without a boundary, so it proves nothing; reached: %s", w, strings.Join(reached, ", "))
		}
	}
}
