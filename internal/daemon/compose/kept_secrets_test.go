package compose_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/service/secrets"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/secret"
)

const keptValue = "marble lantern 19"

// keepSecret stores a secret for p's owner.
func (h *house) keepSecret(p principal.Principal, name string, hosts ...string) workspace.Secret {
	h.t.Helper()
	x, err := h.SetSecret(h.t.Context(), p, workspace.Secret{Name: name, Hosts: hosts}, redact.NewValue(keptValue))
	if err != nil {
		h.t.Fatal(err)
	}
	return x
}

func (h *house) shownHeld(owner string, names ...string) string {
	h.t.Helper()
	all, err := h.Held(h.t.Context(), owner, names)
	if err != nil {
		h.t.Fatal(err)
	}
	var texts []string
	for _, x := range all {
		texts = append(texts, x.Name+"="+x.Value.Reveal()+" "+strings.Join(append(x.Hosts, x.Headers...), ","))
	}
	return strings.Join(texts, "; ")
}

func TestTheLifeOfASecret(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	at := len(h.records())
	made, err := h.SetSecret(ctx, alice, workspace.Secret{
		Owner: "uid:0", Name: "API_KEY", Hosts: []string{"API.example.org.", "api.example.org", "*.example.net:8443"},
		Headers: []string{"x-api-key", "X-Api-Key", "authorization"},
	}, redact.NewValue(keptValue))
	if err != nil || made.Owner != "uid:1000" || !slices.Equal(made.Hosts, []string{"api.example.org", "*.example.net:8443"}) ||
		!slices.Equal(made.Headers, []string{"Authorization", "X-Api-Key"}) || made.Created.IsZero() || !made.Rotated.IsZero() {
		t.Fatalf("%+v, %v", made, err)
	}
	if x := h.keepSecret(alice, "ANTHROPIC_API_KEY"); !slices.Equal(x.Hosts, []string{"api.anthropic.com"}) || x.Headers != nil {
		t.Errorf("%+v", x)
	}
	if _, err := h.SetSecret(ctx, alice, made, redact.NewValue("another value")); !errdefs.IsAlreadyExists(err) {
		t.Error(err)
	}
	if got := h.shownHeld("uid:1000", "API_KEY"); got != "API_KEY="+keptValue+" api.example.org,*.example.net:8443,Authorization,X-Api-Key" {
		t.Error(got)
	}
	rotated, err := h.RotateSecret(ctx, alice, "API_KEY", redact.NewValue("another value"))
	if err != nil || !rotated.Created.Equal(made.Created) || rotated.Rotated.IsZero() {
		t.Errorf("%+v, %v", rotated, err)
	}
	h.crash()
	h.start()
	if got := h.shownHeld("uid:1000", "ANTHROPIC_API_KEY", "API_KEY"); got != "ANTHROPIC_API_KEY="+keptValue+" api.anthropic.com; "+
		"API_KEY=another value api.example.org,*.example.net:8443,Authorization,X-Api-Key" {
		t.Error(got)
	}
	if err := h.RemoveSecret(ctx, alice, "", "API_KEY"); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		h.RemoveSecret(ctx, alice, "", "API_KEY"), failure(h.RotateSecret(ctx, alice, "API_KEY", redact.NewValue(keptValue))),
		failure(h.Held(ctx, "uid:1000", []string{"API_KEY"})),
	} {
		if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), `"carrel secret set API_KEY"`) {
			t.Error(err)
		}
	}
	if _, err := h.Held(ctx, "uid:1000", []string{"X_KEY", "ANTHROPIC_API_KEY", "Y_KEY"}); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "X_KEY, Y_KEY of uid:1000") {
		t.Error(err)
	}
	if strings.Join(h.changed, ", ") != "uid:1000 API_KEY, uid:1000 ANTHROPIC_API_KEY, uid:1000 API_KEY, uid:1000 API_KEY" {
		t.Errorf("told of %q", h.changed)
	}
	// The record says which secret it was and whom it is for.
	var story []string
	for _, r := range h.records()[at:] {
		if strings.Contains(string(r.Action), `"secret.`) {
			story = append(story, fmt.Sprintf("%s %s", r.Type, r.Action))
		}
	}
	api := `"name":"API_KEY","hosts":["api.example.org","*.example.net:8443"],"headers":["Authorization","X-Api-Key"]}`
	for i, want := range []string{
		`intent {"kind":"secret.set",` + api, `intent {"kind":"secret.set","name":"ANTHROPIC_API_KEY","hosts":["api.anthropic.com"]}`,
		`intent {"kind":"secret.set",` + api, `intent {"kind":"secret.rotate","name":"API_KEY"}`,
		`intent {"kind":"secret.remove","name":"API_KEY"}`,
	} {
		if i >= len(story) || story[i] != want {
			t.Errorf("record %d is not %s", i, want)
		}
	}
	if len(story) != 5 {
		t.Errorf("the records are\n%s", strings.Join(story, "\n"))
	}
}

