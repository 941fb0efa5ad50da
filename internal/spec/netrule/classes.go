package netrule

import "net/netip"

// class is a network whose addresses are reached only by a rule that names them.
type class struct {
	net netip.Prefix
	// what completes "10.0.0.1 is ...", with its source.
	what string
	// always marks a network that Options.Public does not make public.
	always bool
	// open marks a public network within one that is not.
	open bool
}

// classes lists the networks that IANA's registries of special-purpose addresses
// (iana-ipv4-special-registry and iana-ipv6-special-registry, RFC 6890) do not mark as globally reachable.
// It adds multicast (RFC 5771, RFC 4291), the metadata services of clouds, identifiers that are not
// routed, and IPv6 outside of 2000::/3, which is not assigned (RFC 4291, section 2.4). The longest
// network that holds an address is its class. 6to4, Teredo and the well-known prefix of NAT64 are open,
// because carried has their IPv4 addresses judged.
var classes = []class{
	{net: net("0.0.0.0/8"), what: "an unspecified address, which is the host itself (RFC 1122)", always: true},
	{net: net("10.0.0.0/8"), what: "a private address (RFC 1918)"},
	{net: net("100.64.0.0/10"), what: "an address shared behind carrier NAT (RFC 6598)"},
	{net: net("100.100.100.200/32"), what: "the metadata service of Alibaba Cloud", always: true},
	{net: net("127.0.0.0/8"), what: "a loopback address (RFC 1122)", always: true},
	{net: net("168.63.129.16/32"), what: "the metadata service of Azure hosts", always: true},
	{net: net("169.254.0.0/16"), what: "a link-local address (RFC 3927)"},
	{net: net("169.254.169.254/32"), what: "the metadata service of clouds (link-local, RFC 3927)", always: true},
	{net: net("169.254.170.2/32"), what: "the metadata service of AWS containers (link-local, RFC 3927)", always: true},
	{net: net("169.254.170.23/32"), what: "the metadata service of AWS containers (link-local, RFC 3927)", always: true},
	{net: net("172.16.0.0/12"), what: "a private address (RFC 1918)"},
	{net: net("192.0.0.0/24"), what: "an address of IETF protocols (RFC 6890)"},
	{net: net("192.0.0.192/32"), what: "the metadata service of Oracle Cloud", always: true},
	{net: net("192.0.2.0/24"), what: "a documentation address (RFC 5737)"},
	{net: net("192.88.99.0/24"), what: "a 6to4 relay address, which is out of use (RFC 7526)"},
	{net: net("192.168.0.0/16"), what: "a private address (RFC 1918)"},
	{net: net("198.18.0.0/15"), what: "a benchmarking address (RFC 2544)"},
	{net: net("198.51.100.0/24"), what: "a documentation address (RFC 5737)"},
	{net: net("203.0.113.0/24"), what: "a documentation address (RFC 5737)"},
	{net: net("224.0.0.0/4"), what: "a multicast address (RFC 5771)", always: true},
	{net: net("240.0.0.0/4"), what: "a reserved address (RFC 1112)"},
	{net: net("255.255.255.255/32"), what: "the broadcast address (RFC 919)", always: true},

	{net: net("::/0"), what: "an address outside of what is assigned (RFC 4291)"},
	{net: net("2000::/3"), open: true},
	{net: net("::/128"), what: "the unspecified address, which is the host itself (RFC 4291)", always: true},
	{net: net("::1/128"), what: "the loopback address (RFC 4291)", always: true},
	{net: net("::/96"), what: "an IPv4-compatible address, which is out of use (RFC 4291)"},
	{net: net("64:ff9b::/96"), open: true}, // RFC 6052
	{net: net("64:ff9b:1::/48"), what: "an address for local NAT64 (RFC 8215)"},
	{net: net("100::/64"), what: "a discard address (RFC 6666)"},
	{net: net("100:0:0:1::/64"), what: "a dummy address (RFC 9780)"},
	{net: net("2001::/23"), what: "an address of IETF protocols (RFC 2928)"},
	{net: net("2001::/32"), open: true},     // Teredo, RFC 4380
	{net: net("2001:1::1/128"), open: true}, // Port Control Protocol anycast, RFC 7723
	{net: net("2001:1::2/128"), open: true}, // TURN anycast, RFC 8155
	{net: net("2001:1::3/128"), open: true}, // DNS-SD registration anycast, RFC 9665
	{net: net("2001:2::/48"), what: "a benchmarking address (RFC 5180)"},
	{net: net("2001:3::/32"), open: true},     // AMT, RFC 7450
	{net: net("2001:4:112::/48"), open: true}, // AS112, RFC 7535
	{net: net("2001:20::/28"), what: "an ORCHIDv2 identifier, which is not routed (RFC 7343)"},
	{net: net("2001:30::/28"), what: "an identifier of drones, which is not routed (RFC 9374)"},
	{net: net("2001:db8::/32"), what: "a documentation address (RFC 3849)"},
	{net: net("2002::/16"), open: true}, // 6to4, RFC 3056
	{net: net("3fff::/20"), what: "a documentation address (RFC 9637)"},
	{net: net("5f00::/16"), what: "an identifier of segment routing (RFC 9602)"},
	{net: net("fc00::/7"), what: "a private address (unique local, RFC 4193)"},
	{net: net("fd00:ec2::254/128"), what: "the metadata service of AWS (unique local, RFC 4193)", always: true},
	{net: net("fd00:ec2::23/128"), what: "the metadata service of AWS containers (unique local, RFC 4193)", always: true},
	{net: net("fd20:ce::254/128"), what: "the metadata service of Google Cloud (unique local, RFC 4193)", always: true},
	{net: net("fe80::/10"), what: "a link-local address (RFC 4291)"},
	{net: net("fec0::/10"), what: "a site-local address, which is out of use (RFC 3879)"},
	{net: net("ff00::/8"), what: "a multicast address (RFC 4291)", always: true},
}

