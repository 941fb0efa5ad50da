package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// What AppArmor forbids is seen by the label, and the remedy names the programs at their
// paths, unless somebody but root could put others there.
func TestAppArmor(t *testing.T) {
	const root = "/usr/bin/true"
	for _, c := range []struct {
		name, limit, label, program string
		state                       probe.State
		remedy                      string
	}{
		{"off", "0\n", "unconfined\n", root, probe.Yes, ""},
		{
			"restricted", "1\n", "unconfined\n",
			root, probe.No, "'profile true /usr/bin/true flags=(unconfined) { userns, }' > /etc/apparmor.d/carrel && apparmor_parser " +
				"-r /etc/apparmor.d/carrel; or",
		},
		{"no label", "1\n", "", root, probe.No, "profile true /usr/bin/true"},
		{"a profile", "1\n", "carrel (unconfined)\n\x00", root, probe.Yes, ""},
		{"a pattern", "1", "unconfined", "/usr/bin/*", probe.No, "install carrel where root alone writes"},
		{"not there", "1", "unconfined", "/usr/bin/no-such-program", probe.No, "install carrel where root alone writes"},
	} {
		state, found, remedy := probe.AppArmor(c.limit, c.label, []string{c.program})
		if state != c.state || found == "" || (c.remedy == "") != (remedy == "") || !strings.Contains(remedy, c.remedy) {
			t.Errorf("%s: %s, %q, %q", c.name, state, found, remedy)
		}
		if state == probe.No && !strings.Contains(remedy, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0") {
			t.Errorf("%s: no broad way in %q", c.name, remedy)
		}
	}
	mine := filepath.Join(t.TempDir(), "carrel")
	if err := os.WriteFile(mine, nil, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(mine, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, remedy := probe.AppArmor("1", "unconfined", []string{root, mine}); strings.Contains(remedy, "apparmor_parser") {
		t.Errorf("a profile for what others can write: %q", remedy)
	}
}
