package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func TestTokenCommands(t *testing.T) {
	g := serve(t, alice)
	r := run(t, "", "token", "create", "--role", "agent", "--role", "approver", "--workspace", "demo",
		"--expires", "2d", "--max-uses", "3", "--rate", "30/m:5", "--name", "ci")
	secret, err := token.Parse(strings.TrimSuffix(r.out, "\n"))
	if r.code != 0 || err != nil || strings.Contains(r.err, secret.Reveal()) || !strings.Contains(r.err, string(secret.ID())) {
		t.Fatalf("%+v, %v", r, err)
	}
	i, _ := g.Issued(secret.ID())
	if i.Name != "ci" || i.MaxUses != 3 || i.Rate != 0.5 || i.Burst != 5 || i.Roles != principal.Agent|principal.Approver ||
		i.Expires.Sub(i.Created).Hours() != 48 || len(i.Scope) != 1 {
		t.Errorf("%+v", i)
	}
	id := string(secret.ID())
	for _, c := range []struct {
		args []string
		out  string
	}{
		{[]string{"token", "ls"}, id + "  good"},
		{[]string{"token", "show", id}, "uses        0 of 3"},
		{[]string{"token", "show", "-o", "json", secret.Reveal()}, `"state": "good"`},
		{[]string{"whoami"}, "you are  uid:1000"},
		{[]string{"whoami", "-o", "json"}, `"kind": "user"`},
		{[]string{"token", "revoke", id}, id + "\n"},
		{[]string{"token", "ls", "--all"}, id + "  revoked"},
	} {
		if r := run(t, "", c.args...); r.code != 0 || !strings.Contains(r.out, c.out) || strings.Contains(r.out, secret.Reveal()) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if r := run(t, "", "token", "ls"); r.code != 0 || strings.Contains(r.out, id) {
		t.Errorf("a revoked token is listed: %+v", r)
	}
	var made struct{ Token, Address string }
	if r := run(t, "", "token", "create", "-o", "json"); r.code != 0 || json.Unmarshal([]byte(r.out), &made) != nil || made.Token == "" ||
		r.err != "" {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct {
		args []string
		err  string
	}{
		{[]string{"token", "create", "--role", "admin"}, "would let it do what uid:1000 may not"},
		{[]string{"token", "create", "--role", "king"}, "there are admin, operator"},
		{[]string{"token", "create", "--owner", "uid:0"}, "only a user with the role admin"},
		{[]string{"token", "create", "--owner", "root"}, "is no user"},
		{[]string{"token", "create", "--workspace", "*"}, "cannot limit to workspace"},
		{[]string{"token", "create", "--expires", "400d"}, "from 1s to 366d"},
		{[]string{"token", "create", "--expires", "0s"}, "from 1s to 366d"},
		{[]string{"token", "create", "--rate", "10"}, "as 10/s"},
		{[]string{"token", "create", "--rate", "0/s"}, "as 10/s"},
		{[]string{"token", "create", "--rate", "1/s:0"}, "as 10/s"},
		{[]string{"token", "create", "--max-uses", "0"}, "a number of requests from 1"},
		{[]string{"token", "show", "../../x"}, "cannot find token"},
		{[]string{"token", "show", "000000000000"}, "cannot find token"},
		{[]string{"token", "revoke", "000000000000"}, "cannot find token"},
		{[]string{"token", "burn"}, "token has create, ls, show and revoke"},
	} {
		if r := run(t, "", c.args...); r.code == 0 || !strings.Contains(r.err, c.err) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
}

// The command line speaks to a daemon elsewhere, and does there what it does here.
func TestOverTLS(t *testing.T) {
	g := &apitest.Gate{}
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{Version: "v1.2.3"})
	secret := g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(carrel.HostEnv, "https://"+addr)
	t.Setenv(carrel.FingerprintEnv, keys.Fingerprint())
	for name, set := range map[string]func() []string{
		"environment": func() []string { t.Setenv(carrel.TokenEnv, secret); return nil },
		"file":        func() []string { t.Setenv(carrel.TokenEnv, ""); t.Setenv(carrel.TokenFileEnv, file); return nil },
		"flags": func() []string {
			t.Setenv(carrel.TokenFileEnv, "")
			t.Setenv(carrel.FingerprintEnv, "")
			return []string{"--token-file", file, "--fingerprint", keys.Fingerprint(), "--host", "https://" + addr}
		},
	} {
		flags := set()
		for _, c := range []struct {
			args  []string
			stdin string
			code  int
			out   string
		}{
			{[]string{"create", "demo"}, "", 0, "ws-2a97516c\n"},
			{[]string{"exec", "demo", "--", "sh", "-c", "echo out; echo err >&2; exit 7"}, "", 7, "out\n"},
			{[]string{"exec", "-i", "demo", "cat"}, "typed", 0, "typed"},
			{[]string{"exec", "demo", "--", "/no/such"}, "", 127, ""},
			{[]string{"whoami"}, "", 0, "acting for  uid:1000"},
		} {
			args := append([]string{c.args[0]}, append(flags, c.args[1:]...)...)
			if r := run(t, c.stdin, args...); r.code != c.code || !strings.Contains(r.out, c.out) || strings.Contains(r.err, secret) {
				t.Errorf("%s, %v: %+v", name, c.args, r)
			}
		}
		t.Setenv(carrel.FingerprintEnv, keys.Fingerprint())
	}
	t.Setenv(carrel.TokenEnv, "")
	t.Setenv(carrel.TokenFileEnv, "")
	if r := run(t, "", "ls"); r.code == 0 || !strings.Contains(r.err, "without a token") {
		t.Errorf("no token: %+v", r)
	}
	t.Setenv(carrel.TokenEnv, "crl_x")
	if r := run(t, "", "ls"); r.code == 0 || !strings.Contains(r.err, "cannot use the token") {
		t.Errorf("half a token: %+v", r)
	}
	if r := run(t, "", "ls", "--host", "http://"+addr); r.code == 0 || !strings.Contains(r.err, "https://HOST:PORT") {
		t.Errorf("plain HTTP: %+v", r)
	}
}
