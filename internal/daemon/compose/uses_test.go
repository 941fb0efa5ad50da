package compose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// withSecrets is a house with two secrets of alice's, KEY and OTHER.
func withSecrets(t *testing.T) (*house, *outside) {
	h, o := withEgress(t)
	set(t, h, "KEY", "the first value")
	set(t, h, "OTHER", "another value")
	return h, o
}

func set(t *testing.T, h *house, name, value string) {
	t.Helper()
	want := workspace.Secret{Name: name, Hosts: []string{"a.example"}}
	if _, err := h.SetSecret(t.Context(), alice, want, redact.NewValue(value)); err != nil {
		t.Fatal(err)
	}
}

func wantedSecrets(start bool, names ...string) workspace.Wanted {
	w := wantedReach("demo", start, "a.example")
	w.Secrets = names
	return w
}

// A workspace is started with the authority that its secrets need, its way out is told their values, and its commands
// have placeholders.
func TestSecretsOfAWorkspace(t *testing.T) {
	h, o := withSecrets(t)
	ctx := t.Context()
	w, _, err := h.Create(ctx, alice, wantedSecrets(true, "KEY"))
	if err != nil || w.Trust == "" || !slices.Equal(w.Secrets.Names(), []string{"KEY"}) {
		t.Fatalf("%+v, %v", w, err)
	}
	opened := string(w.Name) + " allow a.example KEY=the first value"
	if !slices.Equal(o.opened, []string{opened}) || len(o.checked) != 1 {
		t.Errorf("opened %q, checked %q", o.opened, o.checked)
	}
	if _, _, err := h.Run(ctx, alice, "demo", execapi.ExecParams{Argv: []string{"true"}, Env: []string{"MINE=1"}}); err != nil {
		t.Fatal(err)
	}
	placeholder := w.Secrets.Uses[0].Placeholder
	if env := h.rt.lastEnv; len(env) < 3 || env[0] != "KEY="+placeholder || env[len(env)-1] != "MINE=1" ||
		!slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_FILE=") }) {
		t.Errorf("the command has %q", env)
	}
	for _, r := range h.records() {
		if text := string(r.Action) + string(r.Data); strings.Contains(text, "the first value") || strings.Contains(text, placeholder) {
			t.Errorf("the record has %s", text)
		}
	}
	if !slices.ContainsFunc(h.records(), func(r audit.Record) bool { return strings.Contains(string(r.Action), `"secrets":["KEY"]`) }) {
		t.Error("no intent names the secret")
	}
	// A daemon that starts again finds the authority that the workspace trusts.
	o.opened = nil
	h.crash()
	h.start()
	if !slices.Equal(o.opened, []string{opened}) {
		t.Errorf("after a crash: opened %q", o.opened)
	}
	// Stopped and started, it trusts the same one.
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Start(ctx, alice, "demo"); err != nil || v.Trust != w.Trust || v.Secrets.Uses[0].Placeholder != placeholder {
		t.Errorf("%+v, %v", v, err)
	}
	// A repeated create takes what there is, and not others.
	for _, names := range [][]string{nil, {"KEY"}} {
		if _, created, err := h.Create(ctx, alice, wantedSecrets(true, names...)); err != nil || created {
			t.Errorf("%q: %v, %v", names, created, err)
		}
	}
	if _, _, err := h.Create(ctx, alice, wantedSecrets(true, "OTHER")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("others: %v", err)
	}
}

func TestSecretsThatCannotBeUsed(t *testing.T) {
	h, o := withSecrets(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, wantedSecrets(true, "NONE")); !errdefs.IsNotFound(err) {
		t.Errorf("one that is not there: %v", err)
	}
	bobs := wantedSecrets(true, "KEY")
	bobs.Key = "bobs"
	if _, _, err := h.Create(ctx, bob, bobs); !errdefs.IsNotFound(err) {
		t.Errorf("that of another: %v", err)
	}
	if _, _, err := h.Create(ctx, alice, wantedSecrets(true, "sk-ant-123456789")); !errdefs.IsInvalidArgument(err) ||
		strings.Contains(err.Error(), "sk-ant") {
		t.Errorf("a secret for a name: %v", err)
	}
	o.unbound = fmt.Errorf("no host gets it: %w", errdefs.ErrInvalidArgument)
	if _, _, err := h.Create(ctx, alice, wantedSecrets(true, "KEY")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one that no host gets: %v", err)
	}
	if n := h.store.Len(); n != 0 {
		t.Errorf("%d workspaces were made", n)
	}
	h.ways = nil
	h.crash()
	h.start()
	if _, _, err := h.Create(ctx, alice, wantedSecrets(true, "KEY")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a daemon without egress: %v", err)
	}
}

