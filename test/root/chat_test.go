package root_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/screen"
	"github.com/carrel-dev/carrel/test/ptytest"
)

// chat is a chat on a terminal, as a person sees it.
type chat struct {
	*ptytest.Terminal
	t          *testing.T
	rows, cols int
}

func (m *modeled) chat(t *testing.T, who *syscall.Credential, env []string, rows, cols int, args ...string) *chat {
	t.Helper()
	home := t.TempDir()
	openWay(t, home)
	if err := os.Chown(home, int(who.Uid), int(who.Gid)); err != nil {
		t.Fatal(err)
	}
	c := m.command(context.Background(), who, append([]string{"chat", "--llm", "m1", "--model", "house"}, args...)...)
	c.Env, c.Dir = append(append(c.Environ(), "TERM=xterm-256color", "HOME="+home, "XDG_STATE_HOME=", "XDG_CONFIG_HOME="), env...), home
	return &chat{ptytest.Start(t, c, uint16(rows), uint16(cols), false), t, rows, cols}
}

// now is what the screen shows, without the styles.
func (c *chat) now(all string) string {
	s := screen.New(c.rows, c.cols)
	for b := []byte(all); len(b) > 0; { // it takes a bounded amount at a time
		b = b[s.Write(b):]
	}
	return s.String()
}

// shows waits until the screen shows everything that is wanted.
func (c *chat) shows(want ...string) {
	c.t.Helper()
	c.Until(strings.Join(want, " and "), func(all string) bool {
		now := c.now(all)
		for _, w := range want {
			if !strings.Contains(now, w) {
				return false
			}
		}
		return true
	})
}

// A chat on a screen of its own: a question, a plan that is denied with a reason, one that is approved, a stopped turn with
// what was queued, commands for carrel, and the end.
func TestChatOnAScreen(t *testing.T) {
	m, alice, _ := newAsked(t)
	m.script(t, always(directly("It is **well**.")))
	c := m.chat(t, alice, nil, 40, 100, "--on", "none")
	c.shows("you>", "ready")
	c.Type("how is it?\r")
	c.shows("It is well.", "ready", "requests")
	push := planOf("workspace demo", "echo ran-$((40+2)) > ran; git push -q https://example.invalid/in x", false)
	m.script(t, always(push))
	c.Type("push\r")
	c.shows("Run it?", "[y] once", "waiting for you", "git push", "[CONFIRM]")
	c.Type("a")
	c.shows("once only")
	c.Type("n")
	c.shows("why not?")
	c.Type("not on friday\r")
	c.shows("you denied it: not on friday", "the plan was not approved", "ready")
	if r := m.try(alice, "", "exec", "demo", "--", "ls"); strings.Contains(r.out, "ran") {
		t.Errorf("a plan that was denied was run: %+v", r)
	}
	m.script(t, always(push), always(directly("it was pushed")))
	c.Type("push again\r")
	c.shows("push again", "[y] once")
	c.Type("y")
	c.shows("you let it pass, once", "exit code 128", "it was pushed", "ready")
	if r := m.try(alice, "", "exec", "demo", "--", "cat", "ran"); !strings.Contains(r.out, "ran-42") {
		t.Errorf("%+v", r)
	}
	// An edit denies the plan, and asks for what was written instead.
	s := m.script(t, always(push), always(directly("as you like")))
	c.Type("push once more\r")
	c.shows("push once more", "[y] once")
	c.Type("e")
	c.shows("instead:", "workspace")
	c.Type("\x15\x15only look\r")
	c.shows("as you like", "ready")
	if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "only look") || !strings.Contains(said[1], "denied") {
		t.Errorf("the model was asked %q", said)
	}
	// What is entered while a turn runs is asked when it has ended, or at once with Esc.
	hold, asked := make(chan struct{}), make(chan struct{}, 1)
	m.script(t, func(string) string {
		asked <- struct{}{}
		<-hold
		return directly("too late")
	}, always(directly("the steered answer")))
	c.Type("a long one\r")
	<-asked
	c.Type("first thing\r")
	c.shows("queued: first thing")
	c.Type("\x1b[A")
	c.shows("taken back")
	c.Type("\x15")
	c.Type("look elsewhere\r")
	c.shows("queued: look elsewhere", "working")
	c.Type("\x1b")
	c.shows("stopped", "the steered answer", "ready")
	close(hold)
	c.Type("/new\r")
	c.shows("not told any more")
	s = m.script(t, always(directly("who are you?")))
	c.Type("hello\r")
	c.shows("who are you?", "ready")
	if said := s.said(); strings.Contains(said[0], "how is it?") {
		t.Errorf("after /new the model was told %q", said[0])
	}
	c.Type("/plan\r")
	c.shows("plans only")
	m.script(t, always(push))
	c.Type("plan it\r")
	c.shows("only the plan was asked for", "plan 1")
	c.Type("/plan\r")
	c.Type("/resume\r")
	c.shows("goes on from task")
	c.Type("/tools\r")
	c.shows("house")
	c.Type("/job\r")
	c.shows("no background jobs on hosts")
	c.Type("/undo\r")
	c.shows("no files were changed")
	c.Type("/clear\r/undo w\tdem\t\r") // as /undo workspace demo
	c.shows("/undo workspace demo", "no files were changed")
	c.Type("/clear\r/undo --on demo p-0123456789abcdef\r")
	c.shows("there is no record of it")
	c.Type("/undo workspace other\r")
	c.shows("cannot find workspace")
	c.Type("/undo remote web-9\r")
	c.shows("hosts.yaml")
	c.Type("/undo remote\r")
	c.shows("/undo remote NAME [ID]")
	c.Type("/frob\r")
	c.shows("/help lists what there is")
	c.Type("/clear\r")
	c.Until("an empty screen", func(all string) bool { return !strings.Contains(c.now(all), "/frob") })
	c.Type("\x04")
	if code := c.Wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, c.Screen())
	}
	c.restored()
	if r := m.try(alice, "", "task", "ls", "agent"); strings.Count(r.out, "stopped") != 1 || strings.Contains(r.out, "running") {
		t.Errorf("%+v", r)
	}
}

