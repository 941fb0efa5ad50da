package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Runbooks are listed, shown with values and checked without a daemon.
func TestRunbook(t *testing.T) {
	dir := t.TempDir()
	write := func(name, command string) string {
		file := filepath.Join(dir, name+".yaml")
		text := "name: " + name + "\ntitle: mine\nmatch: [a]\nparameters:\n- {name: f, pattern: '/.*', default: /a}\nsteps:\n" +
			"- {command: \"" + command + "\", purpose: look, read_only: true}\nadvice: b\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ok := func(args ...string) string {
		t.Helper()
		r := run(t, "", append([]string{"runbook"}, args...)...)
		if r.code != 0 {
			t.Fatalf("%q: %+v", args, r)
		}
		return r.out
	}
	mail := write("mail", "cat {f}")
	if out := ok("ls", "--dir", dir); strings.Count(out, "\n") != 13 || !strings.Contains(out, "mail") ||
		!strings.Contains(out, "disk") {
		t.Errorf("%q", out)
	}
	if out := ok("ls", "--dir", dir, "-o", "json"); !strings.Contains(out, `"name": "mail"`) {
		t.Errorf("%q", out)
	}
	if out := ok("show", "--dir", dir, "--set", "f=/it's", "mail"); !strings.Contains(out, `cat '/it'\''s'`) {
		t.Errorf("%q", out)
	}
	if out := ok("check", "--dir", dir); out != "ok: 12 runbooks\n" {
		t.Errorf("%q", out)
	}
	if out := ok("check", mail); out != "ok: 1 runbook\n" {
		t.Errorf("%q", out)
	}
	bad := write("bad", "rm {f}")
	for _, args := range [][]string{{"check", bad}, {"check", "--dir", dir}} {
		if r := run(t, "", append([]string{"runbook"}, args...)...); r.code != 1 || !strings.Contains(r.err, "bad.yaml") ||
			!strings.Contains(r.err, "only reads") || !strings.Contains(r.err, "rm '/a'") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	rules := filepath.Join(dir, "rules")
	if err := os.WriteFile(rules, []byte("rules: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, "", "runbook", "check", "--policy", rules, "--no-builtin", mail); r.code > 1 {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{
		{"show", "none"}, {"show", "--set", "dir", "disk"}, {"show", "--set", "dir=-x", "disk"}, {"check", "--no-builtin"},
	} {
		if r := run(t, "", append([]string{"runbook"}, args...)...); r.code == 0 || r.err == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
