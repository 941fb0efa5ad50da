// Package nameserver is a name server for tests and the bench: it knows some names, and says of others that they do not
// exist.
package nameserver

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Zone has the IPv4 address of each name.
type Zone map[string]string

// Start answers on a port of loopback until stop is called. It returns where.
func Start(ctx context.Context, zone Zone) (at string, stop func(), err error) {
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if reply, ok := zone.answer(b[:n]); ok {
				_, _ = c.WriteTo(reply, from)
			}
		}
	}()
	return c.LocalAddr().String(), func() { c.Close() }, nil
}

func (z Zone) answer(query []byte) ([]byte, bool) {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil, false
	}
	q := m.Questions[0]
	m.Response, m.Additionals = true, nil
	addr, known := z[strings.TrimSuffix(q.Name.String(), ".")]
	a, _ := netip.ParseAddr(addr)
	switch {
	case !known:
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA && a.Is4():
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: a.As4()},
		}}
	}
	reply, err := m.Pack()
	return reply, err == nil
}
