package ways

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Explain returns what rules of a workspace say, with those of the host, of each of these hosts: HOST, which is for port
// 443, HOST:PORT, or a request as GET https://HOST/PATH or with http://, which gets fewer of the secrets. secrets are those
// of the workspace. It resolves no name: addresses are judged when a connection is made.
//
// Errors: invalid_argument for what cannot be read.
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
		q, err := read(text)
		if err != nil {
			return nil, err
		}
		t := q.to
		v := judge.Judge(t)
		x := workspace.ReachVerdict{Host: t.String(), Action: string(v.Action), Rule: v.Rule, Reason: v.Reason(t)}
		if v.Narrow {
			narrowed(&x, judge.Limits(t), &q)
		}
		for _, secret := range secrets {
			if q.protocol == netrule.HTTP {
				break // nothing is sent without TLS
			}
			bound, err := netrule.New(secret.Hosts, netrule.Options{})
			if err != nil {
				return nil, err
			}
			if v.Action == netrule.Deny || bound.Judge(t).Action != netrule.Allow {
				continue
			}
			sent, err := secret.Sending.Compile()
			if err != nil {
				return nil, err
			}
			switch {
			case q.method == "": // any request
			case q.unclear != nil && sent.Limit.ByPath():
				x.Action, x.Reason = string(netrule.Deny), "a request to "+t.String()+" is not allowed: "+q.unclear.Error()
				continue
			case !sent.Limit.Selects(q.method, q.path):
				continue
			}
			x.Secrets = append(x.Secrets, secret.Name)
		}
		if x.Action == string(netrule.Deny) {
			x.Secrets = nil
		}
		all = append(all, x)
	}
	return all, nil
}

// question is what Explain is asked about: a host, or a request to one.
type question struct {
	to       netrule.Target
	protocol netrule.Protocol // Anything without a request
	method   string           // "" for any request
	path     httprule.Path
	// unclear says why the path has no canonical form.
	unclear error
}

// narrowed puts into a verdict what rules with a protocol or requests say.
func narrowed(x *workspace.ReachVerdict, l netrule.Limits, q *question) {
	if q.method == "" {
		x.Reason = x.Host + " is allowed in part: rules are about some of its requests or one protocol; ask about a request, for example GET " +
			"https://" + x.Host + "/"
		return
	}
	// Of a host that a person is asked about, what is refused whatever the answer.
	v, each := l.Connection(q.protocol, true)
	why := l.Why(q.protocol, v)
	if v.Action == netrule.Allow && each {
		of := &netrule.Request{Method: q.method, Path: q.path}
		if q.unclear != nil {
			of.NoPath = q.unclear.Error()
		}
		v, why = l.Request(q.protocol, of, true)
	}
	switch {
	case v.Action == netrule.Deny:
		x.Action, x.Rule, x.Reason = string(netrule.Deny), v.Rule, why
	case x.Action == string(netrule.Allow):
		x.Rule, x.Reason = v.Rule, "the request is allowed by the rule "+v.Rule
	}
}

// read reads HOST, HOST:PORT, https://HOST/PATH or METHOD https://HOST/PATH, or with http://.
func read(text string) (q question, err error) {
	protocol, port := netrule.TLS, uint16(443)
	method, url, is := strings.Cut(text, "https://")
	if !is {
		protocol, port = netrule.HTTP, 80
		method, url, is = strings.Cut(text, "http://")
	}
	if !is {
		q.to, err = target(text, 443)
		return q, err
	}
	q.protocol = protocol
	host, path, given := strings.Cut(url, "/")
	if !given {
		return q, fmt.Errorf("cannot judge the request %.80q: it has no path; write for example GET https://example.org/, or only its host: %w",
			text, errdefs.ErrInvalidArgument)
	}
	methods, err := httprule.ParseMethods([]string{cmp.Or(strings.TrimSpace(method), "GET")})
	if err != nil {
		return q, fmt.Errorf("cannot judge the request %.80q: %w", text, err)
	}
	q.method = methods[0]
	if q.to, err = target(host, port); err != nil {
		return q, err
	}
	path, _, _ = strings.Cut(path, "?")
	q.path, q.unclear = httprule.ParsePath("/" + path)
	return q, nil
}

// target reads HOST or HOST:PORT; port is what is left out.
func target(text string, port uint16) (netrule.Target, error) {
	address := !strings.HasPrefix(text, "[") && strings.Count(text, ":") > 1 // IPv6 without brackets
	if strings.Contains(text, ":") && !strings.HasSuffix(text, "]") && !address {
		return netrule.ParseTarget(text)
	}
	h, err := netrule.ParseHost(text)
	return netrule.Target{Host: h, Port: port}, err
}
