//go:build linux

package rootless_test

import (
	"fmt"
	"strings"
	"testing"
)

// A run asks nobody: what is asked about is refused at once, with what to do, and what is allowed is reached.
func TestEgressAsksNobody(t *testing.T) {
	u := newUser(t)
	s := newSite(t, u)
	u.network(map[string]string{"a.test": "127.0.0.1", "b.test": "127.0.0.1"}, "ask: ['c.test:"+s.plain+"']\n")
	script := fmt.Sprintf(`for h in a b c; do curl -sS -m 20 http://$h.test:%s/x || echo no; done`, s.plain)
	r := u.run("--here", "--allow", "*.test:"+s.plain, "--allow", "127.0.0.1:"+s.plain, "--ask", "a.test:"+s.plain, "--", "bash", "-c", script)
	if r.code != 0 || !strings.Contains(r.out, "b.test:"+s.plain+" at /x\n") || strings.Contains(r.out, "a.test:"+s.plain+" at") {
		t.Errorf("%+v", r)
	}
	for _, host := range []string{"a.test", "c.test"} {
		why := fmt.Sprintf(`%s:%s was not approved: nobody can be asked during a run without root; "carrel run --allow %[1]s:%[2]s" instead of --ask`,
			host, s.plain)
		if !strings.Contains(r.err, why) || !strings.Contains(r.out, why) {
			t.Errorf("%s: %+v", host, r)
		}
	}
	if r := u.run("--here", "--ask", "a.test:"+s.plain, "--secret", "API_KEY@a.test:"+s.plain, "--", "true"); r.code == 0 {
		t.Errorf("a secret for a host that is only asked about: %+v", r)
	}
}