// An owner's secrets are theirs alone, and their tokens': not of those that are limited to some workspaces.
func TestWhoHasWhichSecrets(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	token := func(r principal.Roles, scope ...string) principal.Principal {
		p, _ := h.issue(alice, principal.Wanted{Roles: r, Scope: scope})
		return p
	}
	operator, agent, scoped := token(principal.Operator), token(principal.Agent), token(principal.Operator, "demo")
	h.keepSecret(operator, "A_KEY", "a.example")
	h.keepSecret(bob, "A_KEY", "b.example")
	h.keepSecret(root, "A_KEY", "r.example")
	for _, c := range []struct {
		p    principal.Principal
		want string
	}{
		{alice, "uid:1000 a.example"},
		{operator, "uid:1000 a.example"},
		{bob, "uid:1001 b.example"},
		{root, "uid:0 r.example, uid:1000 a.example, uid:1001 b.example"},
	} {
		list, err := h.ListSecrets(ctx, c.p)
		var got []string
		for _, x := range list {
			got = append(got, x.Owner+" "+x.Hosts[0])
		}
		if strings.Join(got, ", ") != c.want || err != nil {
			t.Errorf("%s sees %v, %v", c.p, got, err)
		}
	}
	before := len(h.changed)
	value := redact.NewValue("of somebody else")
	for _, p := range []principal.Principal{agent, scoped} {
		for what, err := range map[string]error{
			"set":    failure(h.SetSecret(ctx, p, workspace.Secret{Name: "B_KEY", Hosts: []string{"evil.example"}}, value)),
			"list":   failure(h.ListSecrets(ctx, p)),
			"rotate": failure(h.RotateSecret(ctx, p, "A_KEY", value)),
			"remove": h.RemoveSecret(ctx, p, "", "A_KEY"),
			"guess":  h.RemoveSecret(ctx, p, "", "NONE"), // which does not say that there is none
		} {
			if !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s by %s: %v", what, p, err)
			}
		}
	}
	for _, name := range []string{"A_KEY", "NONE"} {
		if err := h.RemoveSecret(ctx, bob, "uid:1000", name); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "another user") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(h.changed) != before {
		t.Errorf("changed: %v", h.changed[before:])
	}
	denials := 0
	for _, r := range h.records() {
		if r.Type == audit.Denial && strings.Contains(string(r.Action), `"kind":"secret.`) {
			denials++
		}
	}
	if denials != 12 {
		t.Errorf("%d denials are recorded", denials)
	}
	// An administrator can clear up after somebody who has gone, and the record says whose it was.
	if err := h.RemoveSecret(ctx, root, "uid:1001", "A_KEY"); err != nil || h.changed[before] != "uid:1001 A_KEY" {
		t.Error(err)
	}
	if !slices.ContainsFunc(h.records(), func(r audit.Record) bool {
		return string(r.Action) == `{"kind":"secret.remove","name":"A_KEY","owner":"uid:1001"}`
	}) {
		t.Error("the record does not say whose secret was removed")
	}
}

