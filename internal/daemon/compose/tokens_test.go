package compose_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// issue makes a token and returns who holds it.
func (h *house) issue(by principal.Principal, w principal.Wanted) (principal.Principal, token.Secret) {
	h.t.Helper()
	i, secret, err := h.CreateToken(h.t.Context(), by, w)
	if err != nil {
		h.t.Fatal(err)
	}
	return principal.Principal{Kind: principal.Token, Grant: &i.Grant}, secret
}

func TestATokenActsForItsOwner(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(bob, "bobs")
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	w := h.create(p, "made")
	if w.Owner != "uid:1000" {
		t.Errorf("what a token makes belongs to %s", w.Owner)
	}
	if list, err := h.List(ctx, p); err != nil || len(list) != 2 {
		t.Errorf("sees %v, %v", list, err)
	}
	if list, err := h.List(ctx, alice); err != nil || len(list) != 2 {
		t.Errorf("its owner sees %v, %v", list, err)
	}
	if _, _, err := h.Run(ctx, p, "bobs", run("x")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another tenant's: %v", err)
	}
	if _, _, err := h.Run(ctx, p, "demo", run("x")); err != nil {
		t.Error(err)
	}
	named := 0
	for _, r := range h.records() {
		if r.Principal == p.String() {
			named++
			if r.Owner != "uid:1000" {
				t.Errorf("a record of the token does not name its owner: %+v", r)
			}
		} else if r.Owner != "" {
			t.Errorf("a record of %s names the owner %s", r.Principal, r.Owner)
		}
	}
	if named < 5 {
		t.Errorf("%d records name the token", named)
	}
}

// A token that is limited to some workspaces gets at no other, by whatever way.
func TestScopeOfAToken(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	other := h.create(alice, "other")
	h.create(alice, "bot-1")
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"bot-*"}})
	for name, err := range map[string]error{
		"get":          failure(h.Get(ctx, p, "other")),
		"get by name":  failure(h.Get(ctx, p, string(other.Name))),
		"exec":         func() error { _, _, err := h.Run(ctx, p, "other", run("x")); return err }(),
		"create":       func() error { _, _, err := h.Create(ctx, p, wanted("new", workspace.Limits{}, true)); return err }(),
		"create again": func() error { _, _, err := h.Create(ctx, p, wanted("other", workspace.Limits{}, true)); return err }(),
		"rename":       failure(h.Update(ctx, p, "bot-1", workspace.Change{Key: "free"})),
		"destroy":      failure(h.Destroy(ctx, p, "other", true, "")),
		"stats":        failure(h.Stats(ctx, p, []string{"other"})),
		"archive":      failure(h.Archive(ctx, p, "other", workspace.ArchiveWanted{}, nil, nil)),
		"restore":      failure(h.Restore(ctx, p, workspace.RestoreWanted{Key: "free"}, strings.NewReader(""), nil)),
	} {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := h.List(ctx, p); err != nil || len(list) != 1 || list[0].Key != "bot-1" {
		t.Errorf("sees %v, %v", list, err)
	}
	h.create(p, "bot-2")
	if _, err := h.Update(ctx, p, "bot-2", workspace.Change{Key: "bot-3"}); err != nil {
		t.Error(err)
	}
}

func failure[T any](_ T, err error) error { return err }

