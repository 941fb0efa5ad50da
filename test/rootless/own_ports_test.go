package rootless_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// What listens in a workspace of a user's own carrel is reached, and what listens on the host's loopback is not, also where executor
// and commands share one id.
func TestOwnPorts(t *testing.T) { eachOwner(t, ownPorts) }

func ownPorts(t *testing.T, u *user) {
	u.must("create", "one")
	u.must("exec", "--detach", "one", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8123")
	ask := func(port int) result {
		return finish(u.own("port", "--stdio", "one", fmt.Sprint(port)), "GET / HTTP/1.0\r\n\r\n")
	}
	r := ask(8123)
	for end := time.Now().Add(30 * time.Second); r.code != 0 && time.Now().Before(end); r = ask(8123) { // the server takes a moment
		<-time.After(50 * time.Millisecond)
	}
	if r.code != 0 || !strings.HasPrefix(r.out, "HTTP/1.0 200") || !strings.Contains(r.out, "Directory listing") {
		t.Errorf("%+v", r)
	}
	planted, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer planted.Close()
	if r := ask(planted.Addr().(*net.TCPAddr).Port); r.code != 1 || !strings.Contains(r.err, "nothing listens there") {
		t.Errorf("a port of the host: %+v", r)
	}
	u.must("stop", "one")
	if r := ask(8123); r.code != 1 || !strings.Contains(r.err, "does not run") {
		t.Errorf("of a workspace that is stopped: %+v", r)
	}
}
