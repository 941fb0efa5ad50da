// Package proxy reads and writes the protocols by which programs in a workspace reach the network: DNS, SOCKS5,
// the heads of HTTP/1 requests, and the ClientHello of TLS. Every byte it reads is hostile, every read is
// bounded, and what has two readings is refused.
//
// It must not decide what may be reached, open a connection or look at a clock. The readers block as long as
// the connection does, so the caller sets deadlines.
package proxy

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// malformed returns an error of kind invalid argument.
func malformed(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