// What is taken is what a way out takes, so that nothing that is stored fails later.
func TestOnlyUsableSecretsAreKept(t *testing.T) {
	if secrets.MinValue != intercept.MinLength || secrets.MaxValue != intercept.MaxLength {
		t.Error("package intercept has other bounds")
	}
	h := newHouse(t)
	good := []string{"12345678", strings.Repeat("x", secrets.MaxValue), "with spaces inside", "ünïcödé ✓"}
	bad := []string{
		"", "1234567", strings.Repeat("x", secrets.MaxValue+1), "12345678\n", "1234\x005678", " 12345678", "12345678\t", "1234\x7f5678",
		"\u00a012345678",
	}
	for i, value := range append(slices.Clone(good), bad...) {
		x := intercept.Secret{
			Name: "A_KEY", Placeholder: strings.Repeat("p", 20), Value: redact.NewValue(value),
			Hosts: []netrule.Rule{{Action: netrule.Allow, Name: "a.example"}},
		}
		want := i < len(good)
		kept := workspace.Secret{Name: fmt.Sprint("KEY_", i), Hosts: []string{"a.example"}}
		_, err := h.SetSecret(t.Context(), alice, kept, redact.NewValue(value))
		_, rerr := h.RotateSecret(t.Context(), alice, "KEY_0", redact.NewValue(value))
		usable := intercept.Check([]intercept.Secret{x}) == nil
		if usable != want || (err == nil) != want || (rerr == nil) != want || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.20q: %v, %v", value, err, rerr)
		}
		if err != nil && value != "" && (strings.Contains(err.Error(), value) || strings.Contains(err.Error(), fmt.Sprint(secrets.MaxValue+1))) {
			t.Errorf("%.20q: the error tells of it: %v", value, err)
		}
	}
	// The API has texts, so that this cannot come from elsewhere.
	if _, err := h.RotateSecret(t.Context(), alice, "KEY_0", redact.NewValue("\xff\xfe not UTF-8")); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	for name, x := range map[string]workspace.Secret{
		"no name":          {Hosts: []string{"a.example"}},
		"no variable":      {Name: "sk-ant-1234", Hosts: []string{"a.example"}},
		"long":             {Name: strings.Repeat("K", 65), Hosts: []string{"a.example"}},
		"no host":          {Name: "A_KEY"},
		"every host":       {Name: "A_KEY", Hosts: []string{"*"}},
		"a network":        {Name: "A_KEY", Hosts: []string{"192.0.2.0/24"}},
		"a set":            {Name: "A_KEY", Hosts: []string{"@llm"}},
		"a URL":            {Name: "A_KEY", Hosts: []string{"https://a.example"}},
		"many hosts":       {Name: "A_KEY", Hosts: slices.Repeat([]string{"a.example"}, 33)},
		"a bad header":     {Name: "A_KEY", Hosts: []string{"a.example"}, Headers: []string{"X: y"}},
		"an empty header":  {Name: "A_KEY", Hosts: []string{"a.example"}, Headers: []string{""}},
		"many headers":     {Name: "A_KEY", Hosts: []string{"a.example"}, Headers: slices.Repeat([]string{"X"}, 17)},
		"a header's break": {Name: "A_KEY", Hosts: []string{"a.example"}, Headers: []string{"X\r\nY"}},
		"framing":          {Name: "A_KEY", Hosts: []string{"a.example"}, Sending: workspace.Sending{Inject: "header:Content-Length"}},
		"two ways": {
			Name: "A_KEY", Hosts: []string{"a.example"}, Headers: []string{"X-Key"}, Sending: workspace.Sending{Inject: "header:X-Key"},
		},
		"no login":       {Name: "A_KEY", Hosts: []string{"a.example"}, Sending: workspace.Sending{Inject: "basic"}},
		"a path of dots": {Name: "A_KEY", Hosts: []string{"a.example"}, Sending: workspace.Sending{Paths: []string{"/a/../b"}}},
		"no method":      {Name: "A_KEY", Hosts: []string{"a.example"}, Sending: workspace.Sending{Methods: []string{"GET /"}}},
		"no pointer":     {Name: "A_KEY", Hosts: []string{"a.example"}, Sending: workspace.Sending{Pointers: []string{"token"}}},
	} {
		if _, err := h.SetSecret(t.Context(), alice, x, redact.NewValue(keptValue)); !errdefs.IsInvalidArgument(err) ||
			strings.Contains(err.Error(), "sk-ant") || strings.Contains(err.Error(), keptValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// How a secret is sent is sealed with it, stays when it gets another value, and does not go when somebody takes it away.
func TestHowASecretIsSent(t *testing.T) {
	h := newHouse(t)
	sending := workspace.Sending{Inject: "header:x-key: Token {}", Methods: []string{"post"}, Paths: []string{"/v1/*"}}
	want := workspace.Secret{Name: "A_KEY", Hosts: []string{"a.example"}, Sending: sending}
	kept, err := h.SetSecret(t.Context(), alice, want, redact.NewValue(keptValue))
	sending = workspace.Sending{Inject: "header:X-Key: Token {}", Methods: []string{"POST"}, Paths: []string{"/v1/*"}}
	if err != nil || !reflect.DeepEqual(kept.Sending, sending) {
		t.Fatalf("%+v, %v", kept, err)
	}
	kept, err = h.RotateSecret(t.Context(), alice, "A_KEY", redact.NewValue("another value"))
	if err != nil || !reflect.DeepEqual(kept.Sending, sending) {
		t.Fatalf("%+v, %v", kept, err)
	}
	held, err := h.Held(t.Context(), "uid:1000", []string{"A_KEY"})
	if err != nil || !reflect.DeepEqual(held[0].Sending, sending) || held[0].Value.Reveal() != "another value" {
		t.Fatalf("%+v, %v", held, err)
	}
	for _, set := range []string{`'{}'`, `'{"inject":"header:X-Key: Token {}","methods":["POST"]}'`, `'{"inject":"query:q"}'`} {
		h.inDatabase(`UPDATE secrets SET sending = ` + set)
		h.start()
		if _, err := h.Held(t.Context(), "uid:1000", []string{"A_KEY"}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// A secret that was sealed before there was a Sending opens as it did.
func TestSecretsSealedEarlier(t *testing.T) {
	h := newHouse(t)
	h.keepSecret(alice, "A_KEY", "a.example")
	sum := sha256.Sum256([]byte(`[["a.example"],null]`))
	key := filepath.Join(t.TempDir(), "a.key")
	sealer, err := secret.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := sealer.Seal("secret/uid:1000/A_KEY/"+hex.EncodeToString(sum[:]), redact.NewValue(keptValue))
	if err != nil {
		t.Fatal(err)
	}
	h.inDatabase(`UPDATE secrets SET sealed = x'` + hex.EncodeToString(sealed) + `'`)
	h.start()
	held, err := secrets.New(secrets.Config{Store: h.store, Sealer: sealer}).Held(t.Context(), "uid:1000", []string{"A_KEY"})
	if err != nil || held[0].Value.Reveal() != keptValue {
		t.Errorf("%v, %v", held, err)
	}
}

// Somebody who can write to the database cannot have a value sent elsewhere, or used for somebody else, and another key
// opens nothing.
func TestSecretsWhoseRowsWereChanged(t *testing.T) {
	h := newHouse(t)
	h.keepSecret(alice, "A_KEY", "a.example")
	h.keepSecret(alice, "B_KEY", "b.example")
	h.keepSecret(bob, "A_KEY", "a.example")
	for what, set := range map[string]string{
		"hosts":         `hosts = '["evil.example"]'`,
		"headers":       `headers = '["X-Shown"]'`,
		"another's":     `sealed = (SELECT sealed FROM secrets WHERE owner = 'uid:1001')`,
		"another value": `sealed = (SELECT sealed FROM secrets WHERE name = 'B_KEY')`,
		"cut off":       `sealed = substr(sealed, 1, 300)`,
		"sending":       `sending = '{"inject":"query:q"}'`,
		"pointers":      `sending = '{"json":["/comment"]}'`,
	} {
		h.inDatabase(`UPDATE secrets SET ` + set + ` WHERE owner = 'uid:1000' AND name = 'A_KEY'`)
		h.start()
		if _, err := h.Held(t.Context(), "uid:1000", []string{"A_KEY"}); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "cannot use secret A_KEY of uid:1000") {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := h.RotateSecret(t.Context(), alice, "A_KEY", redact.NewValue("a new value")); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "carrel secret rm A_KEY") {
			t.Errorf("%s: %v", what, err)
		}
		if err := h.RemoveSecret(t.Context(), alice, "", "A_KEY"); err != nil {
			t.Fatal(err)
		}
		h.keepSecret(alice, "A_KEY", "a.example")
		if got := h.shownHeld("uid:1000", "A_KEY"); got != "A_KEY="+keptValue+" a.example" {
			t.Error(got)
		}
	}
	key := filepath.Join(t.TempDir(), "other.key")
	other, err := secret.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	s := secrets.New(secrets.Config{Store: h.store, Sealer: other})
	_, err = s.Held(t.Context(), "uid:1000", []string{"A_KEY"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), key) {
		t.Error(err)
	}
}
