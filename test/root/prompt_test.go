package root_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/ptytest"
)

var approvalID = regexp.MustCompile(`ap-[0-9a-f]{16}`)

// question is the end of what a person is asked.
const question = "[y] once  [n] no: "

// Who types a command on a terminal is asked there. Nothing runs but on their y or somebody's
// yes elsewhere, and whatever ends the asking leaves the question, or its answer, as it is.
func TestPromptOnATerminal(t *testing.T) {
	const settings = "socket_mode: \"0666\"\n"
	h := newHostWith(t, func(string) string { return settings })
	configure := func(t *testing.T, more string) {
		t.Helper()
		if err := os.WriteFile(h.config, []byte(settings+more), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	alice := user(t, "crt-prompt")
	const key = "crt prompt"
	if r := h.try(alice, "", "create", key); r.code != 0 {
		t.Fatal(r.err)
	}
	// The command says that it ran with a word that stands nowhere in it.
	script := []string{"sh", "-c", `git push -q https://example.invalid/in x; echo ran-$((40+2)); read x; echo got-$x`}
	ask := func(t *testing.T, argv ...string) *ptytest.Terminal {
		t.Helper()
		return ptytest.Start(t, h.command(context.Background(), alice, append([]string{"exec", "-i", key, "--"}, argv...)...), 50, 120, false)
	}
	asked := func(t *testing.T, argv ...string) (x *ptytest.Terminal, id string) {
		t.Helper()
		x = ask(t, argv...)
		x.Expect(question)
		return x, approvalID.FindString(x.Screen())
	}
	// ended sees that it ended without having run, and what became of the question.
	ended := func(t *testing.T, x *ptytest.Terminal, id, state, says string) {
		t.Helper()
		if code := x.Wait(); code != 125 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
		if says != "" {
			x.Expect(says)
		}
		if strings.Contains(x.Screen(), "ran-42") {
			t.Errorf("it ran: %q", x.Screen())
		}
		if got := h.carrel(t, "approvals", "show", id); strings.Fields(got)[1] != state {
			t.Errorf("the question is %s", got)
		}
		if state == "pending" {
			h.carrel(t, "approvals", "deny", id) // the next asks anew
		}
	}

	// harmless sees that the terminal was sent text and nothing that it would obey. It makes the
	// \r of each line's end itself.
	harmless := func(t *testing.T, x *ptytest.Terminal) {
		t.Helper()
		screen := strings.ReplaceAll(x.Screen(), "\r\n", "\n")
		for _, raw := range []string{"\x1b", "\r", "\x07", "\x08", "\x7f", "\u009b", "\u202e", "\u2066"} {
			if strings.Contains(screen, raw) {
				t.Errorf("the terminal was sent %q: %q", raw, screen)
			}
		}
	}
	t.Run("what is shown", func(t *testing.T) {
		x, id := asked(t, script...)
		for _, want := range []string{
			id + "  pending  risk ", "where       " + key, "as          crt-", "a person typed it",
			"boundary=namespace root=system; all that is required of it was verified",
			"may         ", "network.out", "because     ", "CONFIRM  risk ", "git push -q https://example.invalid/in x", "SAFE  risk ",
			"echo ran-$((40+2))", "Expires at ",
		} {
			if !strings.Contains(x.Screen(), want) {
				t.Errorf("it does not show %q: %s", want, x.Screen())
			}
		}
		x.Type("y\r")
		x.Expect("ran-42")
		x.Type("hello\r") // of what was typed for carrel the command gets nothing
		x.Expect("got-hello")
		if code := x.Wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if got := h.carrel(t, "approvals", "show", id); strings.Fields(got)[1] != "spent" || !strings.Contains(got, "once by uid:") ||
			!strings.Contains(got, ", themselves at ") {
			t.Errorf("%s", got)
		}
	})
	t.Run("who comes with a token is told who answers", func(t *testing.T) {
		token := strings.TrimSpace(h.carrel(t, "token", "create", "--role", "operator", "--owner", fmt.Sprint("uid:", alice.Uid), "--workspace", key))
		c := h.command(context.Background(), alice, append([]string{"exec", "-i", key, "--"}, script...)...)
		c.Env = append(c.Env, "CARREL_TOKEN="+token)
		x := ptytest.Start(t, c, 50, 120, false)
		x.Expect("approvals approve")
		id := approvalID.FindString(x.Screen())
		if strings.Contains(x.Screen(), "[y]") {
			t.Errorf("it is offered to answer: %s", x.Screen())
		}
		ended(t, x, id, "pending", "")
	})
	t.Run("no", func(t *testing.T) {
		x, id := asked(t, script...)
		x.Type("n\r")
		x.Expect("Why not")
		x.Type("not today\r")
		ended(t, x, id, "denied", "you denied it, and nothing was run")
		if got := h.carrel(t, "approvals", "show", id); !strings.Contains(got, "not today") {
			t.Error(got)
		}
	})
	t.Run("other keys", func(t *testing.T) {
		x, id := asked(t, script...)
		for _, keys := range []string{"yes\r", "\r", "q\r"} {
			x.Type(keys)
		}
		ended(t, x, id, "pending", "cannot go on: there is no answer")
	})
	t.Run("remembering is not offered without a thread", func(t *testing.T) {
		x, id := asked(t, script...)
		x.Type("t\rt\rt\r")
		ended(t, x, id, "pending", "cannot go on: there is no answer")
	})
	for name, keys := range map[string]string{
		"Ctrl-C": "\x03", "Ctrl-\\": "\x1c", "Ctrl-D": "\x04", "Ctrl-C behind y": "y\x03", "Ctrl-D behind what was taken back": "y\x15\x04",
	} {
		t.Run(name, func(t *testing.T) {
			x, id := asked(t, script...)
			x.Type(keys)
			ended(t, x, id, "pending", "cannot ")
		})
	}
	t.Run("hang-up", func(t *testing.T) {
		x, id := asked(t, script...)
		x.HangUp()
		ended(t, x, id, "pending", "")
	})
	t.Run("typed before it was asked", func(t *testing.T) {
		x := ask(t, script...)
		x.Type("y\r")
		x.Expect(question)
		id := approvalID.FindString(x.Screen())
		x.Type("n\r")
		x.Expect("Why not")
		x.Type("\r")
		ended(t, x, id, "denied", "you denied it, and nothing was run")
	})
	t.Run("let pass elsewhere", func(t *testing.T) {
		x, id := asked(t, script...)
		h.carrel(t, "approvals", "approve", "--yes", id)
		x.Expect("uid:0 let it pass")
		x.Expect("ran-42")
		x.Type("hello\r")
		x.Expect("got-hello")
		if code := x.Wait(); code != 0 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("denied elsewhere", func(t *testing.T) {
		x, id := asked(t, script...)
		x.Type("y") // and no return
		h.carrel(t, "approvals", "deny", id, "--reason", "use \x1b[31mthe mirror")
		ended(t, x, id, "denied", `uid:0 denied it: use \x1b[31mthe mirror, and nothing was run`)
	})
	t.Run("what a terminal would obey", func(t *testing.T) {
		// What it would take for a line of its own is blocked, and the refusal quotes it.
		hostile := "\x1b]0;title\x07\x1b[2J\x1b[1A\u009b2J\u202egnp\u2066\rcarrel: harmless\x08\x08\x7f"
		x := ask(t, "git", "push", "https://example.invalid/"+hostile, hostile, "A="+hostile)
		if code := x.Wait(); code != 125 {
			t.Errorf("exit code %d", code)
		}
		x.Expect(`the policy blocks it: it is not text that a person can read`)
		x.Expect(`administrator sets the policy` + "\r\n")
		harmless(t, x)
		// What is asked about.
		x = ptytest.Start(t, h.command(context.Background(), alice, "exec", "-e", "B=\x1b[2J", "--cwd", "/tmp/\u202egnp\x1b[2J", key,
			"--", "git", "push", "https://example.invalid/in", "x"), 50, 120, false)
		x.Expect(question)
		id := approvalID.FindString(x.Screen())
		x.Type("\x03")
		ended(t, x, id, "pending", `, in /tmp/\u202egnp\x1b[2J`)
		harmless(t, x)
		if out := h.carrel(t, "approvals", "show", id); strings.ContainsAny(out, "\x1b\r\x07\x08\x7f\u009b\u202e\u2066") {
			t.Errorf("%q", out)
		}
	})
	t.Run("nobody in time", func(t *testing.T) {
		configure(t, "approval:\n  wait: 2s\n")
		end(t, h.part(t, "daemon"), unix.SIGTERM)
		if err := h.up(); err != nil {
			t.Fatal(err)
		}
		x, id := asked(t, script...)
		ended(t, x, id, "expired", "approval "+id+" expired at ")
	})
}