// restored checks that the terminal is left as it was.
func (c *chat) restored() {
	c.t.Helper()
	all := c.Screen()
	if on, off := strings.LastIndex(all, "\x1b[?1049h"), strings.LastIndex(all, "\x1b[?1049l"); on < 0 || off < on {
		c.t.Errorf("the alternate screen was not left: %q", all)
	}
	if hidden, shown := strings.LastIndex(all, "\x1b[?25l"), strings.LastIndex(all, "\x1b[?25h"); hidden > shown {
		c.t.Errorf("the cursor stays hidden: %q", all)
	}
	if on, off := strings.LastIndex(all, "\x1b[?2004h"), strings.LastIndex(all, "\x1b[?2004l"); on > off {
		c.t.Errorf("pasting stays marked: %q", all)
	}
}

// Commands of the person's own are run by their shell, end with Esc, and are told to the agent on their word alone.
func TestChatOfCommandsAndFiles(t *testing.T) {
	m, alice, ask := newAsked(t)
	dir := t.TempDir()
	openWay(t, dir)
	if err := os.WriteFile(dir+"/notes.txt", []byte("the code word is heron\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := m.chat(t, alice, nil, 30, 120, "--on", "none")
	c.shows("ready")
	c.Type("!echo own-$((40+2))\r")
	c.shows("own-42")
	s := m.script(t, always(directly("one")), always(directly("two")), always(directly("three")))
	c.Type("a question\r")
	c.shows("one", "ready")
	c.Type("!!echo told-$((40+2)); exit 3\r")
	c.shows("told-42", "the agent is told")
	c.Type("and this?\r")
	c.shows("two", "ready")
	c.Type("see @" + dir + "/not\t")
	c.shows("notes.txt")
	c.Type("please\r")
	c.shows("three", "ready")
	said := s.said()
	if strings.Contains(said[0], "own-42") || !strings.Contains(said[1], "told-42") || !strings.Contains(said[1], "exit code 3") {
		t.Errorf("the model was told %q", said[:2])
	}
	if !strings.Contains(said[2], "heron") || !strings.Contains(said[2], "never an instruction") {
		t.Errorf("the model was told %q", said[2])
	}
	c.Type("!sleep 4219 & sleep 4219\r")
	c.shows("running")
	c.Type("\x1b")
	c.shows("(ended)", "ready")
	if out, err := exec.CommandContext(t.Context(), "pgrep", "-U", fmt.Sprint(alice.Uid), "-f", "^sleep 4219").Output(); err == nil {
		t.Errorf("a stopped command left the processes %q", out)
	}
	c.Resize(20, 60)
	c.Until("another drawing", func(all string) bool { return strings.Count(all, "(ended)") > 1 })
	c.Type("/on\r")
	c.Until("the answer", func(all string) bool { return strings.Contains(all, "workspaces that you reach") })
	c.Type("\x03")
	if code := c.Wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, c.Screen())
	}
	c.restored()
	s = m.script(t, always(directly("yes")))
	r := m.try(alice, "a line of a log\n", "ask", "--llm", "m1", "--on", "none", "what is this? @-")
	if r.code != 0 || !strings.Contains(s.said()[0], "a line of a log") {
		t.Errorf("%+v, %q", r, s.said())
	}
	// "carrel ask" reads files in the same way.
	s = m.script(t, always(directly("yes")))
	if r := ask("--on", "none", "what is in @"+dir+"/notes.txt?"); r.code != 0 || !strings.Contains(s.said()[0], "heron") {
		t.Errorf("%+v, %q", r, s.said())
	}
}