// What each role may do, tried: the whole of each row of the table, and nothing else.
func TestRolesAtTheGate(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	attempts := map[string]struct {
		needs principal.Permission
		try   func(p principal.Principal) error
	}{
		"get":      {principal.Look, func(p principal.Principal) error { return failure(h.Get(ctx, p, "demo")) }},
		"list":     {principal.Look, func(p principal.Principal) error { return failure(h.List(ctx, p)) }},
		"retained": {principal.Look, func(p principal.Principal) error { return failure(h.Retained(ctx, p)) }},
		"stats":    {principal.Look, func(p principal.Principal) error { return failure(h.Stats(ctx, p, nil)) }},
		"commands": {principal.Look, func(p principal.Principal) error { return failure(h.ListCommands(ctx, p, "demo")) }},
		"logs": {principal.Look, func(p principal.Principal) error {
			_, _, err := h.Output(ctx, p, "demo", execapi.OutputParams{}, false)
			return err
		}},
		"wait": {principal.Look, func(p principal.Principal) error {
			_, _, err := h.Wait(ctx, p, "demo", "c-0123456789abcdef")
			return err
		}},
		"attach": {principal.Run, func(p principal.Principal) error {
			_, _, err := h.Output(ctx, p, "demo", execapi.OutputParams{}, true)
			return err
		}},
		"run":    {principal.Run, func(p principal.Principal) error { _, _, err := h.Run(ctx, p, "demo", run("x")); return err }},
		"detach": {principal.Run, func(p principal.Principal) error { return failure(h.Detach(ctx, p, "demo", run("x"), false)) }},
		"signal": {principal.Run, func(p principal.Principal) error { return h.Signal(ctx, p, "demo", execapi.StopTaskParams{}) }},
		"resize": {principal.Run, func(p principal.Principal) error { return h.Resize(ctx, p, "demo", execapi.ResizeParams{}) }},
		"revive": {principal.Lifecycle | principal.Make, func(p principal.Principal) error { return failure(h.Revive(ctx, p, "demo")) }},
		"create": {principal.Make, func(p principal.Principal) error {
			_, _, err := h.Create(ctx, p, wanted("demo", workspace.Limits{}, true))
			return err
		}},
		"stop":  {principal.Lifecycle, func(p principal.Principal) error { return failure(h.Stop(ctx, p, "demo")) }},
		"start": {principal.Lifecycle, func(p principal.Principal) error { return failure(h.Start(ctx, p, "demo")) }},
		"update": {principal.Lifecycle, func(p principal.Principal) error {
			return failure(h.Update(ctx, p, "demo", workspace.Change{Idle: time.Hour}))
		}},
		"kept":    {principal.Keep, func(p principal.Principal) error { return failure(h.ListArchives(ctx, p)) }},
		"tokens":  {principal.Tokens, func(p principal.Principal) error { return failure(h.ListTokens(ctx, p)) }},
		"secrets": {principal.Secrets, func(p principal.Principal) error { return failure(h.ListSecrets(ctx, p)) }},
		"verify":  {principal.Audit, func(p principal.Principal) error { return failure(h.VerifyAudit(ctx, p)) }},
		"mended":  {principal.Host, func(p principal.Principal) error { return failure(h.Mended(ctx, p)) }},
		"destroy": {principal.Lifecycle, func(p principal.Principal) error { return failure(h.Destroy(ctx, p, "demo", true, "")) }},
	}
	order := slices.Sorted(func(yield func(string) bool) {
		for name := range attempts {
			if !yield(name) {
				return
			}
		}
	})
	for _, role := range principal.AllRoles.Names() {
		r, err := principal.ParseRoles(role)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := h.issue(root, principal.Wanted{Roles: r, Owner: "uid:1000"})
		for _, name := range order {
			h.create(alice, "demo")
			if _, err := h.Start(ctx, alice, "demo"); err != nil {
				t.Fatal(err)
			}
			a := attempts[name]
			err := a.try(p)
			if denied := errdefs.IsPermissionDenied(err); denied == r.Permissions().Has(a.needs) {
				t.Errorf("%s by role %s: %v", name, role, err)
			}
		}
	}
}

func TestATokenGivesNoMoreThanItHas(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"demo"}, Life: time.Hour})
	single, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, MaxUses: 5})
	agent, _ := h.issue(alice, principal.Wanted{Roles: principal.Agent})
	stray := principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: "000000000000", Owner: "uid:0", Roles: principal.Admin}}
	before := len(h.store.Tokens())
	for name, c := range map[string]struct {
		p principal.Principal
		w principal.Wanted
	}{
		"more rights":        {p, principal.Wanted{Roles: principal.Admin}},
		"the audit":          {p, principal.Wanted{Roles: principal.Operator | principal.Auditor}},
		"more workspaces":    {p, principal.Wanted{Roles: principal.Agent, Scope: principal.Scope{"demo*"}}},
		"longer":             {p, principal.Wanted{Roles: principal.Agent, Life: 2 * time.Hour}},
		"another owner":      {p, principal.Wanted{Roles: principal.Agent, Owner: "uid:1001"}},
		"uncounted uses":     {single, principal.Wanted{Roles: principal.Agent}},
		"without a right":    {agent, principal.Wanted{Roles: principal.Agent}},
		"without a record":   {stray, principal.Wanted{Roles: principal.Admin}},
		"of alice, for root": {alice, principal.Wanted{Roles: principal.Agent, Owner: "uid:0"}},
		"of alice, admin":    {alice, principal.Wanted{Roles: principal.Admin}},
	} {
		if i, _, err := h.CreateToken(ctx, c.p, c.w); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	if now := len(h.store.Tokens()); now != before {
		t.Errorf("%d tokens were made", now-before)
	}
	denials := 0
	for _, r := range h.records() {
		if r.Type == audit.Denial && strings.Contains(string(r.Action), `"kind":"token.create"`) {
			denials++
		}
	}
	if denials != 10 {
		t.Errorf("%d denials are recorded", denials)
	}
}