func net(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// classOf returns the class of a, or nil if a is public by the registries. a has no zone and is not
// IPv4 mapped to IPv6.
func classOf(a netip.Addr) *class {
	var of *class
	for i := range classes {
		if c := &classes[i]; c.net.Contains(a) && (of == nil || c.net.Bits() > of.net.Bits()) {
			of = c
		}
	}
	if of == nil || of.open {
		return nil
	}
	return of
}

// carried returns a, followed by the IPv4 addresses to which a gateway or tunnel would translate a. The
// first n elements are valid.
func carried(a netip.Addr) (of [5]netip.Addr, n int) {
	of[0], n = a, 1
	if !a.Is6() {
		return of, n
	}
	b := a.As16()
	add := func(v4 [4]byte) { of[n], n = netip.AddrFrom4(v4), n+1 }
	last := [4]byte(b[12:])
	switch {
	case compatible.Contains(a) && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback(), nat64.Contains(a):
		add(last)
	case sixToFour.Contains(a):
		add([4]byte(b[2:]))
	case teredo.Contains(a): // the server, and the client with its bits inverted: RFC 4380, section 4
		add([4]byte(b[4:]))
		add([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	case nat64Local.Contains(a):
		// The operator's prefix may have 48, 56, 64 or 96 bits; RFC 6052, section 2.2 places the IPv4
		// address for each, around octet 8. All are judged but those that begin with a zero octet, which
		// is how the unused ones usually look.
		for _, v4 := range [][4]byte{{b[6], b[7], b[9], b[10]}, {b[7], b[9], b[10], b[11]}, {b[9], b[10], b[11], b[12]}, last} {
			if v4[0] != 0 {
				add(v4)
			}
		}
		if n == 1 {
			add(last)
		}
	}
	return of, n
}

var (
	compatible = net("::/96")
	nat64      = net("64:ff9b::/96")
	nat64Local = net("64:ff9b:1::/48")
	sixToFour  = net("2002::/16")
	teredo     = net("2001::/32")
)
