package root_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The front says what the full program says, with the same code, of every end that a command has.
func TestTheFrontSaysTheSame(t *testing.T) {
	h := newHostFor(t)
	h.carrel(t, "create", "front")
	changing := regexp.MustCompile(`(ap|c)-[0-9a-f]{16}|\d{4}-\d\d-\d\dT[0-9:]+Z`)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	for _, args := range [][]string{
		{"front", "--", "sh", "-c", "echo out; echo err >&2; exit 3"},
		{"front", "sh", "-c", "kill -9 $$"},
		{"front", "sh", "-c", "kill -TERM $$"},
		{"front", "--", "nosuch"},
		{"front", "--", "/etc/passwd"},
		{"nowhere", "--", "true"},
		{"--source", "llm", "front", "--", "git", "push", "origin", "main"},
		{"--timeout", "200ms", "front", "sleep", "9"},
		{"-e", "A=1", "-w", "/tmp", "front", "sh", "-c", "echo $A; pwd"},
		{"-w", "/nowhere", "front", "true"},
		{"front", "--", "\x1b[2J"},
		{"front"},
		{"--nosuch", "front", "true"},
	} {
		args = append([]string{"exec"}, args...)
		var said [2]result
		for i, program := range []string{"carrel", "carrel-cli"} {
			r := finish(h.program(ctx, nil, program, args...), "")
			r.out, r.err, r.took = changing.ReplaceAllString(r.out, "$1-"), changing.ReplaceAllString(r.err, "$1-"), 0
			said[i] = r
		}
		if said[0] != said[1] {
			t.Errorf("carrel %q:\nthe front %+v\nin full   %+v", args, said[0], said[1])
		}
	}
}

// What the front does not do itself needs the full program; a plain exec does not. So one that stands alone runs the second and
// says what is missing for the first.
func TestTheFrontAlone(t *testing.T) {
	h := newHostFor(t)
	h.carrel(t, "create", "front")
	alone := filepath.Join(t.TempDir(), "carrel")
	b, err := os.ReadFile(filepath.Join(bin, "carrel"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(alone, b, 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) result {
		c := h.command(t.Context(), nil, args...)
		c.Path = alone
		return finish(c, "")
	}
	if r := run("exec", "front", "--", "echo", "here"); r.code != 0 || r.out != "here\n" || r.err != "" {
		t.Errorf("a plain exec: %+v", r)
	}
	if unix.Access("/usr/libexec/carrel/carrel-cli", unix.X_OK) == nil {
		t.Skip("skipped: a full program is installed on this host")
	}
	if r := run("ls"); r.code != 125 || !strings.Contains(r.err, "cannot find carrel-cli: it is in none of") {
		t.Errorf("what takes the full program: %+v", r)
	}
}
