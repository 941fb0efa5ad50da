// Command man writes carrel's manual pages, from the help of the commands and the flags of the daemons.
//
// It is a module of its own, so that what formats the pages is not linked into carrel.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/daemon"
)

func main() {
	dir := flag.String("dir", "bin/man", "the directory to write to; it is made")
	date := flag.String("date", "", "the date of the release, as 2006-01-02")
	flag.Parse()
	if err := write(*dir, *date); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// daemons are the programs that have no commands, by name. The text is Markdown.
var daemons = map[string]struct {
	short, long string
	flags       *flag.FlagSet
}{
	"carreld": {
		"carrel's daemon", `It holds the state of all workspaces and serves carrel's API, without any privilege. The broker, see
**carrel-broker**(8), does for it what takes root. **carrel up** starts both; under systemd, **systemctl enable --now
carrel.target** does from each boot on.

Every setting is a flag, an environment variable and a key of /etc/carrel/carreld.yaml: a flag goes before a variable, and a variable before
the file. **carreld --print-sample** prints that file with every key, **carreld --print-config** what is in force and where it comes from.

# FILES
/etc/carrel/carreld.yaml: the settings.

/var/lib/carrel/daemon: database, record and keys.

/run/carrel/carrel.sock: the API.

# SIGNALS
HUP reads the rules of the policy and the files of secrets again. TERM and INT end the daemon once running requests have ended, or after
stop_timeout; workspaces and detached commands live on.

# EXIT STATUS
0 after a signal, 1 after a failure, 2 for a wrong command line.
`, daemon.Flags(),
	},
	"carrel-broker": {
		"carrel's broker, the only part with root", `It makes and removes the users, homes, control groups and executors of workspaces, as the
daemon asks by a closed table of operations, and keeps a ledger of its own. It serves root and the daemon's user only. **carrel up** starts it, or
systemd: see **carreld**(8).

# FILES
/var/lib/carrel/broker.json: the settings, which carrel up writes; /etc/carrel/broker.json if no other file is named.

/var/lib/carrel/broker: the ledger.

/run/carrel/broker.sock: where the daemon connects.

# SIGNALS
TERM and INT end the broker once operations under way have ended. Executors live on, and the next broker finds them.
`, broker.Flags(new(broker.Options)),
	},
}

func write(dir, date string) error {
	day, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return fmt.Errorf("cannot use -date: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	header := func(section string) *doc.GenManHeader {
		return &doc.GenManHeader{Section: section, Source: "carrel " + build.Version(), Manual: "Carrel", Date: &day}
	}
	root := cli.Command()
	root.DisableAutoGenTag = true // the same commands give the same bytes
	if err := doc.GenManTree(root, header("1"), dir); err != nil {
		return err
	}
	for name, d := range daemons {
		c := &cobra.Command{Use: name, Short: d.short, Long: d.long, DisableAutoGenTag: true, Run: func(*cobra.Command, []string) {}}
		c.Flags().AddGoFlagSet(d.flags)
		f, err := os.Create(filepath.Join(dir, name+".8"))
		if err != nil {
			return err
		}
		h := header("8")
		h.Title = name
		if err := doc.GenMan(c, h, f); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}
