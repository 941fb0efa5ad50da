package root_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// waiting is a question about a connection.
type waiting struct {
	ID, State, Requester, Workspace, Kind, Host, Rule string
	Port                                              int
}

// questions are the approvals in a state of one workspace.
func (n *network) questions(t *testing.T, d *desk, state string) (all []waiting) {
	t.Helper()
	out := n.carrel(t, "approvals", "list", "--state", state, "--workspace", d.Name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

// asked waits for the one question that there is, which is about a host.
func (n *network) asked(t *testing.T, d *desk, host string) waiting {
	t.Helper()
	var all []waiting
	until(t, "a person is asked about "+host, func() bool {
		all = n.questions(t, d, "pending")
		return len(all) > 0
	})
	q := all[0]
	if len(all) != 1 || q.Host != host || fmt.Sprint(q.Port) != n.port || q.Kind != "network.connect" || q.Rule != "*.test:"+n.port ||
		q.Requester != "inside:"+d.Name || q.Workspace != d.Name {
		t.Errorf("asked about %s: %+v", host, all)
	}
	return q
}

// A program waits while a person is asked, and goes on, is refused, or ends the question with itself.
func TestEgressAsks(t *testing.T) {
	n := newNetwork(t, "")
	d := n.desk(t, append(n.allow(), "--ask", "*.test:"+n.port)...)
	fetch := func(host string) <-chan string {
		got := make(chan string, 1)
		go func() {
			r := d.try("/bin/bash", "-c", fmt.Sprintf("curl -sS -m 60 http://%s:%s/ 2>&1 || echo no: $?", host, n.port))
			got <- r.out + r.err
		}()
		return got
	}
	got := fetch("a.test")
	q := n.asked(t, d, "a.test")
	if shown := n.carrel(t, "approvals", "show", q.ID); !strings.Contains(shown, "connect to a.test:"+n.port) ||
		!strings.Contains(shown, "*.test:"+n.port) {
		t.Errorf("it is shown as\n%s", shown)
	}
	n.carrel(t, "approvals", "approve", "-y", q.ID)
	if text, want := <-got, fmt.Sprintf("a.test:%s answers\n", n.port); text != want {
		t.Errorf("approved, it says %q, not %q", text, want)
	}
	if text := <-fetch("a.test"); !strings.Contains(text, "answers") { // the answer holds a moment
		t.Errorf("again: %q", text)
	}

	got = fetch("c.test")
	n.carrel(t, "approvals", "deny", "--reason", "too curious", n.asked(t, d, "c.test").ID)
	if text := <-got; !strings.Contains(text, "c.test:"+n.port+" was not approved: uid:0 denied it: too curious") {
		t.Errorf("denied, it says %q", text)
	}

	d.detach(t, "/bin/bash", "-c", fmt.Sprintf("exec timeout -s KILL 1 curl -sS http://e.test:%s/", n.port))
	q = n.asked(t, d, "e.test")
	until(t, "the question ends with its program", func() bool { return len(n.questions(t, d, "pending")) == 0 })
	if r := n.try(nil, "", "approvals", "approve", "-y", q.ID); r.code == 0 {
		t.Error("a question whose program is gone is answered")
	}

	got = fetch("b.test")
	n.carrel(t, "approvals", "approve", "-y", "--always", n.asked(t, d, "b.test").ID)
	if text := <-got; !strings.Contains(text, "answers") {
		t.Errorf("always, it says %q", text)
	}
	if rules := n.carrel(t, "egress", "rules", d.Key); !strings.Contains(rules, "approved  b.test:"+n.port) {
		t.Errorf("the rules are\n%s", rules)
	}
	if text := <-fetch("b.test"); !strings.Contains(text, "answers") || len(n.questions(t, d, "pending")) != 0 {
		t.Errorf("again: %q", text)
	}
	// It holds after a start, and is removed as other rules are.
	n.carrel(t, "stop", d.Key)
	n.carrel(t, "start", d.Key)
	if text := <-fetch("b.test"); !strings.Contains(text, "answers") {
		t.Errorf("after a start: %q", text)
	}
	n.carrel(t, "egress", "rm", d.Key, "b.test:"+n.port)
	got = fetch("b.test")
	n.carrel(t, "approvals", "deny", n.asked(t, d, "b.test").ID)
	if text := <-got; !strings.Contains(text, "was not approved") {
		t.Errorf("after its removal: %q", text)
	}
	n.carrel(t, "audit", "verify")
}

// However many hosts a workspace asks for, few questions are open, and another goes on.
func TestEgressAskFlood(t *testing.T) {
	n := newNetwork(t, "")
	flood := n.desk(t, "--ask", "*.test:*")
	calm := n.desk(t, n.allow("a.test")...)
	flood.detach(t, "/bin/bash", "-c", fmt.Sprintf(
		"timeout 12 curl -sS -Z --parallel-immediate --parallel-max 300 -m 8 -x http://127.0.0.53:3128 'http://h[1-1000].test:%s/' >/dev/null 2>&1; echo done >flooded", n.port))
	most, others := 0, 0
	until(t, "the flood is over", func() bool {
		most = max(most, len(n.questions(t, flood, "pending")))
		if most > 0 && others < 5 {
			others++
			if text := n.get(t, calm, "a.test"); !strings.Contains(text, "answers") {
				t.Errorf("another workspace: %q", text)
			}
		}
		return flood.try("/bin/cat", "flooded").code == 0
	})
	if most == 0 || most > 32 || others == 0 {
		t.Errorf("%d questions were open at once, and the other workspace tried %d times", most, others)
	}
	until(t, "the questions end", func() bool { return len(n.questions(t, flood, "pending")) == 0 })
	if all := n.questions(t, flood, "expired"); len(all) > 300 {
		t.Errorf("%d questions were asked", len(all))
	}
	flood.well(t)
}
