package conf_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/conf"
)

func TestProxyInTheFile(t *testing.T) {
	c, err := conf.Parse("f", []byte("upstream_proxy: http://me:pass%20word@Proxy.Example:3128/\n"+
		"no_proxy: ['*.corp.example', 10.0.0.0/8, a.example:22]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Proxy; p.TLS || p.Address != "proxy.example:3128" || p.Login.Reveal() != "me:pass word" || len(p.Direct) != 3 {
		t.Errorf("%+v", p)
	}
	c, err = conf.Parse("f", []byte("upstream_proxy: https://proxy.example:443\n"))
	if err != nil || !c.Proxy.TLS || c.Proxy.Address != "proxy.example:443" {
		t.Errorf("%+v, %v", c, err)
	}
	for _, text := range []string{"", "allow: [a.example]\n"} {
		if c, err := conf.Parse("f", []byte(text)); err != nil || c.Proxy != nil {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
	for _, bad := range []string{
		"upstream_proxy: proxy.example:3128", "upstream_proxy: socks5://me:hidden@proxy.example:3128",
		"upstream_proxy: http://me:hidden@proxy.example",
		"upstream_proxy: http://me:hidden@proxy.example:3128/path", "upstream_proxy: 'http://me:hidden@proxy example:3128'",
		"upstream_proxy: http://me:hidden@:3128", "upstream_proxy: http://proxy.example:3128\nno_proxy: ['a b']", "no_proxy: [a.example]",
		"upstream_proxy: http://me:hidden@proxy.example:3128\nwrong: 1", "upstream_proxy: http://me:hidden@proxy.example:3128\n  x: [",
	} {
		_, err := conf.Parse("f", []byte(bad))
		if !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
