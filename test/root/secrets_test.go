package root_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A secret that a caller passes to a command is in the command, and nowhere else: in no
// file that carrel writes, no command line of the host, no answer to anybody.
func TestSecretsLeaveNoTrace(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	secret := "planted-" + rand.Text()
	with := func(stdin string, args ...string) result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := h.command(ctx, nil, args...)
		c.Env = append(c.Env, "TOKEN="+secret)
		c.Stdin = strings.NewReader(stdin)
		var out, errs strings.Builder
		c.Stdout, c.Stderr = &out, &errs
		_ = c.Run() // some of it fails
		return result{code: c.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
	}
	// It arrives.
	if r := with("", "exec", "--env", "TOKEN", d.Key, "--", "/bin/sh", "-c", "echo $TOKEN"); r.out != secret+"\n" {
		t.Fatalf("%+v", r)
	}
	if r := with(secret, "exec", "-i", d.Key, "--", "cat"); r.out != secret {
		t.Fatalf("%+v", r)
	}
	// And along every other way that a command can take.
	id := strings.TrimSpace(with("", "exec", "--detach", "--env", "TOKEN", d.Key, "--", "/bin/sh", "-c", "sleep 1000").out)
	mute := []result{
		with("", "exec", "--env", "TOKEN", d.Key, "--", "nonesuch"),
		with("", "exec", "--env", "TOKEN", d.Key, "--", "/etc/passwd"),
		with("", "exec", "--env", "TOKEN", "--cwd", "/nonesuch", d.Key, "--", "true"),
		with("", "exec", "--env", "TOKEN", "--timeout", "50ms", "--grace", "50ms", d.Key, "--", "sleep", "1000"),
		with("", "exec", "--env", "TOKEN", "no such workspace", "--", "true"),
		with("", "exec", "--env", "TOKEN", d.Key, "--", "/bin/sh", "-c", "kill -SEGV $$"),
		with("", "exec", "-t", "--env", "TOKEN", d.Key, "--", "true"),
		with("", "ps", "-o", "json", d.Key),
		with("", "inspect", "-o", "json", d.Key),
		with("", "audit", "show", "-o", "json"),
		with("", "logs", d.Key, id),
	}
	for _, r := range mute {
		if strings.Contains(r.out+r.err, secret) {
			t.Errorf("%+v", r)
		}
	}
	h.settled(t)
	inspect := func() (where []string, files int) {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range all {
			if b, _ := os.ReadFile(name); strings.Contains(string(b), secret) {
				where = append(where, name)
			}
		}
		// What carrel itself holds ready for others to read.
		for _, part := range []string{"daemon", "broker"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", h.part(t, part)))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), secret) {
				where = append(where, "the environment of the "+part)
			}
		}
		for _, root := range []string{h.data, h.run} {
			err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return nil //nolint:nilerr // it went away
				}
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				files++
				if strings.Contains(string(b), secret) {
					where = append(where, path)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return where, files
	}
	where, files := inspect()
	for _, w := range where {
		t.Errorf("the secret is in %s", w)
	}
	if files < 6 { // record, two logs, ledger, database, settings
		t.Errorf("only %d files were looked at", files)
	}
	// Nor is it in a list of arguments, for any caller and any daemon.
	argv := with(
		"", "exec", "--detach", "--env", "TOKEN", d.Key, "--", "/bin/sh", "-c", "sleep 1000; : words "+secret+" --password="+secret[8:],
	)
	if argv.code != 0 {
		t.Fatalf("%+v", argv)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			end(t, h.part(t, "daemon"), unix.SIGKILL)
			if err := h.up(); err != nil {
				t.Fatal(err)
			}
		}
		for _, form := range []string{"table", "json"} {
			out := h.carrel(t, "ps", "-o", form, d.Key)
			if strings.Contains(out, secret[8:]) || !strings.Contains(out, "words [redacted:") {
				t.Errorf("restarted %v: %s", restart, out)
			}
		}
	}
	// The search finds what is there: the argument of a command stands in the record, as
	// it must, and so on the command's own command line while it runs.
	d.detach(t, "/bin/sh", "-c", "sleep 1000; : "+secret)
	where, _ = inspect()
	all := strings.Join(where, "\n")
	if !strings.Contains(all, "audit.jsonl") || !strings.Contains(all, "cmdline") {
		t.Errorf("the search finds no planted secret: %q", where)
	}
	if strings.Contains(all, "/log/") {
		t.Errorf("arguments are in a log: %q", where)
	}
}
