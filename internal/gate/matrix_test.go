package gate_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

var update = flag.Bool("update", false, "write testdata/matrix.txt anew")

// callers are everybody who can ask, beside the daemon: users, and tokens of the owner of demo with each
// role, and with each scope.
func callers(t *testing.T) map[string]principal.Principal {
	t.Helper()
	with := func(owner string, roles principal.Roles, scope principal.Scope) principal.Principal {
		return principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: "0123456789ab", Owner: owner, Roles: roles, Scope: scope}}
	}
	all := map[string]principal.Principal{
		"nobody":               {},
		"user 1000":            alice,
		"user 1001":            {Kind: principal.User, UID: 1001},
		"root":                 {Kind: principal.User, Admin: true},
		"group carrel":         {Kind: principal.User, UID: 1002, Admin: true},
		"operator for demo":    with("uid:1000", principal.Operator, principal.Scope{"demo"}),
		"operator for d*":      with("uid:1000", principal.Operator, principal.Scope{"d*"}),
		"operator for nothing": with("uid:1000", principal.Operator, principal.Scope{"another"}),
		"admin for demo":       with("uid:1000", principal.Admin, principal.Scope{"demo"}),
		"operator of 1001":     with("uid:1001", principal.Operator, nil),
	}
	all["task of 1000"] = alice.Bind(demo.Name, "")
	all["task of 1000 elsewhere"] = alice.Bind("ws-00000000", "")
	all["task of root"] = all["root"].Bind(demo.Name, "")
	all["task of an operator for nothing"] = all["operator for nothing"].Bind(demo.Name, "")
	for _, name := range principal.AllRoles.Names() {
		r, err := principal.ParseRoles(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = with("uid:1000", r, nil)
	}
	return all
}

// Every row is tried by everybody, on a workspace of user 1000, demo, and on one of another user's. Whoever
// lacks the permission of the row, or does not reach the target, is refused and on record, and the effect is
// not called; all others pass. testdata/matrix.txt has the answers, for people to read: a row or a caller
// that it lacks fails.
func TestEveryRowIsHeld(t *testing.T) {
	others := demo
	others.Owner, others.Key, others.Name = "uid:1003", "private", "ws-ffffffff"
	by := callers(t)
	var got strings.Builder
	for _, row := range operation.Table {
		fmt.Fprintf(&got, "%s\n", row.Name)
		for on, target := range []operation.Target{demo, others} {
			var may []string
			for _, what := range slices.Sorted(maps.Keys(by)) {
				if passes(t, row, what, by[what], target) {
					may = append(may, what)
				}
			}
			fmt.Fprintf(&got, "  %-8s%s\n", []string{"demo:", "others:"}[on], strings.Join(may, ", "))
		}
	}
	const path = "testdata/matrix.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); d != "" {
		t.Errorf("who may do what (-written down +now); if it is meant so: go test ./internal/gate -run TestEveryRowIsHeld -update\n%s", d)
	}
}

// passes reports whether a caller passes the gate, and sees that one that does not is refused as it must be.
func passes(t *testing.T, row operation.Row, what string, by principal.Principal, on operation.Target) bool {
	t.Helper()
	b, called := &book{}, false
	err := newGate(b).Do(t.Context(), operation.Request{By: by, Op: plain(row.Name), On: on, Verified: true},
		func(context.Context, permit.Permit) (any, error) {
			called = true
			return nil, nil
		})
	asked := err != nil && strings.Contains(err.Error(), "nobody was to be asked")
	denied := len(b.list) == 1 && b.list[0].Type == audit.Denial && b.list[0].Status == audit.StatusDenied
	switch {
	case called && !asked && err == nil, asked && !called:
		return true
	case called || asked || !errdefs.IsPermissionDenied(err) || !denied:
		t.Errorf("%s by %s on %s: called %v, %v, %v", row.Name, what, on.Key, called, err, b.story(0))
	}
	return false
}
