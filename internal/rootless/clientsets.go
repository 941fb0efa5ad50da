package rootless

import (
	"context"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// IsClientSet reports whether a rule is the set of a package client, as @npm.
func IsClientSet(rule string) bool {
	name, set := strings.CutPrefix(rule, "@")
	return set && slices.Contains(conf.ClientNames(), name)
}

// ExpandClientSets returns a function that puts, in rules for a daemon, the hosts of the caller's own package clients in
// the place of their sets, and leaves everything else as it is: a daemon has no clients of its caller. avoid are
// directories that a command may have written: no client there is asked. Each client is asked once.
func ExpandClientSets(ctx context.Context, avoid []string) func(rules []string) ([]string, error) {
	lookup := conf.HostClients(avoid).Lookup(ctx)
	return func(rules []string) (out []string, err error) {
		for _, rule := range rules {
			if !IsClientSet(rule) {
				out = append(out, rule)
				continue
			}
			hosts, err := lookup(strings.TrimPrefix(rule, "@"))
			if err != nil {
				return nil, err
			}
			out = append(out, hosts...)
		}
		return out, nil
	}
}

// ParseSecretUse reads NAME, NAME@HOST[,HOST...] or NAME@HOST[,HOST...]=INJECT of a secret that a daemon keeps. hosts are in
// their canonical form, nil if none are named.
func ParseSecretUse(text string) (name string, hosts []string, inject string, err error) {
	name, _, named := strings.Cut(text, "@")
	if !named {
		return name, nil, "", workspace.CheckSecretNames([]string{name})
	}
	s, err := conf.Default().ParseSecret(text)
	for _, h := range s.Hosts {
		hosts = append(hosts, h.Text)
	}
	return s.Name, hosts, s.Inject, err
}
