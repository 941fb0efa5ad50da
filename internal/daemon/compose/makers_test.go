package compose_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Whoever made a token counts as the token, and so does whoever made its maker: no way through
// tokens lets a program approve what it wrote.
func TestNobodyAnswersThroughATokenOfTheirs(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	forBob := principal.Wanted{Roles: principal.Admin, Owner: "uid:1001"}
	token, _ := h.issue(admin, forBob)
	child, _ := h.issue(token, principal.Wanted{Roles: principal.Admin})
	grandchild, _ := h.issue(child, principal.Wanted{Roles: principal.Admin})
	ofAlice, _ := h.issue(admin, principal.Wanted{Roles: principal.Agent, Owner: "uid:1000"})
	ofRoot, _ := h.issue(root, principal.Wanted{Roles: principal.Admin, Owner: "uid:1005"})
	again := func(p principal.Principal) principal.Principal { // as the next request has it
		if p.Kind != principal.Token {
			return p
		}
		i, _ := h.store.Token(p.Grant.ID)
		return principal.Principal{Kind: principal.Token, Grant: &i.Grant}
	}
	refused := func(name string, p principal.Principal, a approval.View, terminal bool) {
		t.Helper()
		if _, err := h.Answer(ctx, again(p), a.ID, approval.Once, "", terminal); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	passes := func(name string, p, asker principal.Principal, a approval.View, terminal bool) {
		t.Helper()
		if _, err := h.Answer(ctx, again(p), a.ID, approval.Once, "", terminal); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := h.Run(ctx, again(asker), "demo", upload("llm", "")); err != nil { // which spends it
			t.Errorf("%s: %v", name, err)
		}
	}
	attack := func(asker principal.Principal) {
		t.Helper()
		a := h.askNow(again(asker), upload("llm", ""))
		for range 2 {
			for name, p := range map[string]principal.Principal{"a token": token, "its child": child, "and the child of that": grandchild} {
				if p.String() != asker.String() {
					refused(name+" of who asked", p, a, true)
				}
			}
			h.crash() // the makers are known after a restart too
			h.start()
		}
		passes("another administrator's token", ofRoot, asker, a, false)
	}
	attack(admin)
	attack(grandchild)

	a := h.askNow(ofAlice, upload("llm", ""))
	passes("who made the token", admin, ofAlice, a, false)
	a = h.askNow(ofAlice, upload("llm", ""))
	passes("another administrator", root, ofAlice, a, false)
	a = h.askNow(ofAlice, upload("llm", ""))
	passes("a token that the same administrator made for another", token, ofAlice, a, false)
	a = h.askNow(alice, upload("llm", ""))
	passes("a token that none of the requester's line made", child, alice, a, false)
}
