package root_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

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

// openSession opens a session over the API and returns the status and what was answered.
func openSession(t *testing.T, c *http.Client, workspace, session string, rows, cols int, argv ...string) (int, string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"workspace": workspace, "session": session, "command": map[string]any{"argv": argv, "source": "user"},
		"terminal": map[string]int{"rows": rows, "cols": cols},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://carrel/carrel.v1.CommandService/Detach", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// 500 terminals of one workspace: as many as there may be are opened, the others are refused with the reason, each is in the
// record, and neither the workspace nor another one is the worse for it.
func TestTerminalsOfOneWorkspaceAreBounded(t *testing.T) {
	d, other := shared.desk(t), shared.desk(t)
	c := shared.client(t, 0)
	mark := shared.mark(t)
	opened := 0
	for i := range 500 {
		code, text := openSession(t, c, d.Key, fmt.Sprintf("s%d", i), 24, 80, "sleep", "600")
		switch {
		case code == http.StatusOK:
			opened++
		case !strings.Contains(text, "resource_exhausted") || !strings.Contains(text, "carrel shell --kill"):
			t.Fatalf("%d: %d %s", i, code, text)
		}
		if i%100 == 99 {
			other.well(t)
		}
	}
	if opened != 32 || len(shared.sessions(t, d.Key)) != 32 {
		t.Errorf("%d were opened", opened)
	}
	shared.settled(t)
	ends := map[string]int{}
	for _, r := range shared.since(t, mark) {
		if strings.Contains(r.raw, `"session":"s`) || r.Type == "outcome" {
			ends[r.Type]++
		}
	}
	if ends["intent"] < 500 || ends["outcome"] < 500 {
		t.Errorf("in the record are %v", ends)
	}
	d.well(t)
	if r := shared.try(nil, "", "shell", "--kill", "--session", "s7", d.Key); r.code != 0 {
		t.Errorf("%+v", r)
	}
	until(t, "the end of one", func() bool { return len(shared.sessions(t, d.Key)) == 31 })
	if code, text := openSession(t, c, d.Key, "again", 24, 80, "sleep", "600"); code != http.StatusOK {
		t.Errorf("in its place: %d %s", code, text)
	}
}

// Programs that have large screens drawn as fast as they can harm neither their workspace nor another, and a person who
// looks at them is sent nothing that a terminal obeys beyond drawing.
func TestTerminalsOfBombs(t *testing.T) {
	d, other := shared.desk(t), shared.desk(t)
	c := shared.client(t, 0)
	for i, bomb := range []string{
		`while :; do printf '\033[2J\033c\033[99999S\033[99999b'; done`,
		`yes "$(printf '\033[31m%0500d' 7)"`,
		`cat /dev/urandom`,
		`while :; do printf '\033[6n\033[c\033[5n\033[>c'; done`,
		`while :; do printf '\033]52;c;%05000d' 1; done`,
		`printf 'e'; while :; do printf '\314\201'; done`,
	} {
		if code, text := openSession(t, c, d.Key, fmt.Sprintf("bomb%d", i), 150, 450, "sh", "-c", bomb); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	looks := make([]*ptytest.Terminal, 6)
	for i := range looks {
		looks[i] = shared.shell(t, 50, 160, "--read-only", "--session", fmt.Sprintf("bomb%d", i), d.Key)
		looks[i].Expect("\x1b[?1049h")
	}
	for range 5 {
		d.well(t)
		other.well(t)
	}
	for i := range looks {
		looks[i].Type("q")
		if code := looks[i].Wait(); code != 0 {
			t.Errorf("%d: %d", i, code)
		}
		for _, bad := range []string{"\x1b]52", "\x1bc", "\x1b[6n", "\x1b[c", "\x1bP"} {
			if strings.Contains(looks[i].Screen(), bad) {
				t.Errorf("%d: its terminal was sent %q", i, bad)
			}
		}
		if r := shared.try(nil, "", "shell", "--kill", "--session", fmt.Sprintf("bomb%d", i), d.Key); r.code != 0 {
			t.Errorf("%d: %+v", i, r)
		}
	}
	until(t, "the end of all", func() bool { return len(shared.sessions(t, d.Key)) == 0 })
	d.well(t)
}

// A session belongs to its workspace: another user of the host neither joins it nor learns of it.
func TestTerminalsOfAnotherUser(t *testing.T) {
	d := shared.desk(t)
	c := shared.client(t, 0)
	if code, text := openSession(t, c, d.Key, "main", 24, 80, "cat"); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	stranger := &syscall.Credential{Uid: 65533, Gid: 65533}
	for _, args := range [][]string{{"--read-only", d.Key}, {"--ls", d.Key}, {"--kill", d.Key}} {
		if r := shared.try(stranger, "", append([]string{"shell"}, args...)...); r.code == 0 || strings.Contains(r.err+r.out, "main\n") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := shared.try(nil, "", "shell", "--read-only", "--session", "none", d.Key); r.code == 0 || !strings.Contains(r.err, "no such session") {
		t.Errorf("%+v", r)
	}
	if n := len(shared.sessions(t, d.Key)); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// With a token the bytes pass through the daemon: typing, sizes and leaving are as without. A token that may only look looks on,
// and one that is revoked is cut off with the reason. The session goes on.
func TestTerminalsWithAToken(t *testing.T) {
	d := shared.desk(t)
	token := func(role string) string {
		return strings.TrimSpace(shared.carrel(t, "token", "create", "--role", role, "--workspace", d.Key))
	}
	with := func(token string, args ...string) *ptytest.Terminal {
		c := shared.command(t.Context(), nil, append([]string{"shell"}, args...)...)
		c.Env = append(c.Environ(), "TERM=xterm", "CARREL_TOKEN="+token)
		return ptytest.Start(t, c, 24, 80, false)
	}
	operator, viewer := token("operator"), token("approver")
	x := with(operator, d.Key)
	x.Expect("$ ")
	x.Type("echo mark-$((20+3))\r")
	x.Expect("mark-23")
	x.Resize(30, 100)
	until(t, "the size of the window", func() bool { return shared.sessions(t, d.Key)[0].Size.Cols == 100 })
	if y := with(viewer, d.Key); y.Wait() == 0 || strings.Contains(y.Screen(), "mark-23") {
		t.Errorf("a token that may look joined: %q", y.Screen())
	}
	y := with(viewer, "--read-only", d.Key)
	y.Expect("mark-23")
	id, _, _ := strings.Cut(strings.TrimPrefix(operator, "crl_"), "_")
	shared.carrel(t, "token", "revoke", id)
	if code := x.Wait(); code == 0 || !strings.Contains(x.Screen(), "token") {
		t.Errorf("a revoked token: %d, %q", code, x.Screen())
	}
	until(t, "the client that was cut off", func() bool { return shared.sessions(t, d.Key)[0].Clients == 1 })
	y.Type("q")
	if code := y.Wait(); code != 0 {
		t.Errorf("left with %d: %q", code, y.Screen())
	}
}

// In a terminal that others wrote, tmux, a session shows what its programs show: what has scrolled, colours, lines, wide
// characters, a program on the whole screen, and after it what was there before. The workspace's own tmux runs in a session too.
func TestTerminalsInTmux(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("skipped: tmux, in which this is looked at, is not here")
	}
	d := shared.desk(t)
	socket := filepath.Join(t.TempDir(), "s")
	tmux := func(args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), "tmux", append([]string{"-u", "-f", "/dev/null", "-S", socket}, args...)...)
		c.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "TERM=xterm", "HOME=/", "CARREL_HOST=unix://" + shared.run + "/carrel.sock"}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %s", args, out)
		}
		return string(out)
	}
	shows := func(texts ...string) {
		t.Helper()
		var out string
		for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			out = tmux("capture-pane", "-e", "-p", "-t", "s")
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(out, text) }) {
				return
			}
		}
		t.Fatalf("it does not show %q: %q", texts, out)
	}
	tmux("new-session", "-d", "-s", "s", "-x", "90", "-y", "20", "echo before; "+filepath.Join(bin, "carrel")+" shell "+d.Name+"; sleep 1000")
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", socket, "kill-server").Run() })
	shows(":~$")
	tmux("send-keys", "-t", "s", "seq 1 100; stty size", "Enter")
	shows("84\n85\n86\n87\n88\n89\n90\n91\n92\n93\n94\n95\n96\n97\n98\n99\n100\n20 90\n")
	tmux("send-keys", "-t", "s", `printf '\033[31mred\033[m \033(0lqk\033(B 漢字\n'`, "Enter")
	shows("[31mred", "漢字", "┌─┐")
	tmux("send-keys", "-t", "s", "seq 1 200 | less -S", "Enter")
	shows("1\n2\n3\n", "\n19\n:")
	tmux("send-keys", "-t", "s", "G")
	shows("199\n200\n")
	tmux("send-keys", "-t", "s", "q")
	shows("100\n20 90\n", "漢字") // what was there before
	tmux("send-keys", "-t", "s", "C-p", "C-q")
	shows("before")

	own := shared.shell(t, 24, 80, "--tmux", "--session", "own", d.Key)
	own.Expect("[own]")
	own.Type("echo in-$((1+1))-$TMUX_PANE\r")
	own.Expect("in-2-%0")
	if r := shared.try(nil, "", "shell", "--kill", "--session", "own", d.Key); r.code != 0 {
		t.Errorf("%+v", r)
	}
	own.Wait()
	until(t, "the end of all that tmux has started", func() bool {
		return !strings.Contains(d.sh(t, "cat /proc/[0-9]*/comm 2>/dev/null"), "tmux")
	})
}

