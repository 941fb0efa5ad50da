package serve_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/serve"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The requests of models are not judged by rules: so one that denies some of them denies all, and one that allows some
// changes nothing.
func TestModelsAndRequestRules(t *testing.T) {
	to, err := netrule.ParseTarget("api.example:443")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		action netrule.Action
		rule   string
		ok     bool
	}{
		{netrule.Allow, "GET api.example/v1/x", true},
		{netrule.Allow, "tls://api.example", true},
		{netrule.Deny, "DELETE other.example", true},
		{netrule.Deny, "DELETE api.example:80", true},
		{netrule.Deny, "DELETE *", false},
		{netrule.Deny, "api.example/v1/files/*", false},
		{netrule.Deny, "tls://*.example", false},
		{netrule.Deny, "api.example", false},
	} {
		var all []netrule.Rule
		for action, text := range map[netrule.Action]string{c.action: c.rule, netrule.Approved: to.String()} {
			r, err := netrule.ParseRule(action, text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
		}
		rules, err := netrule.New(all, netrule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := serve.ModelAllowed(rules, to); (err == nil) != c.ok || !c.ok && (!errdefs.IsPermissionDenied(err) ||
			!strings.Contains(err.Error(), c.rule)) {
			t.Errorf("%s %s: %v", c.action, c.rule, err)
		}
	}
}
