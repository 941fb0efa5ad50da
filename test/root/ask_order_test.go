package root_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// fleet is an operator with servers of the names web-1 to web-3, each of which knows its own as $AT.
func newFleet(t *testing.T) (m *modeled, o *operator, ask func(args ...string) *ptytest.Terminal) {
	t.Helper()
	o = newOperator(t)
	m = newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	known, hosts := "", "hosts:\n"
	for i := range 3 {
		address := fmt.Sprintf("127.0.0.%d", i+2)
		port, line := o.sshd(t, address)
		known += line
		hosts += fmt.Sprintf("  web-%d: {address: %s, port: %s, env: {set: {AT: web-%d}}}\n", i+1, address, port, i+1)
	}
	o.write(t, ".ssh/known_hosts", []byte(known))
	o.write(t, ".config/carrel/hosts.yaml", []byte(hosts))
	return m, o, func(args ...string) *ptytest.Terminal {
		c := m.command(context.Background(), o.Credential, append([]string{"ask", "--llm", "m1", "--model", "house", "--on", "remote"}, args...)...)
		c.Env = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=")
		return ptytest.Start(t, c, 50, 160, false)
	}
}

// A step reaches hosts in the order that the question shows: batches, how many may fail, and a first host that hangs is ended
// by the step's time. What was not begun is told to the person and to the model.
func TestAskInBatches(t *testing.T) {
	m, o, ask := newFleet(t)
	did := filepath.Join(o.home, "did")
	for _, x := range []struct {
		name, command, shown, did, outcome, said string
		flags                                    []string
	}{
		{
			"a batch fails", "echo $AT >> " + did + "; [ $AT != web-2 ]", "the first host alone, then batches of 1, 1 at once; if one fails, no further batch",
			"web-1 web-2", "failed", "not begun, because 1 host failed: 3. remote web-3",
			[]string{"--serial", "1"},
		},
		{
			"one may fail", "echo $AT >> " + did + "; [ $AT != web-2 ]", "batches of 1, 1 at once; if more than 1 fail, no further host",
			"web-1 web-2 web-3", "done", "3. remote web-3: done",
			[]string{"--serial", "30%", "--max-failures", "34%", "--canary=false"},
		},
		{
			"the first hangs", "echo $AT >> " + did + "; sleep 300", "the first host alone, then the others, 2 at once; if more than 3 fail",
			"web-1", "failed", "not begun, because the host that goes first failed: 2. remote web-2, 3. remote web-3",
			[]string{"--max-failures", "100%"},
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			step := planStep("remote *", x.command, false)
			step["timeout_seconds"] = 5
			s := m.script(t, always(planOfAll(step)), always(directly("it is over")))
			term := ask(append(x.flags, "do it")...)
			term.Expect("[n] no")
			if screen := term.Screen(); !strings.Contains(screen, "1 to 3: "+x.shown) {
				t.Errorf("asked %q", screen)
			}
			term.Type("y\n")
			term.Expect("it is over")
			if screen := term.Screen(); !strings.Contains(screen, x.said) {
				t.Errorf("told %q, not %q", screen, x.said)
			}
			term.Wait()
			b, _ := os.ReadFile(did)
			_ = os.Remove(did)
			if got := strings.Join(strings.Fields(string(b)), " "); got != x.did {
				t.Errorf("it ran on %q", got)
			}
			said := s.said()
			if len(said) != 2 || !strings.Contains(said[1], `\"outcome\":\"`+x.outcome+`\"`) ||
				strings.Contains(said[1], `\"not_begun\":`) != (x.outcome == "failed") {
				t.Errorf("the model was told %q", said)
			}
		})
	}
}