// Secrets are added and taken while the workspace runs, if it was started with one.
func TestUpdateOfSecrets(t *testing.T) {
	h, o := withSecrets(t)
	ctx := t.Context()
	w, _, err := h.Create(ctx, alice, wantedSecrets(true))
	if err != nil || w.Trust != "" {
		t.Fatalf("%+v, %v", w, err)
	}
	change := func(p principal.Principal, c workspace.SecretsChange) error {
		_, err := h.Update(ctx, p, "demo", workspace.Change{Secrets: c})
		return err
	}
	if err := change(alice, workspace.SecretsChange{Add: []string{"KEY"}}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "carrel stop "+string(w.Name)) {
		t.Errorf("the first one of a workspace that runs: %v", err)
	}
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if err := change(alice, workspace.SecretsChange{Add: []string{"KEY"}}); err != nil {
		t.Fatal(err)
	}
	if w, err = h.Start(ctx, alice, "demo"); err != nil || w.Trust == "" {
		t.Fatalf("%+v, %v", w, err)
	}
	if err := change(bob, workspace.SecretsChange{Remove: []string{"KEY"}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob takes it: %v", err)
	}
	told := func(want string) {
		t.Helper()
		if n := len(o.told); n == 0 || o.told[n-1] != string(w.Name)+" allow a.example"+want {
			t.Errorf("told %q, want %q", o.told, want)
		}
	}
	if err := change(alice, workspace.SecretsChange{Add: []string{"OTHER"}}); err != nil {
		t.Fatal(err)
	}
	told(" KEY=the first value OTHER=another value")
	// Another value, and none, hold at once.
	if _, err := h.RotateSecret(ctx, alice, "KEY", redact.NewValue("a second value")); err != nil {
		t.Fatal(err)
	}
	told(" KEY=a second value OTHER=another value")
	if err := h.RemoveSecret(ctx, alice, "", "KEY"); err != nil {
		t.Fatal(err)
	}
	told(" OTHER=another value")
	n := len(o.told)
	set(t, h, "NOT_USED", "a value that nobody uses")
	h.Lifecycle.SecretChanged(ctx, bob.Owner(), "OTHER")
	if len(o.told) != n {
		t.Errorf("workspaces were told of secrets that they do not use: %q", o.told[n:])
	}
	if err := change(alice, workspace.SecretsChange{Remove: []string{"KEY", "OTHER"}}); err != nil {
		t.Fatal(err)
	}
	told("")
	if err := change(alice, workspace.SecretsChange{Remove: []string{"KEY"}}); !errdefs.IsNotFound(err) {
		t.Errorf("one that it does not use: %v", err)
	}
	// What was removed keeps no workspace from starting.
	set(t, h, "KEY", "a third value")
	if err := change(alice, workspace.SecretsChange{Add: []string{"KEY"}}); err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveSecret(ctx, alice, "", "KEY"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(ctx, alice, "demo"); err != nil {
		t.Errorf("a secret that was removed: %v", err)
	}
}

// Who may look at a workspace is told what its rules say of hosts, and which secrets those get.
func TestExplainReach(t *testing.T) {
	h, _ := withSecrets(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, wantedSecrets(false, "KEY")); err != nil {
		t.Fatal(err)
	}
	all, err := h.ExplainReach(ctx, alice, "demo", []string{"a.example", "b.example"})
	if err != nil || len(all) != 2 || all[0].Action != "allow" || !slices.Equal(all[0].Secrets, []string{"KEY"}) || all[1].Action != "deny" ||
		all[1].Secrets != nil {
		t.Errorf("%+v, %v", all, err)
	}
	for _, hosts := range [][]string{nil, make([]string, workspace.MaxReachQuestions+1)} {
		if _, err := h.ExplainReach(ctx, alice, "demo", hosts); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d hosts: %v", len(hosts), err)
		}
	}
	if _, err := h.ExplainReach(ctx, bob, "demo", []string{"a.example"}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob: %v", err)
	}
}

// Who may look at a workspace sees its connections, and nobody else does.
func TestConnections(t *testing.T) {
	h, _ := withEgress(t)
	ctx := t.Context()
	w, _, err := h.Create(ctx, alice, wantedReach("demo", false, "a.example"))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := h.Connections(ctx, alice, "demo", 7); err != nil || len(c.Open) != 1 || c.Open[0].Host != string(w.Name) ||
		c.Open[0].Number != 7 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := h.Connections(ctx, bob, string(w.Name), 0); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob: %v", err)
	}
	if _, err := h.Connections(ctx, alice, "gone", 0); !errdefs.IsNotFound(err) {
		t.Errorf("no workspace: %v", err)
	}
}

