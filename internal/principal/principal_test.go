package principal_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/principal"
)

func TestMayReach(t *testing.T) {
	alice := principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	for name, c := range map[string]struct {
		p           principal.Principal
		text        string
		own, others bool
	}{
		"owner":           {alice, "uid:1000", true, false},
		"administrator":   {principal.Principal{Kind: principal.User, UID: 1001, Admin: true}, "uid:1001", true, true},
		"root":            {principal.Principal{Kind: principal.User}, "uid:0", true, true},
		"system":          {principal.Self(), "system", true, true},
		"nobody":          {principal.Principal{}, "nobody", false, false},
		"nobody, as root": {principal.Principal{UID: 0, Admin: true}, "nobody", false, false},
		"another kind":    {principal.Principal{Kind: "token", UID: 1000}, "nobody", false, false},
	} {
		own := c.p.String()
		if own != c.text || c.p.MayReach(own) != c.own || c.p.MayReach("uid:4711") != c.others || c.p.MayReach("") != c.others {
			t.Errorf("%s: %s, own %v, another's %v, no one's %v", name, own, c.p.MayReach(own), c.p.MayReach("uid:4711"), c.p.MayReach(""))
		}
	}
	if alice.MayReach("uid:10000") || alice.MayReach("uid:100") {
		t.Error("a part of an owner is taken for the whole")
	}
}