func TestWhoSeesAndRevokesWhichTokens(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	op := principal.Wanted{Roles: principal.Operator}
	first, _ := h.issue(alice, op)
	second, _ := h.issue(first, op)
	third, _ := h.issue(second, principal.Wanted{Roles: principal.Agent})
	sibling, _ := h.issue(alice, op)
	of := func(p principal.Principal) (ids []string) {
		list, err := h.ListTokens(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			ids = append(ids, i.ID)
		}
		slices.Sort(ids)
		return ids
	}
	want := func(ps ...principal.Principal) (ids []string) {
		for _, p := range ps {
			ids = append(ids, p.Grant.ID)
		}
		slices.Sort(ids)
		return ids
	}
	for _, c := range []struct {
		p    principal.Principal
		want []string
	}{
		{alice, want(first, second, third, sibling)},
		{root, want(first, second, third, sibling)},
		{bob, nil},
		{first, want(first, second, third)},
		{second, want(second, third)},
		{sibling, want(sibling)},
	} {
		if got := of(c.p); !slices.Equal(got, c.want) {
			t.Errorf("%s sees %v, want %v", c.p, got, c.want)
		}
	}
	for _, p := range []principal.Principal{bob, second, sibling} {
		if _, err := h.RevokeToken(ctx, p, first.Grant.ID); !errdefs.IsNotFound(err) {
			t.Errorf("%s revokes another's: %v", p, err)
		}
	}
	for _, ref := range []string{"", "../../etc/passwd", strings.Repeat("0", 12), first.Grant.ID + "x", "0123456789AB", "\x00"} {
		if _, err := h.Token(ctx, alice, ref); !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	if ended, err := h.RevokeToken(ctx, first, second.Grant.ID); err != nil || len(ended) != 2 || !slices.Equal(h.ended, ended) {
		t.Errorf("%v, told %v, %v", ended, h.ended, err)
	}
	for _, p := range []principal.Principal{second, third} {
		if _, err := h.Spend(ctx, token.ID(p.Grant.ID)); err == nil {
			t.Errorf("%s is good after what made it was revoked", p)
		}
	}
	// While it was being used, it was revoked: it makes none any more.
	if _, _, err := h.CreateToken(ctx, second, principal.Wanted{Roles: principal.Agent}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a revoked token made another: %v", err)
	}
}

// The secret is shown once. It is in no file of the daemon's and in no line of its log.
func TestTheSecretIsNowhere(t *testing.T) {
	h := newHouse(t)
	p, secret := h.issue(alice, principal.Wanted{Name: "ci", Roles: principal.Operator})
	if err := h.Login(t.Context(), "192.0.2.1", p, secret.ID(), ""); err != nil {
		t.Fatal(err)
	}
	if err := h.Login(t.Context(), "192.0.2.1", principal.Principal{}, secret.ID(), "wrong"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.log.Mark(); err != nil {
		t.Fatal(err)
	}
	body := secret.Reveal()[token.Len-43:]
	looked := 0
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		looked += strings.Count(string(b), string(secret.ID()))
		if strings.Contains(string(b), body) {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil || looked < 4 {
		t.Errorf("%v: the token is named %d times", err, looked)
	}
	if strings.Contains(h.logs.String(), body) {
		t.Error("the log holds the secret")
	}
}

func TestLoginsAreRecorded(t *testing.T) {
	h := newHouse(t)
	p, secret := h.issue(alice, principal.Wanted{Roles: principal.Agent})
	before := len(h.records())
	if err := h.Login(t.Context(), "192.0.2.1", p, secret.ID(), ""); err != nil {
		t.Fatal(err)
	}
	const times = 3000
	for n := range times {
		// From ever new addresses, which must not fill the record or the memory either.
		if err := h.Login(t.Context(), fmt.Sprintf("2001:db8::%x", n), principal.Principal{}, "", "unknown"); err != nil {
			t.Fatal(err)
		}
	}
	logins, denials := 0, 0
	for _, r := range h.records()[before:] {
		switch r.Type {
		case audit.Login:
			logins++
			if r.Principal != p.String() || r.Owner != "uid:1000" || !strings.Contains(string(r.Data), "192.0.2.1") {
				t.Errorf("%+v", r)
			}
		case audit.Denial:
			denials++
			if r.Principal != "nobody" || !strings.Contains(string(r.Action), "login") || !strings.Contains(r.Error, "unknown") {
				t.Errorf("%+v", r)
			}
		default:
			t.Errorf("a record that is about no login: %+v", r)
		}
	}
	if logins != 1 || denials < 100 || denials > 2000 {
		t.Errorf("%d logins and %d refused ones are recorded", logins, denials)
	}
	// Who cannot be recorded does not come in.
	h.log.Close()
	if err := h.Login(t.Context(), "192.0.2.1", p, secret.ID(), ""); err == nil {
		t.Error("a login that could not be recorded passed")
	}
}
