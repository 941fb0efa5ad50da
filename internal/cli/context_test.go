package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// fresh is a user without contexts and variables. It returns the path of the file of contexts.
func fresh(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, name := range []string{
		carrel.HostEnv, carrel.TokenEnv, carrel.TokenFileEnv, carrel.FingerprintEnv, carrel.CAFileEnv, "CARREL_CONTEXT", "CARREL_ROOTLESS",
	} {
		t.Setenv(name, "")
	}
	return filepath.Join(dir, "carrel", "contexts.yaml")
}

func done(t *testing.T, args string) string {
	t.Helper()
	r := run(t, "", words(args)...)
	if r.code != 0 || r.err != "" {
		t.Fatalf("%s: %+v", args, r)
	}
	return r.out
}

func TestContexts(t *testing.T) {
	file := fresh(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("crl_not-one"), 0o600); err != nil {
		t.Fatal(err)
	}
	done(t, "context add a --host unix:///run/a.sock --use")
	done(t, "context add b --host https://b.example:7443")
	if fi, err := os.Stat(file); err != nil || fi.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", fi, err)
	}
	if out := done(t, "context ls"); out != "IN USE  NAME  HOST                    TOKEN\n*       a     unix:///run/a.sock      -\n"+
		"        b     https://b.example:7443  -\n" {
		t.Errorf("ls:\n%s", out)
	}
	done(t, "context use b")
	if out := done(t, "context show -o json"); !strings.Contains(out, `"name": "b"`) || !strings.Contains(out, `"in_use": true`) {
		t.Errorf("show: %s", out)
	}
	done(t, "context rm b")
	for _, c := range []struct{ args, want string }{
		{"context show", `cannot show the context in use: there is none`},
		{"context add a --host unix:///run/c.sock", "there is one; --replace replaces it"},
		{"context add c", "--host is missing"},
		{"context add ../c --host unix:///c", "cannot name a context"},
		{"context add c --host http://c:1", "https://HOST:PORT"},
		{"context add c --host unix:///run/c.sock --token-file " + token, "cannot add the context c: use the token"},
		{"context add c --host unix:///run/c.sock --token-file /nowhere", "cannot add the context c: read the token"},
		{"context use c", `cannot find the context "c": there is a; add it with "carrel context add c --host HOST"`},
		{"context use", "--none"},
		{"context rm a c", `cannot find the context "c"`},
		{"ls --context c", `cannot find the context "c"`},
		{"ls --context a --host unix:///x", "cannot use --context together with --host"},
		{"ls --context a --rootless", "cannot use --context together with --host or --rootless"},
	} {
		if r := run(t, "", words(c.args)...); r.code == 0 || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
	}
	// What failed has changed nothing.
	if out := done(t, "context ls"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "unix:///run/a.sock") {
		t.Errorf("ls:\n%s", out)
	}
	for _, args := range []string{"context use", "context rm", "ls --context"} {
		if r := run(t, "", append(append([]string{"__complete"}, words(args)...), "")...); !strings.HasPrefix(r.out, "a\n") {
			t.Errorf("completion of %s: %+v", args, r)
		}
	}
}

// Which carrel is used: flags before variables before the context in use.
func TestPrecedenceOfContexts(t *testing.T) {
	for _, c := range []struct {
		current, context, hostEnv, flags, want, why string
	}{
		{"", "", "", "", "/run/carrel/carrel.sock", ""},
		{"a", "", "", "", "/a", "the context a: it is in use"},
		{"a", "b", "", "", "/b", "the context b: CARREL_CONTEXT names it"},
		{"a", "b", "", "--context c", "/c", "the context c: --context names it"},
		{"a", "b", "unix:///env", "", "/env", "CARREL_HOST names it"},
		{"a", "b", "unix:///env", "--context c", "/c", "the context c: --context names it"},
		{"a", "b", "unix:///env", "--host unix:///flag", "/flag", "--host names it"},
	} {
		fresh(t)
		for _, name := range []string{"a", "b", "c"} {
			done(t, "context add "+name+" --host unix:///"+name)
		}
		if c.current != "" {
			done(t, "context use "+c.current)
		}
		t.Setenv("CARREL_CONTEXT", c.context)
		t.Setenv(carrel.HostEnv, c.hostEnv)
		if c.current == "" && os.Geteuid() != 0 {
			continue // a user's own
		}
		r := run(t, "", append(words(c.flags), "version", "-o", "json")...)
		var v struct{ Host, Why string }
		if err := json.Unmarshal([]byte(r.out), &v); err != nil || v.Host != "unix://"+c.want || c.why != "" && v.Why != c.why {
			t.Errorf("%+v: %+v, %v", c, r, err)
		}
	}
}