// Who may not change a secret cannot use one by giving it to a workspace.
func TestWhoGivesSecrets(t *testing.T) {
	h, _ := withSecrets(t)
	ctx := t.Context()
	whole, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	scoped, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"demo*"}})
	if _, _, err := h.Create(ctx, scoped, wantedSecrets(false, "KEY")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a token that is limited to some workspaces: %v", err)
	}
	if _, _, err := h.Create(ctx, scoped, wantedSecrets(false)); err != nil {
		t.Fatal(err)
	}
	use := workspace.Change{Secrets: workspace.SecretsChange{Add: []string{"KEY"}}}
	if _, err := h.Update(ctx, scoped, "demo", use); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a token that is limited to some workspaces: %v", err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || len(v.Secrets.Uses) > 0 {
		t.Errorf("%+v, %v", v.Secrets, err)
	}
	if _, err := h.Update(ctx, whole, "demo", use); err != nil {
		t.Errorf("a token for all of them: %v", err)
	}
	// An administrator gives it secrets of its owner.
	other := workspace.Change{Secrets: workspace.SecretsChange{Add: []string{"OTHER"}}}
	if v, err := h.Update(ctx, root, "demo", other); err != nil || len(v.Secrets.Uses) != 2 {
		t.Errorf("root: %+v, %v", v.Secrets, err)
	}
	// To take one is what anyone may who changes the workspace.
	if _, err := h.Update(ctx, scoped, "demo", workspace.Change{Secrets: workspace.SecretsChange{Remove: []string{"KEY"}}}); err != nil {
		t.Error(err)
	}
}

// Rules about requests take an authority: a workspace that runs without one takes the first that allows after a stop, and
// keeps the authority then.
func TestUpdateOfRequestRules(t *testing.T) {
	h, _ := withSecrets(t)
	ctx := t.Context()
	w, _, err := h.Create(ctx, alice, wantedSecrets(true))
	if err != nil || w.Trust != "" {
		t.Fatalf("%+v, %v", w, err)
	}
	change := func(c workspace.ReachChange) error {
		_, err := h.Update(ctx, alice, "demo", workspace.Change{Reach: c})
		return err
	}
	first := workspace.ReachChange{Allow: []string{"GET a.example/v1/x"}}
	if err := change(first); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "without an authority") ||
		!strings.Contains(err.Error(), "carrel stop "+string(w.Name)) {
		t.Errorf("the first one of a workspace that runs: %v", err)
	}
	if err := change(workspace.ReachChange{Deny: []string{"GET a.example/v1/y"}, Allow: []string{"b.example"}}); err != nil {
		t.Errorf("one that denies: %v", err)
	}
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if err := change(first); err != nil {
		t.Fatal(err)
	}
	if w, err = h.Start(ctx, alice, "demo"); err != nil || w.Trust == "" || len(w.Secrets.Uses) != 0 {
		t.Fatalf("%+v, %v", w, err)
	}
	if err := change(workspace.ReachChange{Allow: []string{"GET b.example/v1/x"}}); err != nil {
		t.Errorf("another one: %v", err)
	}
	// Its programs trust who sends a first secret, too.
	if _, err := h.Update(ctx, alice, "demo", workspace.Change{Secrets: workspace.SecretsChange{Add: []string{"KEY"}}}); err != nil {
		t.Errorf("its first secret: %v", err)
	}
	h.crash()
	h.start()
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Start(ctx, alice, "demo"); err != nil || v.Trust != w.Trust {
		t.Errorf("another authority: %+v, %v", v, err)
	}
}
