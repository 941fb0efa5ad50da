package compose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// The host's key is for those whom the file names, and in no other way than as a key of that model.
func TestSharedModelKey(t *testing.T) {
	h, o, _ := withModels(t, "")
	ctx := t.Context()
	for what, c := range map[string]struct {
		want workspace.Wanted
		is   func(error) bool
	}{
		"one that is not for bob": {wantedModels("a", workspace.ModelBudget{}, "narrow"), errdefs.IsNotFound},
		"its name, as a key":      {wantedModels("b", workspace.ModelBudget{}, "house=SHARED_KEY"), errdefs.IsNotFound},
		"as a key elsewhere":      {wantedModels("c", workspace.ModelBudget{}, "own=SHARED_KEY"), errdefs.IsNotFound},
		"as a secret": {func() workspace.Wanted {
			w := wantedReach("d", true, "llm.example")
			w.Secrets = []string{"SHARED_KEY"}
			return w
		}(), errdefs.IsNotFound},
	} {
		if _, _, err := h.Create(ctx, bob, c.want); !c.is(err) || strings.Contains(fmt.Sprint(err), sharedKey) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := h.store.Len(); n != 0 {
		t.Errorf("%d workspaces were made", n)
	}
	if all, err := h.ListSecrets(ctx, bob); err != nil || len(all) != 0 {
		t.Errorf("bob sees %+v, %v", all, err)
	}
	offers, _, err := h.ListModels(ctx, bob)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, x := range offers {
		keys[x.Name] = x.Key + " " + x.Secret
	}
	if keys["house"] != "shared " || keys["narrow"] != "missing NARROW_KEY" || keys["own"] != "missing OWN_KEY" || len(offers) != 5 {
		t.Errorf("%v", keys)
	}
	// Another value, none, and another file hold at once.
	w := h.desk(bob, "demo", workspace.ModelBudget{}, "house")
	told := func(want string) {
		t.Helper()
		if n := len(o.told); n == 0 || o.told[n-1] != string(w.Name)+" "+want {
			t.Errorf("told %q, want %q", o.told, want)
		}
	}
	if _, err := h.RotateSecret(ctx, root, "SHARED_KEY", redact.NewValue("another-key-of-the-host")); err != nil {
		t.Fatal(err)
	}
	told(" model house=another-key-of-the-host")
	reread(t, h, "")
	m := h.host.Models["house"]
	m.For = []string{"uid:4242"}
	h.host.Models["house"] = m
	keep(t, h, bob, "HOUSE_KEY", "the-key-of-bob", "llm.example")
	h.ModelsChanged(ctx)
	told("") // and never a key that bob has not named
	reread(t, h, "")
	h.ModelsChanged(ctx)
	told(" model house=another-key-of-the-host")
	m = h.host.Models["house"]
	m.URL = "https://elsewhere.example/v1"
	h.host.Models["house"] = m
	h.ModelsChanged(ctx)
	told("") // the key is not for that host
	reread(t, h, "")
	if err := h.RemoveSecret(ctx, root, "", "SHARED_KEY"); err != nil {
		t.Fatal(err)
	}
	told("")
	if _, err := h.Update(ctx, bob, "demo", workspace.Change{Models: workspace.ModelsChange{Remove: []string{"house"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Reserve(ctx, w.Name, "house", "m"); !errdefs.IsNotFound(err) {
		t.Errorf("one that was taken: %v", err)
	}
}

func TestModelsThatCannotBeUsed(t *testing.T) {
	h, _, _ := withModels(t, "")
	ctx := t.Context()
	keep(t, h, alice, "OWN_KEY", "the-key-of-alice", "own.example")
	keep(t, h, alice, "OTHER_HOST", "another-key-of-alice", "other.example")
	if _, err := h.SetSecret(ctx, alice, workspace.Secret{Name: "OTHER_HEADER", Hosts: []string{"own.example"}, Headers: []string{"X-Other"}},
		redact.NewValue("a-third-key-of-alice")); err != nil {
		t.Fatal(err)
	}
	keep(t, h, alice, "OPENAI_API_KEY", "a-fourth-key-of-alice", "own.example")
	many := wantedModels("many", workspace.ModelBudget{})
	for i := range 33 {
		many.Models = append(many.Models, workspace.ModelUse{Name: fmt.Sprint("m", i)})
	}
	both := wantedModels("both", workspace.ModelBudget{}, "own")
	both.Reach.Allow, both.Secrets = []string{"own.example"}, []string{"OPENAI_API_KEY"}
	for _, c := range []struct {
		want workspace.Wanted
		is   func(error) bool
		text string
	}{
		{
			wantedModels("a", workspace.ModelBudget{}, "gemini"), errdefs.IsInvalidArgument,
			"there is no such model; use anthropic, house, narrow, openai, own",
		},
		{wantedModels("b", workspace.ModelBudget{}, "anthropic"), errdefs.IsNotFound, "carrel secret set ANTHROPIC_API_KEY"},
		{wantedModels("c", workspace.ModelBudget{Money: 5}, "own"), errdefs.IsInvalidArgument, "no prices are known"},
		{many, errdefs.IsInvalidArgument, "cannot use 33 models"},
		{wantedModels("e", workspace.ModelBudget{}, "own=OTHER_HOST"), errdefs.IsInvalidArgument, "is not for its host own.example:443"},
		{wantedModels("f", workspace.ModelBudget{}, "own=OTHER_HEADER"), errdefs.IsInvalidArgument, "is not for the header Authorization"},
		{wantedModels("g", workspace.ModelBudget{Requests: -1}, "own"), errdefs.IsInvalidArgument, "negative"},
		{wantedModels("h", workspace.ModelBudget{Per: "week"}, "own"), errdefs.IsInvalidArgument, "use day or whole"},
		{both, errdefs.IsInvalidArgument, "leave one of the two out"},
	} {
		_, _, err := h.Create(ctx, alice, c.want)
		if !c.is(err) || !strings.Contains(fmt.Sprint(err), c.text) || strings.Contains(fmt.Sprint(err), "key-of") {
			t.Errorf("%s: %v", c.want.Key, err)
		}
	}
	if n := h.store.Len(); n != 0 {
		t.Errorf("%d workspaces were made", n)
	}
	h.ways = nil
	h.crash()
	h.start()
	if _, _, err := h.Create(ctx, alice, wantedModels("demo", workspace.ModelBudget{}, "own")); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "no carrel-egress") {
		t.Errorf("a daemon without egress: %v", err)
	}
}

// Models are added, taken and bounded while a workspace runs that has a way out.
func TestUpdateOfModels(t *testing.T) {
	h, o, _ := withModels(t, "")
	ctx := t.Context()
	w := h.desk(alice, "demo", workspace.ModelBudget{})
	change := func(p principal.Principal, c workspace.ModelsChange) error {
		_, err := h.Update(ctx, p, "demo", workspace.Change{Models: c})
		return err
	}
	house := []workspace.ModelUse{{Name: "house"}}
	// It runs without a way out: the first one holds when it starts next.
	if err := change(alice, workspace.ModelsChange{Add: house}); err != nil || len(o.told) != 0 {
		t.Errorf("the first one of a workspace that runs: %v, told %v", err, o.told)
	}
	h.rt.wayOut(w.Name, runtime.Way{Open: true})
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if err := change(alice, workspace.ModelsChange{Budget: workspace.ModelBudget{Requests: 3, Tokens: 1000}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if err := change(bob, workspace.ModelsChange{Remove: []string{"house"}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob takes it: %v", err)
	}
	if n := h.granted(w, "house"); n != 3 {
		t.Errorf("%d of 3", n)
	}
	if err := change(alice, workspace.ModelsChange{Budget: workspace.ModelBudget{Requests: 5}}); err != nil {
		t.Fatal(err)
	}
	if n := h.granted(w, "house"); n != 2 {
		t.Errorf("%d more of 5", n)
	}
	// Another period is no way to begin again.
	if err := change(alice, workspace.ModelsChange{Budget: workspace.ModelBudget{Per: workspace.PerWhole}}); err != nil {
		t.Fatal(err)
	}
	if n := h.granted(w, "house"); n != 0 {
		t.Errorf("%d more with another period", n)
	}
	if err := change(alice, workspace.ModelsChange{Budget: workspace.ModelBudget{Requests: workspace.NoLimit, Tokens: 21}}); err != nil {
		t.Fatal(err)
	}
	if n := h.granted(w, "house"); n != 2 { // 5 requests had 15 tokens
		t.Errorf("%d more of 21 tokens", n)
	}
	// Keys of an owner's take the permission for secrets, the host's does not.
	keep(t, h, alice, "OWN_KEY", "the-key-of-alice", "own.example")
	scoped, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"demo*"}})
	if err := change(scoped, workspace.ModelsChange{Add: []workspace.ModelUse{{Name: "own"}}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a token that is limited to some workspaces: %v", err)
	}
	if err := change(scoped, workspace.ModelsChange{Add: []workspace.ModelUse{{Name: "narrow"}}}); err != nil {
		t.Error(err)
	}
	if err := change(root, workspace.ModelsChange{Add: []workspace.ModelUse{{Name: "own"}}, Remove: []string{"house"}}); err != nil {
		t.Error(err)
	}
	if want := string(w.Name) + "  model narrow=" + sharedKey + " model own=the-key-of-alice"; o.told[len(o.told)-1] != want {
		t.Errorf("told %q, want %q", o.told, want)
	}
	if err := change(alice, workspace.ModelsChange{Remove: []string{"house"}}); !errdefs.IsNotFound(err) {
		t.Errorf("one that it does not use: %v", err)
	}
}