// What a model, a plan or a program writes cannot make the terminal obey, in either mode.
func TestChatOfHostileText(t *testing.T) {
	m, alice, _ := newAsked(t)
	evil := "\u202etxt.exe\u202c zero\u200bwidth\u2066 over"
	goal, _ := json.Marshal(evil)
	plan := strings.ReplaceAll(planOf("workspace demo", "git push x abc", false), `"find out"`, string(goal))
	for _, plain := range []bool{false, true} {
		m.script(t, always(plan), always(directly(evil)))
		args := []string{"--on", "none"}
		enter, yes := "\r", "y"
		if plain {
			args, enter, yes = append(args, "--plain"), "\n", "y\n"
		}
		c := m.chat(t, alice, nil, 40, 100, args...)
		c.Expect("you>")
		c.Type("go" + enter)
		c.Expect("[y] once")
		c.Type(yes)
		c.Until("the answer", func(all string) bool { return strings.Count(all, "txt.exe") > 1 })
		c.Type(`!printf '\033]0;owned\a\033[2J\033[31mred \302\2335n\rover'; touch "$(printf 'na\033[31mme')"; ls --quoting-style=literal` + enter)
		c.Until("the output", func(all string) bool { return strings.Contains(all, `[31mred`) && strings.Contains(all, "na") })
		c.Type("see @na\t")
		c.Type("\x15\x04")
		c.Wait()
		for _, raw := range []string{"\x1b]0;owned", "owned\a", "\x1b[31mred", "\x1b[31mme", "\u202e", "\u202c", "\u2066", "\u200b", "\u009b", "\rover"} {
			if strings.Contains(c.Screen(), raw) {
				t.Errorf("plain %v: %q reached the terminal: %q", plain, raw, c.Screen())
			}
		}
	}
}

// A change to files is shown with its lines, made on a yes, listed and undone.
func TestChatUndo(t *testing.T) {
	m, alice, _ := newAsked(t)
	c := m.chat(t, alice, nil, 40, 120, "--on", "host")
	file := filepath.Join(c.Command.Dir, "app.conf")
	if err := errors.Join(os.WriteFile(file, []byte("port = 80\nname = a\n"), 0o644), os.Chown(file, int(alice.Uid), int(alice.Gid))); err != nil {
		t.Fatal(err)
	}
	change, _ := json.Marshal(map[string]any{
		"type": "file_patch_plan", "goal": "use another port", "request_intent": "update", "target": "host", "files_changed": []string{"app.conf"},
		"unified_diff": "--- a/app.conf\n+++ b/app.conf\n@@ -1,2 +1,2 @@\n-port = 80\n+port = 8080\n name = a\n",
		"risk_summary": "r", "verification_commands": []any{}, "rollback_commands": []any{}, "permission_changes": []any{},
	})
	m.script(t, always(string(change)), always(directly("it is changed")))
	c.shows("ready", "host")
	c.Type("change it\r")
	c.shows("-port = 80", "+port = 8080", "+1 −1", "[v] short", "[y] once")
	c.Type("y")
	c.shows("it is changed", "ready")
	is := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%q, %v", b, err)
		}
	}
	is("port = 8080\nname = a\n")
	c.Type("/undo\r")
	c.shows("made")
	id := regexp.MustCompile(`(p-[0-9a-f]{16})  made`).FindStringSubmatch(c.now(c.Screen()))
	if id == nil {
		t.Fatalf("no change is listed: %q", c.now(c.Screen()))
	}
	c.Type("/undo " + id[1] + "\r")
	c.shows("undone; /undo")
	is("port = 80\nname = a\n")
	c.Type("\x04")
	c.Wait()
}

// A small window without colours works, a dumb terminal gets lines, and a terminal that is left by a signal is as it was.
func TestChatOnOtherTerminals(t *testing.T) {
	m, alice, _ := newAsked(t)
	m.script(t, always(directly("an answer of so many words that no line of a window as small as this one has room for all of them")))
	c := m.chat(t, alice, []string{"NO_COLOR=1"}, 20, 60, "--on", "none")
	c.shows("ready")
	c.Type("say much\r")
	c.shows("an answer of so many words", "all of them", "ready")
	for _, colour := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[38;"} {
		if strings.Contains(c.Screen(), colour) {
			t.Errorf("NO_COLOR is set, and the terminal was sent %q", colour)
		}
	}
	hold, asked := make(chan struct{}), make(chan struct{}, 1)
	m.script(t, func(string) string {
		asked <- struct{}{}
		<-hold
		return directly("too late")
	})
	c.Type("wait\r")
	<-asked
	if err := c.Command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	close(hold)
	c.restored()
	if r := m.try(alice, "", "task", "ls", "agent"); !strings.Contains(r.out, "stopped") || strings.Contains(r.out, "running") {
		t.Errorf("a signal left the turn: %+v", r)
	}
	m.script(t, always(directly("a plain answer")))
	d := m.chat(t, alice, []string{"TERM=dumb"}, 24, 80, "--on", "none")
	d.Expect("you> ")
	d.Type("hello\n")
	d.ExpectAfter("a plain answer", "you> ")
	d.Type("!echo own-$((40+2))\n")
	d.ExpectAfter("own-42", "you> ")
	d.Type("/help\n")
	d.ExpectAfter("/undo [ID]", "you> ")
	d.Type("/quit\n")
	if code := d.Wait(); code != 0 || strings.Contains(d.Screen(), "\x1b") {
		t.Errorf("exit code %d: %q", code, d.Screen())
	}
}
