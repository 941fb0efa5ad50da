package cli_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/cli"
)

func TestTailLines(t *testing.T) {
	for _, c := range []struct{ n, in, want string }{
		{"0", "a\nb\n", ""},
		{"1", "a\nb\n", "b\n"},
		{"1", "a\nb", "b"},
		{"2", "a\nb", "a\nb"},
		{"2", "a\nb\nc\n", "b\nc\n"},
		{"9", "a\nb\n", "a\nb\n"},
		{"1", "", ""},
		{"2", "\n\n\n", "\n\n"},
		{"all", "a\nb\n", "a\nb\n"},
	} {
		if got, err := cli.LastLines(c.n, c.in); err != nil || got != c.want {
			t.Errorf("%s of %q: %q, %v, want %q", c.n, c.in, got, err, c.want)
		}
	}
	for _, bad := range []string{"-1", "x", "", "1.5"} {
		if _, err := cli.LastLines(bad, ""); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// await asks again until it is so: the state of a command is another process's.
func await(t *testing.T, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !so() {
		if ctx.Err() != nil {
			t.Fatal("it never came to be so")
		}
	}
}

func TestNewestDetachedCommand(t *testing.T) {
	serve(t, alice)
	detach := func(script string) string {
		t.Helper()
		r := run(t, "", "exec", "-d", "demo", "--", "sh", "-c", script)
		if r.code != 0 {
			t.Fatalf("exec -d: %+v", r)
		}
		cmd := strings.TrimSpace(r.out)
		run(t, "", "wait", "demo", cmd)
		return cmd
	}
	detach("echo older")
	cmd := detach("printf 'one\\ntwo\\nthree\\n'; exit 6")
	// A command that is attached is not taken, however new it is.
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run([]string{"exec", "-i", "demo", "cat"}, cli.Streams{In: in, Out: null, Err: null})
	}()
	defer func() {
		feed.Close()
		<-ended
		in.Close()
		null.Close()
	}()
	await(t, func() bool { return strings.Contains(run(t, "", "ps", "demo").out, "attached") })
	for _, c := range []struct {
		args, out, err string
		code           int
	}{
		{"logs demo", "one\ntwo\nthree\n", "", 0},
		{"logs -v demo", "one\ntwo\nthree\n", "carrel: this is " + cmd + ": sh -c ", 0},
		{"logs --tail 1 demo", "three\n", "", 0},
		{"logs -n 2 demo", "two\nthree\n", "", 0},
		{"logs --tail 0 demo", "", "", 0},
		{"logs -f --tail 1 demo", "three\n", "", 0},
		{"logs -f --tail all demo " + cmd, "one\ntwo\nthree\n", "", 0},
		{"attach demo", "one\ntwo\nthree\n", "", 6},
		{"attach -v demo", "one\ntwo\nthree\n", "carrel: this is " + cmd, 6},
	} {
		r := run(t, "", strings.Fields(c.args)...)
		if r.code != c.code || r.out != c.out || !strings.HasPrefix(r.err, c.err) || c.err == "" && r.err != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
}

// At a terminal it is said which command it is, and stdout has the output only.
func TestNewestIsSaidAtATerminal(t *testing.T) {
	serve(t, alice)
	r := run(t, "", "exec", "-d", "demo", "--", "echo", "output")
	run(t, "", "wait", "demo", strings.TrimSpace(r.out))
	master, slave := openTerminal(t)
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if code := cli.Run([]string{"logs", "demo"}, cli.Streams{In: slave, Out: out, Err: slave}); code != 0 {
		t.Errorf("code %d", code)
	}
	slave.Close() // so that the end is read where nothing was said
	if b, err := os.ReadFile(out.Name()); err != nil || string(b) != "output\n" {
		t.Errorf("stdout: %q, %v", b, err)
	}
	buf := make([]byte, 200)
	if n, err := master.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "carrel: this is "+strings.TrimSpace(r.out)) {
		t.Errorf("stderr: %q, %v", buf[:n], err)
	}
}

// What comes after the last lines is printed as it comes, once.
func TestFollowAfterTail(t *testing.T) {
	serve(t, alice)
	gate := t.TempDir() + "/go"
	r := run(t, "", "exec", "-d", "demo", "--", "sh", "-c", "echo a; echo b; until [ -e "+gate+" ]; do sleep 0.02; done; echo c; echo d")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	// The command writes before it waits, and ends only when it is let.
	await(t, func() bool { return strings.HasSuffix(run(t, "", "logs", "demo").out, "b\n") })
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	code := make(chan int, 1)
	go func() {
		code <- cli.Run([]string{"logs", "-f", "--tail", "1", "demo"}, cli.Streams{In: null, Out: write, Err: null})
		write.Close()
	}()
	buf := make([]byte, 64)
	n, err := read.Read(buf)
	if err != nil || string(buf[:n]) != "b\n" {
		t.Errorf("first %q, %v", buf[:n], err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rest := ""
	for err == nil {
		n, err = read.Read(buf)
		rest += string(buf[:n])
	}
	if c := <-code; c != 0 || rest != "c\nd\n" {
		t.Errorf("code %d, then %q", c, rest)
	}
}
