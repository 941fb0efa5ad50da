package principal_test

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/principal"
)

var now = time.Date(2026, 11, 22, 5, 0, 0, 0, time.UTC)

func TestMayGrant(t *testing.T) {
	alice := principal.Principal{Kind: principal.User, UID: 1000}
	root := principal.Principal{Kind: principal.User}
	day := 24 * time.Hour
	// held is a token of alice's with all that the cases below want more of.
	held := principal.Issued{Expires: now.Add(day), Rate: 10, Burst: 10}
	held.Grant = principal.Grant{ID: "0123456789ab", Owner: "uid:1000", Roles: principal.Operator, Scope: principal.Scope{"bot-*"}}
	holder := principal.Principal{Kind: principal.Token, Grant: &held.Grant}
	single := held
	single.MaxUses = 1
	agent := grant(principal.Agent)
	last := holder
	lastGrant := *holder.Grant
	last.Grant, lastGrant.Makers = &lastGrant, make([]string, principal.MaxMakers)
	type want = principal.Wanted
	for name, c := range map[string]struct {
		p    principal.Principal
		made *principal.Issued
		w    want
		err  func(error) bool
	}{
		"agent of alice's":           {alice, nil, want{Roles: principal.Agent}, nil},
		"operator of alice's":        {alice, nil, want{Roles: principal.Operator | principal.Approver, Life: day}, nil},
		"admin of alice's":           {alice, nil, want{Roles: principal.Admin}, errdefs.IsPermissionDenied},
		"auditor of alice's":         {alice, nil, want{Roles: principal.Agent | principal.Auditor}, errdefs.IsPermissionDenied},
		"alice for bob":              {alice, nil, want{Roles: principal.Agent, Owner: "uid:1001"}, errdefs.IsPermissionDenied},
		"alice for herself":          {alice, nil, want{Roles: principal.Agent, Owner: "uid:1000"}, nil},
		"root for bob":               {root, nil, want{Roles: principal.Operator, Owner: "uid:1001"}, nil},
		"root, all":                  {root, nil, want{Roles: principal.AllRoles}, nil},
		"no role":                    {root, nil, want{}, errdefs.IsInvalidArgument},
		"unknown role":               {root, nil, want{Roles: 1 << 7}, errdefs.IsInvalidArgument},
		"too long":                   {root, nil, want{Roles: principal.Agent, Life: principal.MaxLife + 1}, errdefs.IsInvalidArgument},
		"expired":                    {root, nil, want{Roles: principal.Agent, Life: -1}, errdefs.IsInvalidArgument},
		"uses":                       {root, nil, want{Roles: principal.Agent, MaxUses: -1}, errdefs.IsInvalidArgument},
		"rate":                       {root, nil, want{Roles: principal.Agent, Rate: -1}, errdefs.IsInvalidArgument},
		"nobody":                     {principal.Principal{}, nil, want{Roles: principal.Agent}, errdefs.IsPermissionDenied},
		"an agent's token":           {agent, &held, want{Roles: principal.Agent}, errdefs.IsPermissionDenied},
		"a token without its record": {holder, nil, want{Roles: principal.Agent}, errdefs.IsPermissionDenied},
		"token, less": {
			holder, &held, want{Roles: principal.Agent, Scope: principal.Scope{"bot-1"}, Life: time.Hour, Rate: 5, Burst: 5, MaxUses: 3}, nil,
		},
		"token, the same":            {holder, &held, want{Roles: principal.Operator}, nil},
		"token, more rights":         {holder, &held, want{Roles: principal.Admin}, errdefs.IsPermissionDenied},
		"token, more workspaces":     {holder, &held, want{Roles: principal.Agent, Scope: principal.Scope{"b*"}}, errdefs.IsPermissionDenied},
		"token, another owner":       {holder, &held, want{Roles: principal.Agent, Owner: "uid:0"}, errdefs.IsPermissionDenied},
		"token, longer":              {holder, &held, want{Roles: principal.Agent, Life: day + 1}, errdefs.IsPermissionDenied},
		"token, faster":              {holder, &held, want{Roles: principal.Agent, Rate: 11}, errdefs.IsPermissionDenied},
		"token, more at once":        {holder, &held, want{Roles: principal.Agent, Rate: 5, Burst: 11}, errdefs.IsPermissionDenied},
		"token for one use, another": {holder, &single, want{Roles: principal.Agent}, errdefs.IsPermissionDenied},
		"token, the end of a line":   {last, &held, want{Roles: principal.Agent}, errdefs.IsPermissionDenied},
		"token of an admin for bob": {
			principal.Principal{Kind: principal.Token, Grant: &principal.Grant{Owner: "uid:0", Roles: principal.Admin}},
			&principal.Issued{Expires: now.Add(day)},
			want{Roles: principal.Agent, Owner: "uid:1001"},
			errdefs.IsPermissionDenied,
		},
		"name that is not characters": {root, nil, want{Roles: principal.Agent, Name: "\xff"}, errdefs.IsInvalidArgument},
	} {
		got, err := c.p.MayGrant(c.w, c.made, now)
		if c.err != nil {
			if !c.err(err) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Ended(now) != "" || got.Maker != c.p.String() || !c.p.MayReach(got.Owner, "bot-1") {
			t.Errorf("%s: %+v", name, got)
		}
		if c.made != nil && (got.Expires.After(c.made.Expires) || got.Rate == 0 || got.Scope == nil || got.Owner != c.made.Owner) {
			t.Errorf("%s: more than its maker: %+v", name, got)
		}
	}
}

func TestEnded(t *testing.T) {
	fresh := principal.Issued{Expires: now.Add(time.Second), MaxUses: 2, Uses: 1}
	for want, change := range map[string]func(*principal.Issued){
		"":        func(*principal.Issued) {},
		"revoked": func(i *principal.Issued) { i.Revoked = now },
		"expired": func(i *principal.Issued) { i.Expires = now },
		"used up": func(i *principal.Issued) { i.Uses = 2 },
	} {
		i := fresh
		change(&i)
		if got := i.Ended(now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if (&principal.Issued{}).Ended(now) == "" {
		t.Error("a token without an end is good")
	}
}