// A person approves a plan one step at a time: the key is shown, each step is asked about by itself, and none runs before.
func TestAskStepByStep(t *testing.T) {
	m, o, ask := newFleet(t)
	did := filepath.Join(o.home, "did")
	s := m.script(t, always(planOfAll(
		planStep("remote web-1", "echo one >> "+did, false), planStep("remote web-2", "echo two >> "+did, false),
		planStep("remote web-3", "echo three >> "+did, false),
	)), always(directly("it is over")))
	done := func() string {
		b, _ := os.ReadFile(did)
		return strings.Join(strings.Fields(string(b)), " ")
	}
	term := ask("do it")
	term.Expect("[s] step by step  [t] for this session  " + question)
	mark := m.mark(t)
	if got := done(); got != "" {
		t.Errorf("%q ran", got)
	}
	term.Type("step\n")
	term.ExpectAfter("1. remote web-1: done", question)
	if screen := term.Screen(); !strings.Contains(screen, "2. remote web-2: echo two") {
		t.Errorf("asked %q", screen)
	}
	if got := done(); got != "one" {
		t.Errorf("%q ran", got)
	}
	term.Type("y\n")
	term.ExpectAfter("2. remote web-2: done", question)
	term.Type("n\nnot this one\n")
	term.Expect("a step was not approved, and the plan ended there")
	term.Wait()
	if got := done(); got != "one two" || len(s.said()) != 1 {
		t.Errorf("%q ran", got)
	}
	m.recorded(t, mark, `"from":2,"whole":3`, "echo two")
}

// What a person allows for the session passes again in it without a question, on the same host alone, and not in
// another session.
func TestAskForASession(t *testing.T) {
	m, o, ask := newFleet(t)
	did := filepath.Join(o.home, "did")
	one := planStep("remote web-1", "echo one >> "+did, false)
	turn := func(answer string, step map[string]any, args ...string) {
		t.Helper()
		m.script(t, always(planOfAll(step)), always(directly("it is over")))
		term := ask(args...)
		switch answer {
		case "":
			term.Expect("runs without a question, as its commands were allowed for this session")
			term.Expect("it is over")
		case "n":
			term.Expect(question)
			term.Type("n\n\n")
			term.Expect("not approved")
		default:
			term.Expect("[t] for this session  " + question)
			term.Type(answer + "\n")
			term.Expect("it is over")
		}
		term.Wait()
	}
	turn("t", one, "do it")
	mark := m.mark(t)
	turn("", one, "--resume", "again")
	m.recorded(t, mark, " remembered", "echo one")
	turn("n", planStep("remote web-2", "echo one >> "+did, false), "--resume", "there too")
	turn("", one, "--resume", "once more")
	turn("n", one, "anew")
	if b, _ := os.ReadFile(did); string(b) != "one\none\none\n" {
		t.Errorf("ran %q", b)
	}
}

// The inventory says how steps reach hosts: what it says is shown by the check and by the question, a flag is over it, and a line that
// cannot be used is named.
func TestAskInTheInventorysOrder(t *testing.T) {
	m, o, ask := newFleet(t)
	hosts, err := os.ReadFile(filepath.Join(o.home, ".config/carrel/hosts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	o.write(t, ".config/carrel/hosts.yaml", append(hosts, []byte("groups:\n  odd: {hosts: [web-1, web-3], fanout: {max_failures: 1}}\n"+
		"fanout: {serial: 1, canary: false}\n")...))
	check := func(args ...string) string {
		c := m.command(context.Background(), o.Credential, append([]string{"agent", "check", "--on", "remote"}, args...)...)
		c.Env = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=")
		out, err := c.CombinedOutput()
		return fmt.Sprint(string(out), err)
	}
	if got := check(); !strings.Contains(got, "forks 8, serial 1, canary false") ||
		!strings.Contains(got, "group odd, 2 hosts: forks 8, serial 1, max_failures 1, canary false") {
		t.Errorf("checked %q", got)
	}
	for _, x := range []struct {
		target, shown string
		flags         []string
	}{
		{"remote web-1 web-3", "1 to 2: batches of 1, 1 at once; if more than 1 fail, no further host", nil},
		{"remote *", "1 to 3: batches of 1, 1 at once; if one fails, no further batch; if more than 1 fail", nil},
		{"remote web-1 web-3", "1 to 2: the first host alone, then the others, 1 at once; if one fails, no further host", []string{
			"--max-failures", "0", "--serial", "2", "--canary",
		}},
	} {
		m.script(t, always(planOfAll(planStep(x.target, "true", false))), always(directly("it is over")))
		term := ask(append(x.flags, "do it")...)
		term.Expect("[n] no")
		if screen := term.Screen(); !strings.Contains(strings.Join(strings.Fields(screen), " "), x.shown) {
			t.Errorf("asked %q", screen)
		}
		term.Type("n\n\n")
		term.Wait()
	}
	o.write(t, ".config/carrel/hosts.yaml", append(hosts, []byte("fanout: {serial: 0}\n")...))
	if got := check(); !strings.Contains(got, "hosts.yaml:5:18: serial \"0\": give a number") {
		t.Errorf("checked %q", got)
	}
}
