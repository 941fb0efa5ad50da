package daemon_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/daemon"
	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// An administrator's runbooks stand beside carrel's. One that is not usable, or says wrongly that a step only reads, is left
// out and named in the log; so is one that somebody else may change.
func TestRunbooks(t *testing.T) {
	e, err := rules.New(rules.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	form := func(name, command string) string {
		return "name: " + name + "\ntitle: mine\nmatch: [a]\nsteps:\n" + "  - {command: \"" + command +
			"\", purpose: look, read_only: true}\nadvice: b\n"
	}
	for name, text := range map[string]string{
		"mail.yaml": form("mail", "mailq"), "disk.yaml": form("disk", "df"), "bad.yaml": form("bad", "rm -rf /srv"),
		"odd.yaml": form("odd", "df") + "what: else\n", "other.txt": form("other", "df"), "open.yaml": form("open", "df"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "open.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	all := daemon.LoadRunbooks(dir, e, slog.New(slog.NewTextHandler(&log, nil)))
	for name, there := range map[string]bool{
		"mail": true, "disk": true, "load": true, "bad": false, "odd": false, "other": false, "open": false,
	} {
		if r := runbooks.Find(all, name); (r != nil) != there {
			t.Errorf("%s: %+v", name, r)
		}
		if bad := name == "bad" || name == "odd" || name == "open"; bad != strings.Contains(log.String(), name+".yaml") {
			t.Errorf("%s in the log: %s", name, log.String())
		}
	}
	if r := runbooks.Find(all, "disk"); len(all) != 12 || r == nil || r.Title != "mine" {
		t.Errorf("%d, %+v", len(all), r)
	}
	log.Reset()
	if all := daemon.LoadRunbooks(dir+"/none", e, slog.New(slog.NewTextHandler(&log, nil))); len(all) != 11 || log.Len() > 0 {
		t.Errorf("%d, %s", len(all), log.String())
	}
}
