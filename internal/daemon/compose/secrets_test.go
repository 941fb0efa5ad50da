package compose_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// What has no shape and stands in no telling place.
const (
	github     = "gh" + "p_a1B2c3D4ea1B2c3D4ea1B2c3D4ea1B2c3D4e"
	toldSecret = "violet umbrella's 42" // of a file of the operator's
	ownSecret  = "Lantern<9>quill"      // in a variable of the command
	wordSecret = "Cobalt-0-finch"       // told, and one plain word
)

// inEveryForm are the ways in which a secret must not be found.
func inEveryForm(secret string) []string {
	asJSON, err := json.Marshal(secret)
	if err != nil {
		panic(err)
	}
	return []string{
		secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret),
		url.PathEscape(secret),
		strings.Trim(string(asJSON), `"`), strings.ReplaceAll(secret, "'", `'\''`),
	}
}

// Secrets that carrel was told, and those among a command's variables, are in no record, no
// question, no event, no span and no log line, whatever way they come.
func TestKnownSecretsAreNowhere(t *testing.T) {
	var mu sync.Mutex
	var told []string
	note := func(v any) {
		mu.Lock()
		defer mu.Unlock()
		b, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		told = append(told, string(b), fmt.Sprintf("%+v", v))
	}
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}, redact: redact.New([]byte("k"))}
	h.redact.Know("files", toldSecret, wordSecret)
	h.observe = func(p *gate.Passage) {
		if p.Err != nil {
			note(h.redact.Text(p.Err.Error())) // as telemetry does
		}
	}
	h.start()
	t.Cleanup(h.crash)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(alice, id.Key("for "+toldSecret))
	env := []string{"DEPLOY_TOKEN=" + ownSecret, "PATH=/usr/bin"}
	both := toldSecret + " and " + ownSecret
	try := func(p principal.Principal, ref string, argv ...string) {
		t.Helper()
		e := run(argv...)
		e.Env = env
		_, _, err := h.Run(ctx, p, ref, e)
		if err != nil && p.UID != alice.UID && strings.Contains(err.Error(), ownSecret) {
			t.Error(err)
		}
	}
	at := len(h.records())
	for _, form := range append(inEveryForm(toldSecret), inEveryForm(ownSecret)...) {
		try(alice, "demo", "echo", "x="+form)
		try(alice, "demo", "sh", "-c", "cat <<E\n"+form+"\nE\necho "+form+";")
		try(bob, "demo", "echo", form)                               // not his
		try(alice, "demo", "rm", "-rf", "/"+form, "/var/lib/carrel") // nobody's
	}
	for n := 90; n < 300; n += 5 { // where reasons are cut
		try(alice, "demo", "rm", "-rf", "/"+strings.Repeat("y", n)+toldSecret, "/"+strings.Repeat("z", n)+ownSecret, "/var/lib/carrel")
		try(alice, "demo", "sh", "-c", "rm -rf /"+strings.Repeat("y", n)+"/"+github+" /var/lib/carrel")
	}
	try(bob, "for "+toldSecret, "true")
	try(alice, "demo", "printf", strings.Repeat("x", 16<<10-14-len(toldSecret)), both) // where a record is cut
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "run" {
			return errors.New("cannot start: " + both + ": " + base64.StdEncoding.EncodeToString([]byte("user:"+ownSecret)))
		}
		return nil
	})
	try(alice, "demo", "nonesuch")
	h.rt.setHook(nil)

	// A person is asked, but not about what would be behind a mask.
	e := run("git", "push", "https://example.com/in", toldSecret)
	e.Asked = execapi.Asked{Source: "llm", Thread: "t"}
	_, _, err := h.Run(ctx, alice, "demo", e)
	if err == nil || !strings.Contains(err.Error(), "would not see all of it") {
		t.Error(err)
	}
	note(fmt.Sprint(err))
	e = run("git", "push", "https://example.com/in", wordSecret)
	e.Env, e.Cwd = env, "/tmp/"+wordSecret
	e.Asked = execapi.Asked{Source: "llm", Thread: "t"}
	a, done := h.started(alice, e)
	note(a)
	one, err := h.Approval(ctx, admin, a.ID)
	if err != nil || !strings.Contains(strings.Join(one.Argv, " "), "[redacted:secret:") {
		t.Errorf("%+v %v", one, err)
	}
	note(one)
	answered, err := h.Answer(ctx, admin, a.ID, approval.Thread, "since it is "+toldSecret, false)
	if err != nil {
		t.Fatal(err)
	}
	note(answered)
	if err := <-done; err != nil {
		t.Error(err)
	}
	permissions, err := h.Permissions(ctx, admin, "", "")
	if err != nil || len(permissions) != 1 {
		t.Error(permissions, err)
	}
	note(permissions)
	if err := h.Watch(ctx, admin, nil, 1, func(ev workspace.Event, _ int64) error {
		note(ev)
		if ev.Kind == "approval.answered" {
			return errors.New("enough")
		}
		return nil
	}); err == nil {
		t.Error("the events ended")
	}

	records := h.records()[at:]
	if err := h.Close(ctx); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(h.log.Path())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if strings.Contains(string(r.Action), `"argv":["echo"`) && !strings.Contains(string(r.Action), "[redacted:secret:") {
			t.Errorf("%s has nothing in the place of a secret", r.Action)
		}
	}
	// Of the database, the key of a workspace is what it is found by.
	kept := []byte{}
	for _, name := range []string{"carrel.db", "carrel.db-wal"} {
		b, err := os.ReadFile(filepath.Join(h.dir, name))
		if err == nil {
			kept = append(kept, b...)
		}
	}
	kept = bytes.ReplaceAll(kept, []byte("for "+toldSecret), nil)
	parts := []string{wordSecret, toldSecret[:7], ownSecret[:7], github[:11]}
	for _, form := range slices.Concat(inEveryForm(toldSecret), inEveryForm(ownSecret), parts) {
		for what, text := range map[string]string{
			"record": string(raw), "database": string(kept), "log": h.logs.String(),
			"what is shown": strings.Join(told, "\n"),
		} {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("%q is in the %s: …%s…", form, what, text[max(0, i-200):min(len(text), i+100)])
			}
		}
	}
}

