package rootless

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// maxPolicy bounds the caller's file of rules in bytes.
const maxPolicy = 16 << 20

// PolicyPath is the caller's file of rules: $XDG_CONFIG_HOME/carrel/policy.yaml, or
// ~/.config/carrel/policy.yaml; "" if there is none.
func PolicyPath() string { return configPath("policy.yaml") }

// EgressPath is the caller's file of network rules, egress.yaml beside that; "" if there is none.
func EgressPath() string { return configPath("egress.yaml") }

func configPath(name string) string {
	base := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) { // a relative one is to be ignored (XDG Base Directory Specification)
		home, err := os.UserHomeDir()
		if err != nil || !filepath.IsAbs(home) {
			return ""
		}
		base = filepath.Join(home, ".config")
	}
	path := filepath.Join(base, "carrel", name)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// loadPolicy makes the rules that judge a run: the built-in ones, and the rules in the
// caller's file if there is one. A file that cannot be used, or that others may change, is an
// error: nothing runs. note gets each of the caller's rules that has no effect in a workspace.
func loadPolicy(note func(string)) (*rules.Engine, error) {
	path := PolicyPath()
	if path == "" {
		return rules.New(rules.Config{})
	}
	b, err := config.ReadTrusted(path, "policy", maxPolicy)
	if err != nil {
		return nil, fmt.Errorf("%w; mend it, or move it away to be judged by the built-in rules", err)
	}
	e, err := rules.New(rules.Config{Rules: &rules.Source{Name: path, Data: b}})
	if err != nil {
		return nil, err
	}
	for _, o := range e.Overridden() {
		if o.Profile == rules.Workspace {
			note(o.What() + "; replace that rule by its id") // what a daemon allows is not for a run
		}
	}
	return e, nil
}
