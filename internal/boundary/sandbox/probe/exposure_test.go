package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

func TestProtectedLinks(t *testing.T) {
	for _, c := range []struct {
		hard, sym string
		state     probe.State
		remedy    string
	}{
		{"1", "1", probe.Yes, ""},
		{"0", "1", probe.No, "sysctl -w fs.protected_hardlinks=1, "},
		{"1", "0", probe.No, "sysctl -w fs.protected_symlinks=1, "},
		{"0", "0", probe.No, "sysctl -w fs.protected_hardlinks=1 fs.protected_symlinks=1, "},
		{"", "1", probe.Partly, "sysctl fs.protected_hardlinks"},
	} {
		dir := t.TempDir()
		for name, value := range map[string]string{"protected_hardlinks": c.hard, "protected_symlinks": c.sym} {
			if value == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if state, found, remedy := probe.ProtectedLinks(dir); state != c.state || !strings.Contains(remedy, c.remedy) || found == "" {
			t.Errorf("%q and %q: %s, %s, %s", c.hard, c.sym, state, found, remedy)
		}
	}
}

func TestHiddenProcesses(t *testing.T) {
	const (
		plain  = "22 1 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n"
		hidden = "22 1 0:21 / /proc rw,relatime - proc proc rw,gid=9,hidepid=invisible\n"
		other  = "99 1 0:50 / /srv/proc rw - proc proc rw,hidepid=2\n98 1 0:51 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw\n"
	)
	for text, want := range map[string]probe.State{
		plain: probe.Partly, plain + other: probe.Partly, hidden: probe.Yes, plain + hidden: probe.Yes, hidden + plain: probe.Partly,
		strings.Replace(hidden, "invisible", "off", 1): probe.Partly, strings.Replace(hidden, "invisible", "2", 1): probe.Yes,
		"": probe.Partly, "x - proc\n - \n": probe.Partly,
	} {
		state, found, remedy := probe.HiddenProcesses(text)
		if state != want || (state == probe.Partly) != strings.Contains(found, "command lines") || (remedy == "") != (state == probe.Yes) {
			t.Errorf("%q: %s, %s, %s", text, state, found, remedy)
		}
	}
}
