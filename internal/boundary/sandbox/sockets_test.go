package sandbox_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// Netlink sockets are fewer where each may hold more.
func TestNetlinkBound(t *testing.T) {
	for _, tt := range []struct{ each, want int64 }{
		{0, 64}, {2 * 212992, 64}, {1 << 20, 32}, {8 << 20, 16}, {1 << 40, 16},
	} {
		if got := sandbox.NetlinkBound(tt.each); got != tt.want {
			t.Errorf("%d bytes each: %d, want %d", tt.each, got, tt.want)
		}
	}
}

// The numbers are where Linux 5.15 and 6.18 have them.
func TestSocketNumbers(t *testing.T) {
	if n, err := sandbox.SocketsUsed([]byte("sockets: used 22\nTCP: inuse 3 orphan 0 tw 0 alloc 3 mem 0\n")); n != 22 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", "sockets: used", "sockets: used x\n", "TCP: inuse 3\n"} {
		if n, err := sandbox.SocketsUsed([]byte(bad)); err == nil {
			t.Errorf("%q: %d", bad, n)
		}
	}
	netlink, others := sandbox.SocketsOf([]byte(`protocol  size sockets  memory press maxhdr  slab module     cl co di
UNIX-STREAM 1024      2      -1   NI       0   yes  kernel      y  n  n
UNIX      1024      1      -1   NI       0   yes  kernel      y  n  n
UDPv6     1472      0       3   NI       0   yes  kernel      y  n  n
TCPv6     2624      4       2   no     320   yes  kernel      y  n  n
UDP       1280      5       3   NI       0   yes  kernel      y  n  n
TCP       2496      3       2   no     320   yes  kernel      y  n  n
NETLINK   1096      7      -1   NI       0   no   kernel      y  n  n
`))
	if netlink != 7 || others != 10 {
		t.Errorf("%d netlink and %d others", netlink, others)
	}
}
