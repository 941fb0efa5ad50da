//go:build linux

package rootless_test

import (
	"fmt"
	"strings"
	"testing"
)

// Rules that name requests hold in a run without root, and in workspaces of one user's own daemon.
func TestRequestRules(t *testing.T) {
	if !has("curl") || !has("python3") {
		t.Skip("skipped: no curl or python3 on this host")
	}
	const python = `
import sys, urllib.request, urllib.error
try: print("python", urllib.request.urlopen(urllib.request.Request(sys.argv[2], method=sys.argv[1]), timeout=20).status)
except urllib.error.HTTPError as e: print("python", e.code)`
	script := func(port string) string {
		return fmt.Sprintf(`
ask() { curl -sS -m 20 -o /dev/null -w "$* %%{http_code}\n" -X "$1" "https://api.test:%s$2" $3; }
ask GET /v1/x; ask POST /v1/x; ask GET /x; ask GET /v1/x "-x http://127.0.0.53:3128"; ask DELETE /v1/x "-x http://127.0.0.53:3128"
python3 -c '%s' GET https://api.test:%[1]s/v1/x; python3 -c '%[2]s' POST https://api.test:%[1]s/v1/x
curl -sS -m 20 -d x https://api.test:%[1]s/v1/x`, port, python)
	}
	const want = "GET /v1/x 200\nPOST /v1/x 403\nGET /x 403\nGET /v1/x -x http://127.0.0.53:3128 200\n" +
		"DELETE /v1/x -x http://127.0.0.53:3128 403\n" +
		"python 200\npython 403\negress: a POST to api.test:"
	t.Run("run", func(t *testing.T) {
		u := newUser(t)
		k := newKeyed(t, u, "api.test")
		r := u.run("--allow", "GET api.test:"+k.port+"/v1/*", "--", "/bin/sh", "-c", script(k.port))
		if r.code != 0 || !strings.HasPrefix(r.out, want) || len(k.got()) != 3 ||
			!strings.Contains(r.out, "carrel run --allow 'POST api.test:"+k.port+"/v1/x'") {
			t.Errorf("%+v; the host got %q", r, k.got())
		}
	})
	eachOwner(t, func(t *testing.T, u *user) {
		k := newKeyed(t, u, "api.test")
		u.configure(fmt.Sprintf("egress:\n  file: %s/.config/carrel/egress.yaml\n", u.home))
		u.must("create", "--allow", "GET api.test:"+k.port+"/v1/*", "--allow", "127.0.0.1:"+k.port, "k")
		r := u.carrel("exec", "k", "--", "/bin/sh", "-c", script(k.port))
		if r.code != 0 || !strings.HasPrefix(r.out, want) || len(k.got()) != 3 {
			t.Errorf("%+v; the host got %q", r, k.got())
		}
		u.down(t)
	})
}
