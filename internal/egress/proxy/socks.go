package proxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
)

//	client                                    proxy            RFC 1928
//	  │  5, n, n methods                         │             3
//	  ├─────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────┤ 5, 0          only "no authentication"
//	  │  5, 1, 0, type, address, port            │             4, only CONNECT
//	  ├─────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────┤ 5, code, 0, 1, 0.0.0.0, 0
//	  │◄────────── bytes of the tunnel ─────────►│

// SOCKSVersion is the first byte of a SOCKS5 connection. No HTTP request begins with it.
const SOCKSVersion = 5

// SOCKSCode is the code of a reply (RFC 1928, 6).
type SOCKSCode byte

// The codes that are sent.
const (
	SOCKSGranted     SOCKSCode = 0
	SOCKSFailure     SOCKSCode = 1
	SOCKSNotAllowed  SOCKSCode = 2
	SOCKSUnreachable SOCKSCode = 4
	SOCKSRefused     SOCKSCode = 5
	SOCKSCommand     SOCKSCode = 7
	SOCKSAddressType SOCKSCode = 8
)

const (
	socksNoAuth    = 0
	socksNoMethods = 0xff
	socksConnect   = 1
	socksIPv4      = 1
	socksName      = 3
	socksIPv6      = 4
)

// ReadSOCKS reads the greeting and the request of a SOCKS5 client and returns the host and port it asks for. It
// reads no byte beyond the request, and leaves the final reply to the caller (WriteSOCKS). host is a name, which has no
// byte but printable ASCII, or an address in its text form. If the request cannot be served the client has been
// told, and the error is of kind not implemented or invalid argument.
func ReadSOCKS(rw io.ReadWriter) (host string, port uint16, err error) {
	if err := greet(rw); err != nil {
		return "", 0, err
	}
	host, port, code, err := readSOCKSRequest(rw)
	if err != nil && code != SOCKSGranted {
		_ = WriteSOCKS(rw, code)
		return "", 0, err
	}
	return host, port, err
}

func greet(rw io.ReadWriter) error {
	var head [2]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return err
	}
	if head[0] != SOCKSVersion {
		return malformed("the SOCKS version is %d, not 5", head[0])
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(rw, methods); err != nil {
		return err
	}
	if slices.Contains(methods, socksNoAuth) {
		_, err := rw.Write([]byte{SOCKSVersion, socksNoAuth})
		return err
	}
	_, _ = rw.Write([]byte{SOCKSVersion, socksNoMethods})
	return fmt.Errorf("the SOCKS client insists on a login: %w", errdefs.ErrNotImplemented)
}

// readSOCKSRequest returns a code other than granted if the client is to be told of the error.
func readSOCKSRequest(r io.Reader) (host string, port uint16, code SOCKSCode, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, 0, err
	}
	switch {
	case head[0] != SOCKSVersion || head[2] != 0:
		return "", 0, SOCKSFailure, malformed("the SOCKS request does not begin with its version, a command and 0")
	case head[1] != socksConnect:
		return "", 0, SOCKSCommand, fmt.Errorf("the SOCKS command is %d, not CONNECT: %w", head[1], errdefs.ErrNotImplemented)
	}
	size, name := 0, false
	switch head[3] {
	case socksIPv4:
		size = 4
	case socksIPv6:
		size = 16
	case socksName:
		var n [1]byte
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return "", 0, 0, err
		}
		size, name = int(n[0]), true
	default:
		return "", 0, SOCKSAddressType, fmt.Errorf("the SOCKS address has type %d: %w", head[3], errdefs.ErrNotImplemented)
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(r, rest); err != nil {
		return "", 0, 0, err
	}
	address, port := rest[:size], binary.BigEndian.Uint16(rest[size:])
	if !name {
		a, _ := netip.AddrFromSlice(address)
		return a.String(), port, SOCKSGranted, nil
	}
	if size == 0 || !printable(address) {
		return "", 0, SOCKSFailure, malformed("the SOCKS name is empty or has bytes that no name has")
	}
	return string(address), port, SOCKSGranted, nil
}

// WriteSOCKS writes the reply to a request. The address in it is unspecified: a workspace does not learn
// the addresses of its host.
func WriteSOCKS(w io.Writer, code SOCKSCode) error {
	_, err := w.Write([]byte{SOCKSVersion, byte(code), 0, socksIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// printable reports whether all bytes are visible ASCII.
func printable[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
