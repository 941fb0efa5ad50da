package rules_test

import (
	"slices"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// lookers is knowledge of a program that looks, none of whose options are listed.
const lookers = `version: 1
programs:
  looker: "read*"
  asker: {flags: "-o;-q --quiet;--outfile-mode =;--log-level =;--output =;--add = :package.mutate", operands: "text*"}
`

// TestUnlistedOptions holds what an unlisted option does by its name.
func TestUnlistedOptions(t *testing.T) {
	e, err := knowing(lookers)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command, capability string // no capability means SAFE
	}{
		{"looker --output json a", ""},
		{"looker --output=a.json", "filesystem.write"},
		{"looker --output /etc/a", "filesystem.system_write"},
		{"looker --out a.html", "filesystem.write"},
		{"looker --outfile a", "filesystem.write"},
		{"looker --report-file a", "filesystem.write"},
		{"looker --log-file=a b", "filesystem.write"},
		{"looker --log-level=debug a", ""},
		{"looker --json a.txt", ""},
		{"looker --json=a.txt", "filesystem.write"},
		{"looker --output=/dev/null a", ""},
		{"looker --output=-", ""},
		{"looker --save-to=false a", ""},
		{"looker --output-format=yaml a", ""},
		{"looker --output=jsonpath={.a.b} a", ""},
		{"looker -o a.txt", "filesystem.write"},
		{"looker -oa.txt", "filesystem.write"},
		{"looker -vo /etc/a", "filesystem.system_write"},
		{"looker -o wide", ""},
		{"looker -func=cover.out", ""},
		{"asker -o a.txt", ""},
		{"asker --output a.txt", ""},
		{"asker --output-dir /etc/a", "filesystem.system_write"},
		{"asker --output-dir=/etc/a", "filesystem.system_write"},
		{"asker --add-key a", "package.mutate"},
		{"asker --quiet-time a", ""},
		{"looker --delete-all", "filesystem.delete"},
		{"looker --fix a", "filesystem.write"},
		{"looker --auto-correct a", "filesystem.write"},
		{"looker --upload a", "network.out"},
		{"looker --listen a", "network.listen"},
		{"looker --install a", "package.mutate"},
		{"looker --kill a", "process.signal"},
		{"looker --exec 'rm a'", "code.execute"},
		{"looker --diff-command 'rm a' b", "code.execute"},
		{"looker --pager-command less b", ""},
		{"looker --fixed a", ""},
		{"looker --settings a", ""},
		{"looker --deleted a", ""},
		// What begins as another option may be one of its own.
		{"asker --outfile /etc/a b", "filesystem.system_write"},
		{"asker --outfile=/etc/a b", "filesystem.system_write"},
		{"asker --log /etc/shadow", "secret.read"},
		{"asker --outfile-mo 600 b", ""},
		{"asker --log-lev debug b", ""},
		// What is only mentioned is read all the same if it is a secret.
		{"asker a /etc/shadow", "secret.read"},
		{"asker ~/.ssh/id_rsa", "secret.read"},
		{"asker --schema=/etc/shadow a", "secret.read"},
		{"asker -- file=/etc/shadow", "secret.read"},
		{"asker @$HOME/.aws/credentials", "secret.read"},
		{"asker /etc/passwd", ""},
		{"echo /etc/shadow", ""},
		{"grep /etc/shadowed a", ""},
	} {
		d := e.Decide(host(c.command))
		if c.capability == "" && d.Level != rules.Safe || c.capability != "" && !slices.Contains(d.Capabilities, c.capability) {
			t.Errorf("%s: %v %v, not %q", c.command, d.Level, d.Capabilities, c.capability)
		}
	}
}