// A service has no home, and needs none for a carrel that no context names.
func TestWithoutAHome(t *testing.T) {
	fresh(t)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	t.Setenv(carrel.HostEnv, "")
	if os.Geteuid() == 0 {
		if r := run(t, "", "version", "-o", "json"); r.code != 0 || !strings.Contains(r.out, "root uses the system's") {
			t.Errorf("version: %+v", r)
		}
	}
	if r := run(t, "", "ls", "--context", "a"); r.code == 0 || !strings.Contains(r.err, "HOME") {
		t.Errorf("a context: %+v", r)
	}
}

// A context brings fingerprint and token for its host; what is given beside it goes before that.
func TestAContextConnects(t *testing.T) {
	g := &apitest.Gate{}
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{})
	secret := g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal()
	other := g.Issue(t, alice, principal.Wanted{Roles: principal.Agent}).Reveal()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := fresh(t)
	done(t, "context add far --host https://"+addr+" --fingerprint "+keys.Fingerprint()+" --token-file "+token+" --use")
	if b, err := os.ReadFile(file); err != nil || strings.Contains(string(b), secret) {
		t.Errorf("the file of contexts: %s, %v", b, err)
	}
	if out := done(t, "whoami"); !strings.Contains(out, "operator") {
		t.Errorf("whoami: %s", out)
	}
	t.Setenv(carrel.TokenEnv, other)
	if out := done(t, "whoami"); !strings.Contains(out, "agent") {
		t.Errorf("with a token of the environment: %s", out)
	}
	t.Setenv(carrel.TokenEnv, "")
	// A host that is named gets nothing that belongs to a context.
	r := run(t, "", "ls", "--host", "https://"+addr, "--fingerprint", keys.Fingerprint())
	if r.code == 0 || !strings.Contains(r.err, "without a token") {
		t.Errorf("another host got the context's token: %+v", r)
	}
}

func TestTheFileOfContextsIsRead(t *testing.T) {
	const good = "current: a\ncontexts:\n  a:\n    host: unix:///a\n"
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"good":          {good, 0o600, ""},
		"open":          {good, 0o640, "others may read or write it (mode 0640); chmod 600 it"},
		"unknown key":   {good + "    token: crl_x\n", 0o600, "line 5, column 5: unknown field \"token\""},
		"twice":         {good + "    host: unix:///b\n", 0o600, "line 5, column 5"},
		"no host":       {"contexts:\n  a:\n    token_file: /x\n", 0o600, "the context a has no host"},
		"relative":      {"contexts:\n  a:\n    host: unix:///a\n    token_file: x\n", 0o600, "must be absolute"},
		"none in use":   {"current: b\ncontexts:\n  a:\n    host: unix:///a\n", 0o600, `there is no context "b", which is in use`},
		"no mapping":    {"- a\n", 0o600, "line 1"},
		"a bad name":    {"contexts:\n  ../x:\n    host: unix:///a\n", 0o600, "is no name of a context"},
		"not even YAML": {"a: [\n", 0o600, "cannot use the contexts in"},
	} {
		file := fresh(t)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		r := run(t, "", "context", "ls")
		if (r.code == 0) != (c.want == "") || !strings.Contains(r.err, c.want) || strings.Count(r.err, "\n") > 1 {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
	file := fresh(t)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(t.TempDir(), "real")
	if err := os.WriteFile(real, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, file); err != nil {
		t.Fatal(err)
	}
	if r := run(t, "", "context", "ls"); r.code == 0 {
		t.Errorf("a link is followed: %+v", r)
	}
}