// A WebSocket opens a session of the daemon's, types, and leaves; the session goes on, and all of it is in the record. A user
// who does not reach the workspace is refused, and that is in the record too.
func TestTerminalsOverWebSocket(t *testing.T) {
	d := shared.desk(t)
	mark := shared.mark(t)
	at := "http://carrel/v1/terminals/" + url.PathEscape(d.Key) + "/web?rows=20&cols=70&open=true"
	dial := func(uid uint32) (*websocket.Conn, int) {
		t.Helper()
		one := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return dialAs(shared.run+"/carrel.sock", uid)
		}}
		t.Cleanup(one.CloseIdleConnections)
		ws, res, err := websocket.Dial(t.Context(), at, &websocket.DialOptions{HTTPClient: &http.Client{Transport: one}})
		if res == nil {
			t.Fatal(err)
		}
		if res.Body != nil {
			_ = res.Body.Close()
		}
		return ws, res.StatusCode
	}
	if _, code := dial(65533); code != http.StatusForbidden { // as by every other call
		t.Errorf("another user: %d", code)
	}
	ws, code := dial(0)
	if ws == nil {
		t.Fatal(code)
	}
	defer ws.CloseNow()
	var all strings.Builder
	reads := func(text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for !strings.Contains(all.String(), text) {
			_, b, err := ws.Read(ctx)
			if err != nil {
				t.Fatalf("%v instead of %q: %q", err, text, all.String())
			}
			all.Write(b)
		}
	}
	types := func(text string) {
		t.Helper()
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	reads("$ ")
	types(`{"type":"resize","cols":66,"rows":22}`)
	until(t, "the size", func() bool { return shared.sessions(t, d.Key)[0].Size.Cols == 66 })
	types("echo mark-$((20+3)) $(stty size)\r")
	reads("mark-23 22 66")
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	until(t, "the leaving", func() bool { return shared.sessions(t, d.Key)[0].Clients == 0 })
	shared.recorded(t, mark, `"command.exec"`, `"session":"web"`)
	shared.recorded(t, mark, `"command.attach"`)
	shared.recorded(t, mark, `"uid:65533"`)
}
