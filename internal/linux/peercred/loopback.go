package peercred

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// OfTCP returns the user who made the socket at the other end of a TCP connection on this host: from is that socket's address, and
// to the address that it is connected to. The kernel keeps the user with the socket (proc_pid_net(5), tcp). It is an error if the
// socket has been closed: the kernel then does not tell any more whose it was.
func OfTCP(from, to netip.AddrPort) (uid uint32, err error) {
	from, to = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	tables := map[string]func(netip.AddrPort) string{"/proc/net/tcp6": hex6}
	if from.Addr().Is4() { // a socket for IPv6 may speak IPv4 too
		tables["/proc/net/tcp"] = hex4
	}
	for path, hex := range tables {
		uid, ok, err := find(path, hex(from), hex(to))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("cannot learn whose the connection from %v is: %w", from, err)
		}
		if ok {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("cannot learn whose the connection from %v is: its socket is not on this host, or is closed already: %w", from,
		errdefs.ErrNotFound)
}

// find returns the user of an open socket with these addresses.
func find(path, local, remote string) (uid uint32, ok bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode. One that is closed has no inode.
		w := strings.Fields(lines.Text())
		if len(w) < 10 || w[1] != local || w[2] != remote || w[9] == "0" {
			continue
		}
		n, err := strconv.ParseUint(w[7], 10, 32)
		return uint32(n), err == nil, err
	}
	return 0, false, lines.Err()
}

// The kernel prints an address as words of the machine's order.
func hex4(a netip.AddrPort) string {
	b := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}

func hex6(a netip.AddrPort) string {
	b := a.Addr().As16() // IPv4 in its form for IPv6
	var s strings.Builder
	for i := 0; i < len(b); i += 4 {
		fmt.Fprintf(&s, "%08X", binary.NativeEndian.Uint32(b[i:]))
	}
	fmt.Fprintf(&s, ":%04X", a.Port())
	return s.String()
}
