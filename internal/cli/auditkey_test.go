package cli_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
)

func TestWhoHadAKey(t *testing.T) {
	intent := func(seq int, kind, workspace, key string) string {
		return fmt.Sprintf(`{"seq":%d,"type":"intent","workspace":%q,"action":{"kind":%q,"key":%q}}`, seq, workspace, kind, key)
	}
	outcome := func(of int, status string) string {
		return fmt.Sprintf(`{"seq":%d,"type":"outcome","intent":%d,"status":%q}`, 100+of, of, status)
	}
	for _, c := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"made", []string{intent(1, "workspace.create", "ws-1", "k"), outcome(1, "ok")}, []string{"ws-1"}},
		{"another key", []string{intent(1, "workspace.create", "ws-1", "kk"), outcome(1, "ok")}, nil},
		{
			"the first name was taken",
			[]string{intent(1, "workspace.create", "ws-1", "k"), outcome(1, "failed"), intent(2, "workspace.create", "ws-2", "k"), outcome(2, "ok")},
			[]string{"ws-2"},
		},
		{"under way", []string{intent(1, "workspace.create", "ws-1", "k")}, nil},
		{"a rename that failed", []string{intent(1, "workspace.update", "ws-1", "k"), outcome(1, "failed")}, nil},
		{"another's outcome", []string{intent(1, "workspace.update", "ws-1", "k"), outcome(7, "ok")}, nil},
		{
			"back again",
			[]string{
				intent(1, "workspace.create", "ws-1", "k"), outcome(1, "ok"), intent(2, "workspace.restore", "ws-2", "k"), outcome(2, "ok"),
				intent(3, "workspace.update", "ws-1", "k"), outcome(3, "ok"),
			},
			[]string{"ws-2", "ws-1"},
		},
		{"a destroy names a workspace by its key", []string{intent(1, "workspace.destroy", "ws-1", "k"), outcome(1, "ok")}, nil},
		{"not a record", []string{`"key":`, intent(1, "workspace.create", "ws-1", "k"), outcome(1, "ok")}, []string{"ws-1"}},
	} {
		if got := cli.Holders("k", c.lines...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
