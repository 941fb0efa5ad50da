package root_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// shell runs carrel shell on a terminal.
func (h *host) shell(t *testing.T, rows, cols uint16, args ...string) *ptytest.Terminal {
	t.Helper()
	c := h.command(t.Context(), nil, append([]string{"shell"}, args...)...)
	c.Env = append(c.Environ(), "TERM=xterm")
	return ptytest.Start(t, c, rows, cols, false)
}

// sessions are those that carrel shell --ls lists.
func (h *host) sessions(t *testing.T, key string) (all []struct {
	Session   string
	CommandID string `json:"command_id"`
	Clients   int
	Size      struct{ Rows, Cols int }
	Recorded  bool
},
) {
	t.Helper()
	r := h.try(nil, "", "shell", "--ls", "-o", "json", key)
	if err := json.Unmarshal([]byte(r.out), &all); r.code != 0 || err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	return all
}

const leaving = "\x10\x11" // Ctrl-P Ctrl-Q

// A shell is left and joined again from another terminal, by several at once, over a restart of the daemon; the window of
// the smallest counts, who only looks on types nothing, and all of it is recorded.
func TestTerminalsAreJoined(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	one := h.shell(t, 24, 80, d.Key)
	one.Expect("$ ")
	one.Type("stty size; echo mark-$((20+3)); whoami; echo TERM=$TERM\r")
	one.Expect("24 80")
	one.Expect("mark-23")
	one.Expect(d.Name)
	one.Expect("TERM=xterm-256color")
	one.Type(leaving)
	if code := one.Wait(); code != 0 || !strings.Contains(one.Screen(), "it goes on") {
		t.Fatalf("after leaving: %d, %q", code, one.Screen())
	}
	two := h.shell(t, 20, 100, d.Key)
	two.Expect("mark-23") // it is drawn anew
	three := h.shell(t, 30, 70, d.Key)
	three.Expect("mark-23")
	looks := h.shell(t, 10, 40, "--read-only", d.Key)
	looks.Expect("mark-23")
	until(t, "the size of the smallest", func() bool {
		s := h.sessions(t, d.Key)[0].Size
		return s.Rows == 20 && s.Cols == 70
	})
	two.Type("stty size\r")
	three.Expect("20 70")
	looks.Type("echo nev''er\r")
	if all := h.sessions(t, d.Key); len(all) != 1 || all[0].Session != "main" || all[0].Clients != 3 ||
		all[0].Size.Rows != 20 || all[0].Size.Cols != 70 {
		t.Errorf("%+v", all)
	}
	three.Type(leaving)
	three.Wait()
	until(t, "the size of who is left", func() bool { return h.sessions(t, d.Key)[0].Size.Cols == 100 })
	// The daemon goes, and the session with those who have joined does not.
	kill(t, h.part(t, "daemon"))
	two.Type("echo with''out\r")
	two.Expect("without")
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	again := h.shell(t, 24, 80, d.Key)
	again.Expect("without")
	again.Type("exit 7\r")
	if code := again.Wait(); code != 7 {
		t.Errorf("the exit code is %d", code)
	}
	two.Wait()
	if code := looks.Wait(); strings.Contains(looks.Screen(), "never") {
		t.Errorf("what was typed read-only arrived, %d", code)
	}
	if all := h.sessions(t, d.Key); len(all) != 0 {
		t.Errorf("at the end: %+v", all)
	}
	h.recorded(t, 0, `"command.exec"`, `"session":"main"`, `"bash"`)
	h.recorded(t, 0, `"command.attach"`)
	h.recorded(t, 0, `"command.logs"`)
	if r := h.try(nil, "", "audit", "verify"); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
