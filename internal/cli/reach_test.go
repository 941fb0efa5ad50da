package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reach is the JSON of "carrel egress".
type reach struct {
	Workspace string
	Egress    bool
	Allow     []string
	Deny      []string
}

func rulesOf(t *testing.T, args ...string) (r reach) {
	t.Helper()
	got := run(t, "", append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.code != 0 {
		t.Fatalf("%v: %+v, %v", args, got, err)
	}
	return r
}

func TestEgressOfWorkspaces(t *testing.T) {
	serve(t, alice)
	const name = "ws-2a97516c"
	if r := run(t, "", words("create --allow @github --allow userns --allow a.example:22 --deny ads.example net")...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := rulesOf(t, "egress", "rules", "net"); !got.Egress || !slices.Equal(got.Allow, []string{"@github", "a.example:22"}) ||
		!slices.Equal(got.Deny, []string{"ads.example"}) {
		t.Errorf("created with %+v", got)
	}
	if r := run(t, "", "egress", "rules", "net"); r.out != "ACTION  RULE\nallow   @github\nallow   a.example:22\ndeny    ads.example\n" ||
		r.err != "" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "inspect", "net"); !strings.Contains(r.out, "allow @github, allow a.example:22, deny ads.example\n") {
		t.Errorf("inspect: %s", r.out)
	}
	if r := run(t, "", words("egress rules demo -o json")...); !strings.Contains(r.out, `"allow": []`) ||
		!strings.Contains(r.out, `"deny": []`) {
		t.Errorf("none: %s", r.out)
	}
	// demo runs without a way out.
	if r := run(t, "", "egress", "allow", "demo", "b.example", "c.example"); r.code != 0 || r.out != "" ||
		!strings.Contains(r.err, "from its next start on") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "egress", "rules", "demo"); !strings.Contains(r.err, "from its next start on") ||
		!strings.Contains(r.err, "carrel restart "+name) {
		t.Errorf("%+v", r)
	}
	if got := rulesOf(t, "egress", "deny", "demo", "b.example"); got.Workspace != name || !slices.Equal(got.Deny, []string{"b.example"}) {
		t.Errorf("%+v", got)
	}
	if r := run(t, "", "egress", "allow", "demo", "b.example"); r.code != 0 || !strings.Contains(r.err, "b.example is denied too") ||
		!strings.Contains(r.err, "carrel egress rm "+name+" b.example") {
		t.Errorf("%+v", r)
	}
	if got := rulesOf(t, "egress", "rm", "demo", "b.example"); !slices.Equal(got.Allow, []string{"c.example"}) || len(got.Deny) != 0 {
		t.Errorf("%+v", got)
	}
	if r := run(t, "", "egress", "rm", "demo", "b.example"); r.code != 1 || !strings.Contains(r.err, "there are allow c.example") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "update", "--allow", "d.example", "--deny", "e.example", "demo"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if got := rulesOf(t, "egress", "rules", "demo"); !slices.Equal(got.Allow, []string{"c.example", "d.example"}) ||
		!slices.Equal(got.Deny, []string{"e.example"}) {
		t.Errorf("%+v", got)
	}
	for range 2 {
		if got := rulesOf(t, "egress", "rm", "--all", "demo"); len(got.Allow)+len(got.Deny) != 0 {
			t.Errorf("%+v", got)
		}
	}
	for args, want := range map[string]string{
		"egress allow demo":          "the argument RULE is missing",
		"egress rm demo":             "the argument RULE is missing",
		"egress rm --all demo x":     "takes WORKSPACE and nothing more",
		"egress rules":               "the argument WORKSPACE is missing",
		"update --allow userns demo": "that is chosen when one is made",
		"update --allow nohost demo": "there is no such opening",
		"create --allow nohost x":    "there is no such opening",
		"egress allow nope a.b":      "cannot find workspace",
	} {
		if r := run(t, "", strings.Fields(args)...); r.code != 1 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
}

// The sets of package clients are expanded here: the daemon gets hosts.
func TestEgressSetsOfClients(t *testing.T) {
	serve(t, alice)
	bin, home := t.TempDir(), t.TempDir()
	npm := "#!/bin/sh\n[ \"$*\" = 'config get registry' ] && echo https://npm.example:8443/\n"
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte(npm), 0o755); err != nil {
		t.Fatal(err)
	}
	// What the caller keeps for runs without root is not used.
	config := filepath.Join(home, ".config", "carrel")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	mine := []byte("allow: [mine.example]\nsets: {npm: [mine.example]}\n")
	if err := os.WriteFile(filepath.Join(config, "egress.yaml"), mine, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("npm_config_registry", "")
	t.Setenv("PATH", bin)
	if r := run(t, "", "create", "--allow", "@npm", "--allow", "@github", "--deny", "a.example", "net"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	want := reach{Egress: true, Allow: []string{"npm.example:8443", "@github"}, Deny: []string{"a.example"}}
	got := rulesOf(t, "egress", "rules", "net")
	got.Workspace = ""
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := rulesOf(t, "egress", "allow", "demo", "@npm"); !slices.Equal(got.Allow, []string{"npm.example:8443"}) {
		t.Errorf("%+v", got)
	}
	if got := rulesOf(t, "egress", "rm", "demo", "@npm"); len(got.Allow) != 0 {
		t.Errorf("%+v", got)
	}
	// A client that commands of the workspace may have written is not run.
	if r := run(t, "", "create", "-v", bin+":/mnt/x", "--allow", "@npm", "other"); r.code != 1 || !strings.Contains(r.err, "@npm") {
		t.Errorf("a client in a mount: %+v", r)
	}
	if r := run(t, "", "update", "--allow", "@cargo", "demo"); r.code != 1 || !strings.Contains(r.err, "@cargo") {
		t.Errorf("a set without hosts: %+v", r)
	}
}

func TestEgressCompletes(t *testing.T) {
	serve(t, alice)
	if r := run(t, "", "egress", "allow", "demo", "a.example", "b.example"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for args, want := range map[string]string{
		"egress allow":             "demo\trunning\n",
		"egress rules":             "demo\trunning\n",
		"egress rm":                "demo\trunning\n",
		"egress deny demo":         "@apt\n",
		"egress rm demo":           "a.example\nb.example\n",
		"egress rm demo a.example": "b.example\n",
		"update --allow":           "@apt\n",
	} {
		r := run(t, "", append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		if r.code != 0 || !strings.HasPrefix(r.out, want) {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
}

// What a person is asked about is given, shown, completed and removed as other rules are.
func TestEgressAsk(t *testing.T) {
	serve(t, alice)
	if r := run(t, "", words("create --ask *.example --ask @github --allow a.example net")...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	const table = "ACTION  RULE\nallow   a.example\nask     *.example\nask     @github\n"
	if r := run(t, "", "egress", "rules", "net"); r.out != table || r.err != "" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", words("egress rules net -o json")...); !strings.Contains(r.out, `"ask": [`) ||
		!strings.Contains(r.out, `"approved": []`) {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", words("egress ask net a.example")...); r.code != 0 || r.err != "" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", words("egress allow net @github")...); r.code != 0 || !strings.Contains(r.err, "still asked about @github") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", words("egress rm net a.example @github")...); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", words("update --ask b.example net")...); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "egress", "rules", "net"); r.out != "ACTION  RULE\nask     *.example\nask     b.example\n" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "__complete", "egress", "rm", "net", ""); !strings.HasPrefix(r.out, "*.example\nb.example\n") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", words("egress rm --all net")...); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "egress", "rules", "net"); r.out != "ACTION  RULE\n" {
		t.Errorf("%+v", r)
	}
}
