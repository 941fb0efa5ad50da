package bindings_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/ways/bindings"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// vault is an owner's secrets, and a seal that says what it is about and no more: that sealed text is unreadable is for
// package secret to show.
type vault struct {
	held   map[string]bindings.Held // by owner/name
	sealed map[string]redact.Value
	fail   error
}

func (v *vault) get(_ context.Context, owner, name string) (bindings.Held, error) {
	if v.fail != nil {
		return bindings.Held{}, v.fail
	}
	h, ok := v.held[owner+"/"+name]
	if !ok {
		return h, fmt.Errorf("cannot find the secret %s: %w", name, errdefs.ErrNotFound)
	}
	return h, nil
}

func (v *vault) seal(about string, value redact.Value) ([]byte, error) {
	key := fmt.Sprintf("%s#%d", about, len(v.sealed))
	v.sealed[key] = value
	return []byte(key), v.fail
}

func (v *vault) unseal(about string, sealed []byte) (redact.Value, error) {
	value, ok := v.sealed[string(sealed)]
	if !ok || !strings.HasPrefix(string(sealed), about+"#") {
		return value, errors.New("it is about something else")
	}
	return value, nil
}

const anthropic = "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz"

func newVault() (*vault, *bindings.Bindings) {
	v := &vault{held: map[string]bindings.Held{
		"alice/ANTHROPIC_API_KEY": {Name: "ANTHROPIC_API_KEY", Value: redact.NewValue(anthropic), Hosts: []string{"api.anthropic.com"}},
		"alice/SHORT": {
			Name: "SHORT", Value: redact.NewValue("12345678"), Hosts: []string{"a.example:8443"}, Headers: []string{"X-Key"},
		},
		"bob/THEIRS": {Name: "THEIRS", Value: redact.NewValue("the secret of bob"), Hosts: []string{"b.example"}},
	}, sealed: map[string]redact.Value{}}
	return v, bindings.New(bindings.Config{Held: v.get, Seal: v.seal, Unseal: v.unseal})
}

func kept(owner string) workspace.Kept {
	k := workspace.Spec()
	k.Name, k.Owner = "ws-00000001", owner
	return k
}

