package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

const typed = "plain thimble 33"

func TestSecretCommands(t *testing.T) {
	g := serve(t, alice)
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("of a file\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in    string
		args  []string
		out   string
		value string
	}{
		{
			typed + "\n",
			[]string{"set", "A_KEY", "--host", "a.example", "--host", "*.b.example:8443", "--header", "X-Key"},
			"a.example, *.b.example:8443", typed,
		},
		{typed, []string{"rotate", "A_KEY", "-o", "json"}, `"rotated_at": "2`, typed},
		{typed + "\r\n", []string{"rotate", "A_KEY"}, "X-Key", typed + "\r"},
		{typed + "\n\n", []string{"rotate", "A_KEY"}, "rotated", typed + "\n"},
		{"not read", []string{"rotate", "A_KEY", "--file", file}, "A_KEY", "of a file\n"},
	} {
		r := run(t, c.in, append([]string{"secret"}, c.args...)...)
		if r.code != 0 || !strings.Contains(r.out, c.out) || strings.Contains(r.out+r.err, typed) || g.ValueOf("uid:1000", "A_KEY") != c.value {
			t.Errorf("%q: %+v, %q", c.args, r, g.ValueOf("uid:1000", "A_KEY"))
		}
	}
	r := run(t, "", "secret", "ls")
	if r.code != 0 || !strings.Contains(r.out, "A_KEY   a.example,*.b.example:8443  X-Key    all       uid:1000") {
		t.Errorf("%+v", r)
	}
	var list []map[string]any
	if r := run(t, "", "secret", "ls", "-o", "json"); json.Unmarshal([]byte(r.out), &list) != nil || len(list) != 1 || len(list[0]) != 10 ||
		list[0]["name"] != "A_KEY" || list[0]["owner"] != "uid:1000" || list[0]["created_at"] == nil {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "__complete", "secret", "rm", ""); !strings.HasPrefix(r.out, "A_KEY\ta.example,*.b.example:8443\n") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "__complete", "secret", "rotate", "A_KEY", ""); strings.Contains(r.out, "A_KEY") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "__complete", "secret", "set", "ANTHROPIC"); !strings.HasPrefix(r.out, "ANTHROPIC_API_KEY\n") {
		t.Errorf("%+v", r)
	}
	r = run(t, typed, "secret", "set", "PUT", "--host", "a.example", "--inject", "header:Authorization: Bearer {}", "--method", "GET,POST",
		"--path", "/v1/*")
	if r.code != 0 || !strings.Contains(r.out, "header:Authorization: Bearer {}") || !strings.Contains(r.out, "GET, POST") {
		t.Errorf("%+v", r)
	}
	r = run(t, "", "secret", "ls")
	if !strings.Contains(r.out, "header:Authorization: Bearer {}  GET,POST,/v1/*  uid:1000") {
		t.Errorf("%+v", r)
	}
	r = run(t, "", "secret", "rm", "A_KEY", "NONE")
	if r.code != 1 || r.out != "A_KEY\n" || !strings.Contains(r.err, `"carrel secret set NONE"`) {
		t.Errorf("%+v", r)
	}
}

func TestSecretErrors(t *testing.T) {
	g := serve(t, alice)
	bob := principal.Principal{Kind: principal.User, UID: 1001}
	if _, err := g.SetSecret(t.Context(), bob, workspace.Secret{Name: "BOBS"}, redact.NewValue(typed)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ in, args, err string }{
		{"", "set A_KEY", "nothing was read"},
		{"\n", "set A_KEY", "nothing was read"},
		{strings.Repeat("x", 8<<10+1), "set A_KEY", "longer than 8192 bytes"},
		{strings.Repeat("x", 1<<20), "rotate A_KEY", "longer than 8192 bytes"},
		{"", "set A_KEY --file " + t.TempDir(), "no regular file"},
		{"", "set A_KEY --file /nowhere/at/all", "no such file"},
		{"", "set A_KEY " + strings.ReplaceAll(typed, " ", ""), "every process of the host can read"},
		{"", "rotate A_KEY " + strings.ReplaceAll(typed, " ", ""), "every process of the host can read"},
		{typed, "set GITHUB_TOKEN --host unix:///run/carrel/carrel.sock", "name the daemon with CARREL_HOST or --context"},
		{"", "set", "NAME"},
		{"", "rm", "NAME"},
		{"", "frob", "secret has set, rotate, ls and rm"},
		{typed, "rotate NONE", `"carrel secret set NONE"`},
		{typed, "rotate BOBS", `"carrel secret set BOBS"`},
		{"", "rm --owner bob BOBS", `give one as "uid:1000"`},
	} {
		r := run(t, c.in, append([]string{"secret"}, words(c.args)...)...)
		if r.code != 1 || r.out != "" || !strings.Contains(r.err, c.err) || strings.Contains(r.err, typed) || strings.Contains(r.err, "thimble") {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
	// The longest that may be arrives whole, with a line end behind it.
	long := strings.Repeat("x", 8<<10)
	if r := run(t, long+"\n", "secret", "set", "LONG", "--host", "a.example"); r.code != 0 || g.ValueOf("uid:1000", "LONG") != long {
		t.Errorf("%+v", r)
	}
	if r := run(t, typed, "secret", "set", "LONG"); r.code != 1 || !strings.Contains(r.err, `"carrel secret rotate LONG"`) {
		t.Errorf("%+v", r)
	}
}
