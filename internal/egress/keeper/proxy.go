package keeper

import (
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// ProxyOf is a configured proxy as carrel-egress is told of it, nil for none.
func ProxyOf(p *conf.Proxy) *egressapi.Proxy {
	if p == nil {
		return nil
	}
	return &egressapi.Proxy{Address: p.Address, TLS: p.TLS, Login: egressapi.Private{Value: p.Login}, Direct: p.Direct}
}
