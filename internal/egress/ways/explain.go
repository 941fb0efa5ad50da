package ways

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/egressapi"
	"github.com/carrel-dev/carrel/internal/netrule"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Explain returns what rules of a workspace say, with those of the host, of each of these hosts: HOST, which is for port
// 443, or HOST:PORT. secrets are those of the workspace. It resolves no name: addresses are judged when a connection is
// made.
//
// Errors: invalid_argument for a host that cannot be read.
func (w *Ways) Explain(r workspace.Reach, secrets []egressapi.Secret, hosts []string) ([]workspace.ReachVerdict, error) {
	s, err := setup(w.config(), "", r)
	if err != nil {
		return nil, err
	}
	judge, err := netrule.New(s.Rules, netrule.Options{Public: s.Public})
	if err != nil {
		return nil, err
	}
	all := make([]workspace.ReachVerdict, 0, len(hosts))
	for _, text := range hosts {
		t, err := target(text)
		if err != nil {
			return nil, err
		}
		v := judge.Judge(t)
		x := workspace.ReachVerdict{Host: t.String(), Action: string(v.Action), Rule: v.Rule, Reason: v.Reason(t)}
		for _, secret := range secrets {
			bound, err := netrule.New(secret.Hosts, netrule.Options{})
			if err != nil {
				return nil, err
			}
			if v.Action != netrule.Deny && bound.Judge(t).Action == netrule.Allow {
				x.Secrets = append(x.Secrets, secret.Name)
			}
		}
		all = append(all, x)
	}
	return all, nil
}

// target reads HOST or HOST:PORT.
func target(text string) (netrule.Target, error) {
	address := !strings.HasPrefix(text, "[") && strings.Count(text, ":") > 1 // IPv6 without brackets
	if strings.Contains(text, ":") && !strings.HasSuffix(text, "]") && !address {
		return netrule.ParseTarget(text)
	}
	h, err := netrule.ParseHost(text)
	return netrule.Target{Host: h, Port: 443}, err
}
