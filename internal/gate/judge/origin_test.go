package judge_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Only a person is taken for the author of what they send: no token is, and no program in a workspace that acts for one.
func TestOrigin(t *testing.T) {
	alice := principal.Principal{Kind: principal.User, UID: 1000}
	root := principal.Principal{Kind: principal.User, Admin: true}
	token := principal.Principal{
		Kind: principal.Token, Grant: &principal.Grant{ID: "0123456789ab", Owner: "uid:1000", Roles: principal.AllRoles},
	}
	for what, c := range map[string]struct {
		by   principal.Principal
		want rules.Origin
	}{
		"a user": {alice, rules.User}, "a token": {token, rules.LLM}, "a program for a user": {alice.Bind("ws-2a97516c", ""), rules.LLM},
		"a program for root": {root.Bind("ws-2a97516c", ""), rules.LLM},
	} {
		if got := judge.Origin(c.by, rules.User); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
		if got := judge.Origin(c.by, rules.LLM); got != rules.LLM {
			t.Errorf("%s, who says that a model wrote it: %v", what, got)
		}
	}
}