// The value of a secret that is kept is in no file of the daemon's, in no line of its log, in nothing that is told of the
// request and in no error: not when it is stored, rotated and removed, and not when that is refused or fails.
func TestKeptSecretsAreNowhere(t *testing.T) {
	var mu sync.Mutex
	var told strings.Builder
	note := func(v any) {
		mu.Lock()
		defer mu.Unlock()
		b, err := json.Marshal(v)
		fmt.Fprintf(&told, "%v %+v %#v %s %v\n", v, v, v, b, err)
	}
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}}
	h.observe = func(p *gate.Passage) { note(*p) }
	h.start()
	t.Cleanup(h.crash)
	ctx := t.Context()
	scoped, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"demo"}})
	const first, second = "Walnut<Quartz>73", "Pewter&Heron's 58"
	var values []string
	attempt := func(p principal.Principal, name, value string) {
		values = append(values, value)
		v := redact.NewValue(value)
		x, err := h.SetSecret(ctx, p, workspace.Secret{Name: name, Hosts: []string{"a.example"}}, v)
		note(x)
		note(fmt.Sprint(err))
		x, err = h.RotateSecret(ctx, p, name, v)
		note(x)
		note(fmt.Sprint(err))
	}
	attempt(alice, "A_KEY", first)
	attempt(alice, "A_KEY", second)                     // it is there
	attempt(alice, "A_KEY", second+"\n")                // refused for its form
	attempt(scoped, "B_KEY", first+second)              // refused for who asks
	attempt(alice, "C_KEY", strings.Repeat(first, 600)) // too long
	attempt(alice, "not a name", first+"4")
	if _, err := h.Held(ctx, "uid:1000", []string{"A_KEY", "NONE"}); err == nil {
		t.Error("one that is not there was found")
	} else {
		note(err.Error())
	}
	held, err := h.Held(ctx, "uid:1000", []string{"A_KEY"})
	if err != nil || held[0].Value.Reveal() != second {
		t.Fatal(err)
	}
	note(held)
	list, err := h.ListSecrets(ctx, alice)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	note(list)
	h.store.Close() // what fails in the middle says so, and not more
	attempt(alice, "D_KEY", first+"5")
	note(fmt.Sprint(h.RemoveSecret(ctx, alice, "", "A_KEY")))
	if err := h.log.Flush(); err != nil {
		t.Fatal(err)
	}
	found := func(where, text string) (all []string) {
		for _, value := range values {
			// Of a short value a hash tells too much.
			sum := sha256.Sum256([]byte(value))
			for _, form := range append(inEveryForm(value), string(sum[:]), hex.EncodeToString(sum[:])) {
				if strings.Contains(text, form) {
					all = append(all, fmt.Sprintf("%q in %s", form, where))
				}
			}
		}
		return all
	}
	var all []string
	files := 0
	err = filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files++
		all = append(all, found(path, string(b))...)
		return err
	})
	all = append(append(all, found("the log", h.logs.String())...), found("what is told", told.String())...)
	if err != nil || files < 3 || len(all) > 0 {
		t.Errorf("%v: of %d files: %s", err, files, strings.Join(all, "\n"))
	}
	// The search finds a value that is written somewhere.
	if len(found("a log", "level=INFO value="+first)) == 0 || len(found("a file", base64.StdEncoding.EncodeToString([]byte(second)))) == 0 {
		t.Error("the search finds nothing")
	}
	if !strings.Contains(told.String(), "secret.set") || !strings.Contains(told.String(), "A_KEY") {
		t.Errorf("what was told is %s", &told)
	}
}