func TestBind(t *testing.T) {
	v, b := newVault()
	k := kept("alice")
	now, all, err := b.Bind(t.Context(), k, []string{"ANTHROPIC_API_KEY", "SHORT", "SHORT"})
	if err != nil || !slices.Equal(now.Names(), []string{"ANTHROPIC_API_KEY", "SHORT"}) || len(all) != 2 {
		t.Fatalf("%+v, %v", now, err)
	}
	if p := now.Uses[0].Placeholder; len(p) != len(anthropic) || !strings.HasPrefix(p, "sk-ant-api03-") || p == anthropic {
		t.Errorf("the placeholder is %s", p)
	}
	if err := intercept.Check(intercept.Of(all)); err != nil {
		t.Errorf("carrel-egress refuses them: %v", err)
	}
	if s := all[1]; s.Value.Reveal() != "12345678" || s.Hosts[0].Text != "a.example:8443" || !slices.Equal(s.Headers, []string{"X-Key"}) {
		t.Errorf("%+v", s)
	}
	// Neither is any value in what is kept, nor in what is printed.
	text, err := json.Marshal(now)
	if err != nil || strings.Contains(string(text)+fmt.Sprintf("%+v %#v %v", now, all, all), anthropic) {
		t.Errorf("%s: %v", text, err)
	}
	// A placeholder stays as it is, and k was not changed.
	k.Secrets = now
	again, _, err := b.Bind(t.Context(), k, []string{"SHORT"})
	if err != nil || !slices.Equal(again.Uses, now.Uses) {
		t.Errorf("%+v, %v", again, err)
	}
	// The secrets of others are not there.
	if _, _, err := b.Bind(t.Context(), kept("alice"), []string{"THEIRS"}); !errdefs.IsNotFound(err) {
		t.Errorf("the secret of another: %v", err)
	}
	many := kept("alice")
	for n := range workspace.MaxSecrets {
		many.Secrets.Uses = append(many.Secrets.Uses, workspace.SecretUse{Name: fmt.Sprint("S", n), Placeholder: fmt.Sprint("placeholder", n)})
	}
	if _, _, err := b.Bind(t.Context(), many, []string{"SHORT"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one too many: %v", err)
	}
	v.fail = errors.New("the disk is broken")
	if _, _, err := b.Bind(t.Context(), kept("alice"), []string{"SHORT"}); !errors.Is(err, v.fail) {
		t.Errorf("a broken store: %v", err)
	}
}

// One that is injected leaves nothing in the workspace, and follows what its owner makes of it.
func TestInjected(t *testing.T) {
	v, b := newVault()
	sending := workspace.Sending{Inject: "header:X-Key", Methods: []string{"POST"}}
	put := bindings.Held{Name: "PUT", Value: redact.NewValue("the value of PUT"), Hosts: []string{"a.example"}, Sending: sending}
	v.held["alice/PUT"] = put
	k := kept("alice")
	now, all, err := b.Bind(t.Context(), k, []string{"PUT", "SHORT"})
	if err != nil || len(all) != 2 || all[0].Placeholder+now.Uses[0].Placeholder != "" || !all[0].Sending.Equal(httprule.Sending(sending)) {
		t.Fatalf("%+v, %+v, %v", now, all, err)
	}
	if err := intercept.Check(intercept.Of(all)); err != nil {
		t.Errorf("carrel-egress refuses them: %v", err)
	}
	w := workspace.Workspace{Kept: k}
	w.Secrets = now
	if env := strings.Join(b.Variables(w), "\n"); strings.Contains(env, "PUT") || !strings.Contains(env, "SHORT=") {
		t.Errorf("the variables are %s", env)
	}
	// Set anew with a placeholder, it is not used: there is none. The other way round it is injected.
	k.Secrets = now
	v.held["alice/PUT"] = bindings.Held{Name: "PUT", Value: redact.NewValue("the value of PUT"), Hosts: []string{"a.example"}}
	v.held["alice/SHORT"] = bindings.Held{Name: "SHORT", Value: redact.NewValue("12345678"), Hosts: []string{"a.example"}, Sending: sending}
	_, all, err = b.Bind(t.Context(), k, nil)
	if err != nil || len(all) != 1 || all[0].Name != "SHORT" || all[0].Placeholder != "" || intercept.Check(intercept.Of(all)) != nil {
		t.Errorf("%+v, %v", all, err)
	}
}

// The secrets of a workspace are opened for the authority that it trusts, and for no other.
func TestOpen(t *testing.T) {
	v, b := newVault()
	k := kept("alice")
	if s, _, err := b.Open(t.Context(), k, ""); err != nil || s.CA.Reveal() != "" {
		t.Errorf("without a secret and an authority: %+v, %v", s, err)
	}
	// One that has rules about requests has an authority without secrets.
	bare, judges, err := b.Authority(k.Name, k.Secrets)
	if err != nil {
		t.Fatal(err)
	}
	without := k
	without.Secrets = bare
	if s, _, err := b.Open(t.Context(), without, workspace.Digest(judges)); err != nil || !strings.Contains(s.CA.Reveal(), judges) {
		t.Errorf("without a secret: %+v, %v", s, err)
	}
	if s, _, err := b.Open(t.Context(), without, workspace.Digest("another")); !errdefs.IsFailedPrecondition(err) || s.CA.Reveal() != "" {
		t.Errorf("one that trusts another: %+v, %v", s, err)
	}
	if k.Secrets, _, err = b.Bind(t.Context(), k, []string{"SHORT", "ANTHROPIC_API_KEY"}); err != nil {
		t.Fatal(err)
	}
	var cert string
	if k.Secrets, cert, err = b.Authority(k.Name, k.Secrets); err != nil || !strings.HasPrefix(cert, "-----BEGIN CERTIFICATE-----\n") {
		t.Fatalf("%q, %v", cert, err)
	}
	if s, same, err := b.Authority(k.Name, k.Secrets); err != nil || same != cert || string(s.Authority) != string(k.Secrets.Authority) {
		t.Errorf("the next start has another authority: %v", err)
	}
	trusts := workspace.Digest(cert)
	s, missing, err := b.Open(t.Context(), k, trusts)
	if err != nil || len(missing) > 0 || len(s.List) != 2 || !strings.Contains(s.CA.Reveal(), cert) {
		t.Fatalf("%+v, %v, %v", s, missing, err)
	}
	for _, other := range []string{"", workspace.Digest("another")} {
		if s, _, err := b.Open(t.Context(), k, other); !errdefs.IsFailedPrecondition(err) || len(s.List) != 0 || s.CA.Reveal() != "" {
			t.Errorf("a workspace that trusts %q: %+v, %v", other, s, err)
		}
	}
	// The authority of another workspace does not open, and is replaced at its start.
	stolen := k
	stolen.Name = "ws-00000002"
	if _, _, err := b.Open(t.Context(), stolen, trusts); err == nil {
		t.Error("the authority of another workspace was used")
	}
	now, other, err := b.Authority(stolen.Name, stolen.Secrets)
	if err != nil || other == cert || string(now.Authority) == string(k.Secrets.Authority) {
		t.Errorf("it was not replaced: %v", err)
	}
	// What the owner removed is left out; the authority, which programs trust, stays.
	delete(v.held, "alice/SHORT")
	if s, missing, err := b.Open(t.Context(), k, trusts); err != nil || len(s.List) != 1 || !slices.Equal(missing, []string{"SHORT"}) {
		t.Errorf("%+v, %v, %v", s, missing, err)
	}
	delete(v.held, "alice/ANTHROPIC_API_KEY")
	if s, _, err := b.Open(t.Context(), k, trusts); err != nil || len(s.List) != 0 || !strings.Contains(s.CA.Reveal(), cert) {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestVariables(t *testing.T) {
	_, b := newVault()
	w := workspace.Workspace{Kept: kept("alice")}
	if env := b.Variables(w); env != nil {
		t.Errorf("without a secret: %v", env)
	}
	w.Secrets.Uses = []workspace.SecretUse{{Name: "A", Placeholder: "p"}}
	if env := b.Variables(w); !slices.Equal(env, []string{"A=p"}) {
		t.Errorf("without an authority: %v", env)
	}
	w.Trust = workspace.Digest("cert")
	if env := b.Variables(w); !slices.Equal(env, append([]string{"A=p"}, sandbox.TrustVariables()...)) {
		t.Errorf("%v", env)
	}
}
