package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/cli"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// What an agent is set up with has workspace and context, and no token.
func TestMCPSetup(t *testing.T) {
	fresh(t)
	const secret = "crl_0123456789ab_secretsecretsecret"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"mcp --print-config claude demo", "claude mcp add carrel -- carrel mcp demo\n"},
		{"mcp --print-config claude", "claude mcp add carrel -- carrel mcp\n"},
		{
			"mcp --print-config codex --host unix:///run/a.sock --token-file " + file + " demo",
			"codex mcp add carrel -- carrel --host unix:///run/a.sock --token-file " + file + " mcp demo\n",
		},
		{
			"mcp --print-config opencode --rootless demo",
			`{"mcp":{"carrel":{"command":["carrel","--rootless","mcp","demo"],"enabled":true,"type":"local"}}}` + "\n",
		},
		{"mcp --print-config cursor -- -100", `{"mcpServers":{"carrel":{"args":["mcp","--","-100"],"command":"carrel"}}}` + "\n"},
	} {
		r := run(t, "", words(c.args)...)
		// Where the program lies depends on the host.
		got := r.out
		for _, w := range strings.FieldsFunc(got, func(r rune) bool { return strings.ContainsRune(" \"[],", r) }) {
			if strings.HasSuffix(w, "/carrel") {
				got = strings.ReplaceAll(got, w, "carrel")
			}
		}
		if r.code != 0 || got != c.want {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
		if strings.HasPrefix(r.out, "{") && !json.Valid([]byte(r.out)) {
			t.Errorf("%s: no JSON", c.args)
		}
	}
	t.Setenv(carrel.TokenEnv, secret)
	r := run(t, "", "mcp", "--print-config", "claude", "demo")
	if r.code != 0 || strings.Contains(r.out+r.err, secret) || !strings.Contains(r.err, "--token-file") {
		t.Errorf("with a token in the environment: %+v", r)
	}
	t.Setenv(carrel.TokenEnv, "")
	done(t, "context add prod --host unix:///run/prod.sock --use")
	if got := done(t, "mcp --print-config claude demo"); !strings.HasSuffix(got, " --context prod mcp demo\n") {
		t.Errorf("with a context: %q", got)
	}
}

func TestMCPRefuses(t *testing.T) {
	serve(t, alice)
	for _, c := range []struct{ args, want string }{
		{"mcp --print-config emacs", "it is one of claude, codex, opencode, cursor"},
		{"mcp --print-config claude --listen 127.0.0.1:0", "leave --listen out"},
		{"mcp --any-address", "without --listen"},
		{"mcp --client-token-file x", "without --listen"},
		{"mcp --listen 7450", "no address with a port"},
		{"mcp --listen localhost:7450", "no address with a port"},
		{"mcp --listen 127.0.0.1:0", "--client-token-file"},
		{"mcp --listen 0.0.0.0:0 --client-token-file x", "others could reach it"},
		{"mcp --listen [::]:0 --client-token-file x", "others could reach it"},
		{"mcp --listen unix:/tmp/x --client-token-file x", "leave it out"},
		{"mcp none", "carrel create"},
		{"mcp demo more", "more"},
	} {
		if r := run(t, "", words(c.args)...); r.code == 0 || !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
	}
	// A client that closes stdin at once is the end, and no error.
	if r := run(t, "", "mcp", "demo"); r.code != 0 || r.out != "" {
		t.Errorf("%+v", r)
	}
}

func TestClientToken(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	made, err := cli.ClientToken(file)
	fi, serr := os.Stat(file)
	if err != nil || serr != nil || len(made) < 26 || fi.Mode() != 0o600 {
		t.Fatalf("%q, %v, %v, %v", made, err, fi, serr)
	}
	if again, err := cli.ClientToken(file); err != nil || again != made {
		t.Errorf("%q, %v", again, err)
	}
	for name, f := range map[string]func() error{
		"open to others": func() error { return os.Chmod(file, 0o640) },
		"short":          func() error { return os.WriteFile(file, []byte("secret\n"), 0o600) },
		"two words":      func() error { return os.WriteFile(file, []byte(strings.Repeat("secret ", 10)), 0o600) },
		"long":           func() error { return os.WriteFile(file, []byte(strings.Repeat("x", 5000)), 0o600) },
		"a directory":    func() error { return os.Mkdir(file, 0o700) },
		"a link": func() error {
			if err := os.WriteFile(file+".real", []byte(strings.Repeat("x", 40)), 0o600); err != nil {
				return err
			}
			return os.Symlink(file+".real", file)
		},
	} {
		os.RemoveAll(file)
		if name == "open to others" {
			if err := os.WriteFile(file, []byte(strings.Repeat("x", 40)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if got, err := cli.ClientToken(file); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestPrivateSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "carrel")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "s")
	l, err := cli.PrivateSocket(t.Context(), at)
	fi, serr := os.Lstat(at)
	if err != nil || serr != nil || fi.Mode().Perm()&0o077 != 0 {
		t.Fatalf("%v, %v, %v", err, fi, serr)
	}
	if _, err := cli.PrivateSocket(t.Context(), at); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second one: %v", err)
	}
	l.Close()
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cli.PrivateSocket(t.Context(), at); err == nil {
		t.Error("a file was replaced")
	}
}