// What another principal, who may list the commands of a workspace, sees of one with secrets
// among its words: none, wherever they are known from; of an executor of before, those of the
// command's variables.
func TestListedWithoutSecrets(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}, redact: redact.New([]byte("k"))}
	h.redact.Know("files", toldSecret, wordSecret)
	h.start()
	t.Cleanup(h.crash)
	ctx := t.Context()
	h.create(alice, "demo")
	token, _ := h.issue(alice, principal.Wanted{Roles: principal.Agent})
	const named = "hunter2hunter2"
	for name, argv := range map[string][]string{
		"words":  {"deploy", toldSecret, "--x=" + ownSecret, github, "--password", named},
		"script": {"sh", "-c", "cat <<'E'\n" + toldSecret + " " + ownSecret + " " + github + " --password=" + named + "\nE"},
		"long": {"sh", "-c", "cat <<'E'\n" + strings.Repeat("x",
			230) + " " + toldSecret + " " + ownSecret + " " + github + " --password=" + named + strings.Repeat("y", 2000) + "\nE"},
	} {
		e := run(argv...)
		e.Env = []string{"DEPLOY_TOKEN=" + ownSecret}
		if _, err := h.Detach(ctx, alice, "demo", e, false); err != nil {
			t.Fatal(err)
		}
		sent := h.rt.detached
		if !slices.Equal(sent.Argv, argv) {
			t.Errorf("%s: another command was run: %q", name, sent.Argv)
		}
		for _, c := range []struct {
			listed []string
			hidden []string
		}{{sent.Shown, []string{toldSecret, ownSecret, github, named}}, {argv, []string{toldSecret, github, named}}} {
			h.rt.list = []execapi.Command{{ID: sent.ID, Argv: c.listed}}
			for _, p := range []principal.Principal{alice, admin, token} {
				list, err := h.ListCommands(ctx, p, "demo")
				if err != nil || len(list) != 1 || list[0].Argv[0] != argv[0] {
					t.Fatal(list, err)
				}
				for _, secret := range c.hidden {
					if strings.Contains(strings.Join(list[0].Argv, " "), secret) {
						t.Errorf("%s: %s sees %q: %q", name, p, secret, list[0].Argv)
					}
				}
			}
		}
	}
	// What has none is listed as it is.
	if _, err := h.Detach(ctx, alice, "demo", run("sleep", "9"), false); err != nil {
		t.Fatal(err)
	}
	if h.rt.detached.Shown != nil {
		t.Errorf("%q", h.rt.detached.Shown)
	}
}

// One user's variables are not looked for in what another does: whoever guesses one would see
// that it is there.
func TestVariablesAreTheirOwners(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}, redact: redact.New([]byte("k"))}
	h.start()
	t.Cleanup(h.crash)
	h.create(alice, "demo")
	h.create(bob, "other")
	e := run("sleep", "9")
	e.Env = []string{"DEPLOY_TOKEN=" + ownSecret}
	if _, _, err := h.Spawn(t.Context(), alice, "demo", e, false); err != nil {
		t.Fatal(err)
	}
	at := len(h.records())
	if _, _, err := h.Run(t.Context(), bob, "other", run("echo", ownSecret)); err != nil {
		t.Fatal(err)
	}
	var a said
	if err := json.Unmarshal(h.records()[at].Action, &a); err != nil || a.Argv[1] != ownSecret {
		t.Error(a.Argv, err)
	}
}
