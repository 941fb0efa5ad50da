package rootless_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A server that a command starts is reached by who runs it, from its first moment to its end, and by nobody else.
func TestRunPorts(t *testing.T) {
	if !has("python3") || !has("curl") {
		t.Skip("skipped: needs python3 and curl: apt-get install python3 curl")
	}
	u := newUser(t)
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	for args, want := range map[string]string{
		busy + ":80": "cannot listen on 127.0.0.1:" + busy, "0.0.0.0:80:80": "give PORT, or LOCAL:PORT", "80:0": "give PORT", "x": "give PORT",
	} {
		if r := u.run("--here", "-p", args, "--", "touch", "ran"); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := u.sh("ls project/ran"); r.code == 0 {
		t.Error("a command ran without its port")
	}
	u.sh("echo hello > project/index.html")
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--here=direct", "-p", "0:8000", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8000")
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	first, err := lines.ReadString('\n')
	where, ok := strings.CutPrefix(first, "carrel: ")
	where, _, both := strings.Cut(where, " leads to port 8000")
	if err != nil || !ok || !both {
		t.Fatalf("%q, %v", first, err)
	}
	said := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(lines)
		said <- string(b)
	}()
	got := ""
	for end := time.Now().Add(20 * time.Second); got != "hello\n" && time.Now().Before(end); {
		got = u.sh("curl -s -m 5 http://" + where).out
	}
	if got != "hello\n" {
		t.Errorf("the page is %q", got)
	}
	if os.Geteuid() == 0 { // another user
		if other, err := net.Dial("tcp4", where); err == nil {
			fmt.Fprint(other, "GET / HTTP/1.0\r\n\r\n")
			if b, _ := io.ReadAll(other); len(b) > 0 {
				t.Errorf("another user is let in: %s", b)
			}
			other.Close()
		}
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if text := <-said; os.Geteuid() == 0 && !strings.Contains(text, "cannot carry a connection of uid 0: it is not yours") {
		t.Errorf("it said %q", text)
	}
	if _, err := net.Dial("tcp4", where); err == nil {
		t.Error("it still listens")
	}
	opened := false
	for _, r := range u.records() {
		opened = opened || strings.Contains(string(r.Action), "port.open")
	}
	if !opened {
		t.Error("that the port was opened is not in the record")
	}
}

// What a command may use is bounded as it is asked for.
func TestRunLimits(t *testing.T) {
	u := newUser(t)
	if r := u.run("--open-files", "77", "-m", "300m", "--rm", "--network", "none", "--", "sh", "-c", "ulimit -n; ulimit -d"); r.out != "77\n307200\n" {
		t.Errorf("%+v", r)
	}
	if r := u.run("--timeout", "300ms", "--", "sleep", "60"); r.code != 143 || !strings.Contains(r.err, "after its timeout of 300ms") {
		t.Errorf("%+v", r)
	}
	if r := u.run("--network", "host", "--", "true"); r.code == 0 || !strings.Contains(r.err, "--allow HOST") {
		t.Errorf("%+v", r)
	}
	if r := u.run("--pids", "1", "--", "true"); r.code == 0 || !strings.Contains(r.err, "pids") {
		t.Errorf("%+v", r)
	}
}
