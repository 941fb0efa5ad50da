package principal_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// grant is a token of alice's.
func grant(roles principal.Roles, scope ...string) principal.Principal {
	return principal.Principal{
		Kind: principal.Token, Grant: &principal.Grant{ID: "0123456789ab", Owner: "uid:1000", Roles: roles, Scope: scope},
	}
}

func TestMayReach(t *testing.T) {
	alice := principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	for name, c := range map[string]struct {
		p           principal.Principal
		text, owner string
		own, others bool
	}{
		"owner":              {alice, "uid:1000", "uid:1000", true, false},
		"administrator":      {principal.Principal{Kind: principal.User, UID: 1001, Admin: true}, "uid:1001", "uid:1001", true, true},
		"root":               {principal.Principal{Kind: principal.User}, "uid:0", "uid:0", true, true},
		"system":             {principal.Self(), "system", "system", true, true},
		"nobody":             {principal.Principal{}, "nobody", "nobody", false, false},
		"nobody, as root":    {principal.Principal{UID: 0, Admin: true}, "nobody", "nobody", false, false},
		"another kind":       {principal.Principal{Kind: "robot", UID: 1000}, "nobody", "nobody", false, false},
		"token":              {grant(principal.Agent), "token:0123456789ab", "uid:1000", true, false},
		"token of an admin":  {grant(principal.Admin), "token:0123456789ab", "uid:1000", true, true},
		"auditor":            {grant(principal.Auditor), "token:0123456789ab", "uid:1000", true, false},
		"token without role": {grant(0), "token:0123456789ab", "uid:1000", false, false},
		// A token is no user, whatever else is set.
		"token with a uid": {
			principal.Principal{
				Kind: principal.Token, UID: 0, Admin: true, Grant: &principal.Grant{ID: "x", Owner: "uid:1000", Roles: principal.Agent},
			}, "token:x", "uid:1000", true, false,
		},
		"token without a grant": {principal.Principal{Kind: principal.Token, UID: 1000}, "nobody", "nobody", false, false},
		"user with a grant": {
			principal.Principal{Kind: principal.User, UID: 1001, Grant: &principal.Grant{Owner: "uid:1000", Roles: principal.Admin}},
			"uid:1001",
			"uid:1001", true, false,
		},
		"token with a scope": {grant(principal.Admin, "demo"), "token:0123456789ab", "uid:1000", false, false},
	} {
		own := c.p.Owner()
		if own != c.owner || c.p.String() != c.text {
			t.Errorf("%s: %s of %s", name, c.p, own)
		}
		if c.p.MayReach(own) != c.own || c.p.MayReach("uid:4711") != c.others || c.p.MayReach("") != c.others {
			t.Errorf("%s: own %v, another's %v, no one's %v", name, c.p.MayReach(own), c.p.MayReach("uid:4711"), c.p.MayReach(""))
		}
	}
	if alice.MayReach("uid:10000") || alice.MayReach("uid:100") {
		t.Error("a part of an owner is taken for the whole")
	}
}

func TestScope(t *testing.T) {
	const name = "ws-2a97516c"
	for _, c := range []struct {
		scope     []string
		key, name string
		want      bool
	}{
		{[]string{"demo"}, "demo", name, true},
		{[]string{"demo"}, "demo2", name, false},
		{[]string{"demo"}, "dem", name, false},
		{[]string{"a", "b"}, "b", name, true},
		{[]string{name}, "anything", name, true},
		{[]string{"bot-*"}, "bot-", name, true},
		{[]string{"bot-*"}, "bot-7", name, true},
		{[]string{"bot-*"}, "bo", name, false},
		{[]string{"bot *"}, "bot 7", name, true},
		// All names begin alike: a beginning is that of a key.
		{[]string{"ws-*"}, "demo", name, false},
		{[]string{"ws-*"}, "ws-demo", name, true},
		{[]string{"*x"}, "ax", name, false},
		{[]string{"demo"}, "", "", false},
	} {
		scope, err := principal.ParseScope(c.scope)
		if err != nil {
			t.Fatal(err)
		}
		p := grant(principal.Operator, scope...)
		if got := p.MayReach("uid:1000", c.key, c.name); got != c.want {
			t.Errorf("%q reaches %q, %q: %v", c.scope, c.key, c.name, got)
		}
		if p.MayReach("uid:1001", c.key, c.name) {
			t.Errorf("%q reaches another user's %q", c.scope, c.key)
		}
	}
	for _, bad := range [][]string{{"*"}, {""}, {"a\nb"}, {"a", " b"}, {"\x00*"}, make([]string, principal.MaxScope+1)} {
		if s, err := principal.ParseScope(bad); err == nil {
			t.Errorf("%q is taken as the scope %q", bad, s)
		}
	}
	if s, err := principal.ParseScope(nil); s != nil || err != nil {
		t.Errorf("no scope: %v, %v", s, err)
	}
}

