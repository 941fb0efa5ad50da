package conf

import (
	"fmt"
	"net/url"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Proxy is an HTTP proxy outside, by which hosts are reached.
type Proxy struct {
	// Address is HOST:PORT.
	Address string
	// TLS: it is spoken to inside TLS.
	TLS bool
	// Login is USER:PASSWORD, or empty.
	Login redact.Value
	// Direct are rules, with Deny, for what is reached without it.
	Direct []netrule.Rule
}

// parseProxy reads upstream_proxy and no_proxy. Its errors do not show the URL, which may have a password.
func parseProxy(text string, direct []string) (*Proxy, error) {
	if text == "" {
		if len(direct) > 0 {
			return nil, fmt.Errorf("no_proxy is for hosts beside those of upstream_proxy, and there is none: %w", errdefs.ErrInvalidArgument)
		}
		return nil, nil
	}
	bad := func(why string) (*Proxy, error) {
		return nil, fmt.Errorf("upstream_proxy: %s; write it as http://proxy.example.org:3128, or with USER:PASSWORD@ before the host: %w",
			why, errdefs.ErrInvalidArgument)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return bad("it is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("it is neither one of http nor of https, in which carrel-egress speaks to proxies")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return bad("it has more than a host and a port")
	}
	t, err := netrule.ParseTarget(u.Host)
	if err != nil {
		return bad("its host and port cannot be read")
	}
	p := &Proxy{Address: t.String(), TLS: u.Scheme == "https"}
	if u.User != nil {
		password, _ := u.User.Password()
		p.Login = redact.NewValue(u.User.Username() + ":" + password)
	}
	for _, host := range direct {
		r, err := netrule.ParseRule(netrule.Deny, host) // on every port unless it names one
		if err != nil {
			return nil, fmt.Errorf("no_proxy: %w", err)
		}
		if r.Narrow() {
			return nil, fmt.Errorf("no_proxy: %s has a protocol or requests; write its host alone: %w", r.Text, errdefs.ErrInvalidArgument)
		}
		p.Direct = append(p.Direct, r)
	}
	return p, nil
}
