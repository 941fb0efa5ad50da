package egress

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Reserved is the part of netns.Names whose addresses stand for no name. The proof of the way out uses it: a
// connection to netns.Probe is greeted, any other is reset, and neither is recorded.
var Reserved = netip.PrefixFrom(netns.Probe, 24).Masked()

// probe answers a connection to an address of Reserved, or to netns.Refused, and reports whether it is one.
func (x *session) probe() bool {
	local, ok := x.client.LocalAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	if to := local.AddrPort().Addr().Unmap(); !Reserved.Contains(to) && to != netns.Refused {
		return false
	}
	x.s.mu.Lock()
	x.silent = true
	x.s.mu.Unlock()
	if local.AddrPort().Addr().Unmap() != netns.Probe {
		abort(x.client)
		return true
	}
	_ = x.client.SetWriteDeadline(time.Now().Add(x.s.cfg.Limits.Handshake))
	_, _ = io.WriteString(x.client, netns.Greeting)
	return true
}

// invalid reports whether a name is one that never exists (RFC 6761, 6.4). Those are refused whatever the rules
// say, and not recorded.
func invalid(h netrule.Host) bool {
	return h.Name() == "invalid" || strings.HasSuffix(h.Name(), ".invalid")
}