// A scope within another names nothing that the other does not.
func TestWithin(t *testing.T) {
	scopes := []principal.Scope{
		nil,
		{"demo"},
		{"demo", "bot-*"},
		{"bot-*"},
		{"bot-1*"},
		{"bot-1"},
		{"ws-2a97516c"},
		{"ws-*"},
		{"w*"},
		{"bot-1", "demo"},
		{"ws-2a97516c*"},
	}
	within := 0
	for _, s := range scopes {
		for _, o := range scopes {
			if !s.Within(o) {
				continue
			}
			within++
			for _, key := range []string{"demo", "bot-", "bot-1", "bot-12", "b", "ws-demo", "w", "ws-2a97516c", "ws-2a97516cx", "other"} {
				for _, name := range []string{"ws-2a97516c", "ws-00000000"} {
					if grant(principal.Operator, s...).MayReach("uid:1000", key, name) &&
						!grant(principal.Operator, o...).MayReach("uid:1000", key, name) {
						t.Errorf("%q is within %q and reaches %s, %s", s, o, key, name)
					}
				}
			}
		}
	}
	if within < len(scopes)*2 {
		t.Errorf("only %d pairs were compared", within)
	}
	if (principal.Scope{"bot-1"}).Within(principal.Scope{"bot-2*"}) || principal.Scope(nil).Within(principal.Scope{"demo"}) {
		t.Error("another scope is taken for a narrower one")
	}
}

func TestRoles(t *testing.T) {
	for _, names := range [][]string{{"admin"}, {"agent"}, {"auditor", "agent"}, {"approver", "operator"}} {
		r, err := principal.ParseRoles(names...)
		if err != nil || len(r.Names()) != len(names) {
			t.Errorf("%v: %v, %v", names, r.Names(), err)
		}
	}
	for _, names := range [][]string{nil, {""}, {"root"}, {"admin", "Admin"}} {
		if r, err := principal.ParseRoles(names...); err == nil {
			t.Errorf("%q are the roles %s", names, r)
		}
	}
	alice := principal.Principal{Kind: principal.User, UID: 1000}
	for _, c := range []struct {
		p    principal.Principal
		need principal.Permission
		want bool
	}{
		{alice, principal.Run, true},
		{alice, principal.Tokens | principal.Make, true},
		{alice, principal.Audit, false},
		{alice, principal.Look | principal.Audit, false},
		{alice, 0, false}, // a rule that was forgotten lets nobody pass
		{principal.Self(), 0, false},
		{principal.Self(), principal.Any, true},
		{grant(principal.Agent), principal.Run, true},
		{grant(principal.Agent), principal.Make, false},
		{grant(principal.Agent), principal.Tokens, false},
		{grant(principal.Auditor), principal.Look, false},
		{grant(principal.Agent | principal.Auditor), principal.Look | principal.Audit, true},
		{grant(principal.Approver), principal.Run, false},
		{principal.Principal{}, principal.Known, false},
	} {
		if c.p.Can(c.need) != c.want {
			t.Errorf("%s (%v) can %v: %v", c.p, c.p.RolesOf(), c.need.Names(), !c.want)
		}
	}
	// Nobody but the admin has what is about everybody.
	for _, r := range principal.AllRoles.Names() {
		if role, _ := principal.ParseRoles(r); r != "admin" && role.Permissions()&(principal.Any|principal.Policy|principal.Host) != 0 {
			t.Errorf("%s has %v", r, role.Permissions().Names())
		}
	}
	if n := len(principal.Self().Permissions().Names()); n != 13 {
		t.Errorf("%d permissions have names", n)
	}
}

// Who is bound to a workspace keeps what a program in it may do, and reaches no other, whoever they are.
func TestBound(t *testing.T) {
	const name = "ws-2a97516c"
	for what, p := range map[string]principal.Principal{
		"a user": {Kind: principal.User, UID: 1000}, "root": {Kind: principal.User, Admin: true}, "a token": grant(principal.AllRoles),
	} {
		b := p.Bind(name, "trace")
		if b.String() != p.String() || b.Owner() != p.Owner() || p.Bound != nil {
			t.Errorf("%s: %s of %s", what, b, b.Owner())
		}
		if got := b.Permissions(); got != principal.Known|principal.Look|principal.Run || b.RolesOf() != 0 {
			t.Errorf("%s may %v by %v", what, got.Names(), b.RolesOf())
		}
		for _, c := range []struct {
			owner string
			names []string
			want  bool
		}{
			{"uid:1000", []string{"demo", name}, true},
			{"uid:1000", []string{"demo", "ws-00000000"}, false},
			{"uid:1000", []string{name, "ws-00000000"}, false}, // a key that looks like the name
			{"uid:1000", nil, false},
		} {
			if got := b.MayReach(c.owner, c.names...); got != c.want {
				t.Errorf("%s reaches %s %q: %v", what, c.owner, c.names, got)
			}
		}
		if b.MayReach("uid:1001", "demo", name) != p.MayReach("uid:1001", "demo", name) {
			t.Errorf("%s reaches what they did not, or does not what they did", what)
		}
	}
	agent := grant(principal.Approver).Bind(name, "")
	if got := agent.Permissions(); got != principal.Known|principal.Look {
		t.Errorf("being bound gave %v", got.Names())
	}
	if grant(principal.Agent, "other").Bind(name, "").MayReach("uid:1000", "demo", name) {
		t.Error("a token that does not reach the workspace does when it is bound to it")
	}
}
