package egress

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The addresses that stand for names are in 198.18.0.0/15, which is for tests of network devices and never on
// the internet (RFC 2544). 198.18.0.0/24 is left to the workspace itself, and so are the first and the last
// address of every /24, which some programs take for a network and a broadcast.
const (
	nets     = 511
	hosts    = 254
	stand    = 198<<24 | 18<<16
	mostAddr = nets * hosts
)

// names gives each name an address. The address follows from the hash of the name, so that a program that kept
// one reaches the same host when the server was restarted. Names with the same hash take the next address that is
// free, so those of rules come first, in order. Its methods must not be called concurrently.
type names struct {
	most    int
	address map[netrule.Host]netip.Addr
	host    map[netip.Addr]netrule.Host
}

func newNames(most int) *names {
	return &names{min(most, mostAddr), map[netrule.Host]netip.Addr{}, map[netip.Addr]netrule.Host{}}
}

// add gives addresses to names in their order. Those for which there is no place are left out.
func (n *names) add(all []string) {
	for _, name := range all {
		if h, err := netrule.ParseHost(name); err == nil && h.Name() != "" {
			n.assign(h)
		}
	}
}

// assign returns the address of a name, and false if there is no place for another name. None is ever taken back:
// a program may hold it.
func (n *names) assign(h netrule.Host) (netip.Addr, bool) {
	if a, ok := n.address[h]; ok {
		return a, true
	}
	if len(n.address) >= n.most {
		return netip.Addr{}, false
	}
	sum := sha256.Sum256([]byte(h.Name()))
	for i := binary.BigEndian.Uint32(sum[:]) % mostAddr; ; i = (i + 1) % mostAddr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], stand+(i/hosts+1)<<8+i%hosts+1)
		a := netip.AddrFrom4(b)
		if _, taken := n.host[a]; !taken {
			n.address[h], n.host[a] = a, h
			return a, true
		}
	}
}
