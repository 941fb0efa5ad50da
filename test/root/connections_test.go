package root_test

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
)

// everybody has the daemon serve every user of the host.
const everybody = "socket_mode: \"0666\"\n"

// A workspace has the rules of its profile from the start, which may name what its owner may not. The owner sees what it is
// connected to, and what was refused.
func TestConnectionsOfAnOwner(t *testing.T) {
	n := newNetworkWith(t, "profiles:\n  default: {allow: ['a.test:PORT', '127.0.0.1:PORT']}\n", everybody)
	user := &syscall.Credential{Uid: 61991, Gid: 61991, Groups: []uint32{}}
	as := func(args ...string) string {
		t.Helper()
		r := n.try(user, "", args...)
		if r.code != 0 {
			t.Fatalf("%v: %+v", args, r)
		}
		return r.out
	}
	as("create", "mine")
	if out := as("egress", "rules", "mine"); !strings.Contains(out, "a.test:"+n.port) {
		t.Errorf("its rules are\n%s", out)
	}
	url := "http://a.test:" + n.port
	as("exec", "-d", "mine", "--", "curl", "-sS", url+"/slow")
	n.try(user, "", "exec", "mine", "--", "curl", "-sS", "-m", "5", "http://b.test:"+n.port)
	type seen struct {
		Host          string
		Open, Refused int
		Received      int `json:"received_bytes"`
	}
	until(t, "the connection and the refusal", func() bool {
		var all []seen
		if err := json.Unmarshal([]byte(as("egress", "top", "mine", "--once", "--interval", "200ms", "-o", "json")), &all); err != nil {
			t.Fatal(err)
		}
		open, refused := false, false
		for _, s := range all {
			open = open || s.Host == "a.test:"+n.port && s.Open == 1 && s.Received > len("begun")
			refused = refused || s.Host == "b.test" && s.Refused > 0
		}
		return open && refused
	})
	if out := as("egress", "log", "mine"); !strings.Contains(out, "b.test") || strings.Contains(out, "a.test") {
		t.Errorf("the log, while the connection is open:\n%s", out)
	}
	as("stop", "mine")
	until(t, "the end of the connection", func() bool { return strings.Contains(as("egress", "log", "mine"), "a.test:"+n.port) })
	other := &syscall.Credential{Uid: 61992, Gid: 61992, Groups: []uint32{}}
	for _, verb := range []string{"log", "top"} {
		if r := n.try(other, "", "egress", verb, "mine"); r.code == 0 || r.out != "" {
			t.Errorf("another user, %s: %+v", verb, r)
		}
	}
	// A profile that is none would hold for nobody.
	text, err := os.ReadFile(n.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.file, []byte(strings.ReplaceAll(string(text), "default:", "chatt:")), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := n.try(nil, "", "policy", "reload"); r.code == 0 || !strings.Contains(r.err, `there is no profile "chatt"; there are chat, and default`) {
		t.Errorf("%+v", r)
	}
}
