package cli

import (
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/cli/fast"
)

func (a *app) setupCommand() *cobra.Command {
	var sudoers, settings bool
	var name, path string
	c := &cobra.Command{
		Use:   "setup [flags]",
		Short: "Print what a host needs to run carrel without a broker service",
		Long: `Print the files with which a daemon starts its broker by sudo, for hosts without a root
service: a rule for sudo and the broker's settings. Nothing is written; check the output
and install it as root. Then start the daemon as its own user, with
"carreld --broker sudo".

The rule allows one program with one argument. Without the argument, that user could choose
the broker's settings, and so what root does.`,
		Example: `  carrel setup --print-sudoers | sudo tee /etc/sudoers.d/carrel; sudo visudo -c
  carrel setup --print-settings | sudo tee /etc/carrel/broker.json`,
		Args: exactly(),
	}
	c.Flags().BoolVar(&sudoers, "print-sudoers", false, "print the rule for /etc/sudoers.d/carrel")
	c.Flags().BoolVar(&settings, "print-settings", false, "print the broker's settings for /etc/carrel/broker.json")
	c.Flags().StringVar(&name, "user", daemonUser, "the user that the daemon runs as")
	c.Flags().StringVar(
		&path, "broker", filepath.Join(fast.Libexec, "carrel-broker"),
		"the path of the broker's program; root must own it and all directories above it",
	)
	c.MarkFlagsMutuallyExclusive("print-sudoers", "print-settings")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case sudoers:
			text, err := sudoersRule(name, path)
			if err != nil {
				return err
			}
			_, err = a.Out.WriteString(text)
			return err
		case settings:
			return a.printSettings(name, path)
		default:
			return usage(c, "cannot tell what to print: name --print-sudoers or --print-settings")
		}
	}
	return c
}

// sudoersRule is the line for sudoers(5). It must need no quoting, so that everybody can see what
// it allows.
func sudoersRule(name, path string) (string, error) {
	for _, s := range []string{name, path} {
		if s == "" || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") != "" {
			return "", fmt.Errorf("cannot put %q into a rule for sudo: use letters, digits, dots, hyphens and underscores only: %w",
				s, errdefs.ErrInvalidArgument)
		}
	}
	if strings.Contains(name, "/") || name == "root" || name == "ALL" || strings.HasPrefix(name, "-") || !filepath.IsAbs(path) ||
		filepath.Clean(path) != path {
		return "", fmt.Errorf(
			"cannot make a rule for the user %q and the program %q: it takes an ordinary user's name and a clean absolute path: %w", name, path,
			errdefs.ErrInvalidArgument,
		)
	}
	return fmt.Sprintf(`# Lets the daemon of carrel start its broker as root: this program with this argument,
# and nothing else. Keep the argument. Check with: visudo -c
%s ALL=(root) NOPASSWD: %s --stdio
`, name, path), nil
}

// printSettings prints the settings of the default instance.
func (a *app) printSettings(name, path string) error {
	who, err := findAccount(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		return fmt.Errorf(
			"cannot find the user %s: %w; make it, as root: useradd --system --user-group --no-create-home --shell /usr/sbin/nologin %s", name, err,
			name,
		)
	}
	if err != nil {
		return err
	}
	i := &instance{data: defaultDataDir, runtime: defaultRuntimeDir}
	beside := filepath.Dir(path)
	return a.printJSON(i.brokerSettings(who, filepath.Join(beside, "carrel-executor"), filepath.Join(beside, "carrel-egress")))
}
