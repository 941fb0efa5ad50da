package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// MaxHello bounds the records that carry a ClientHello, in bytes. Those with post-quantum keys have under 2 KiB.
const MaxHello = 16 << 10

// RecordHandshake is the first byte of every TLS connection: the type of the record that a ClientHello is in
// (RFC 8446, 5.1).
const RecordHandshake = 22

// Hello is what a ClientHello tells of the server it is for.
type Hello struct {
	Name string   // the server name as it was sent, "" if there is none
	ALPN []string // the protocols that are offered inside TLS
	// ECH states that there is an encrypted ClientHello, or what looks like one: browsers send random bytes in
	// its place. If it is real then Name is not the name that is meant.
	ECH bool
}

const extensionECH = 0xfe0d // RFC 9849

// ReadHello reads a ClientHello without answering it. It may read more bytes than that, up to MaxHello in all, so
// a caller that forwards them reads through io.TeeReader. The error is of kind invalid argument if crypto/tls does
// not accept the ClientHello; for example, it refuses a name that is there twice or ends in a dot.
func ReadHello(r io.Reader) (Hello, error) {
	var found *Hello
	read := &helloConn{r: io.LimitReader(r, MaxHello)}
	err := tls.Server(read, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(c *tls.ClientHelloInfo) (*tls.Config, error) {
			found = &Hello{Name: c.ServerName, ALPN: c.SupportedProtos}
			for _, e := range c.Extensions {
				found.ECH = found.ECH || e == extensionECH
			}
			return nil, errStop
		},
	}).Handshake() //nolint:noctx // it reads from a reader, which the caller bounds
	switch {
	case found != nil:
		return *found, nil
	case read.err != nil && !errors.Is(read.err, io.EOF):
		return Hello{}, read.err
	case errors.Is(read.err, io.EOF):
		return Hello{}, malformed("the ClientHello ends early or has more than %d bytes", MaxHello)
	}
	return Hello{}, malformed("cannot read the ClientHello: %v", err)
}

var errStop = errors.New("the ClientHello has been read")

// helloConn is a connection that can only be read.
type helloConn struct {
	r   io.Reader
	err error
}

func (c *helloConn) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil {
		c.err = err
	}
	return n, err
}

func (*helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (*helloConn) Close() error                     { return nil }
func (*helloConn) LocalAddr() net.Addr              { return nil }
func (*helloConn) RemoteAddr() net.Addr             { return nil }
func (*helloConn) SetDeadline(time.Time) error      { return nil }
func (*helloConn) SetReadDeadline(time.Time) error  { return nil }
func (*helloConn) SetWriteDeadline(time.Time) error { return nil }

// Alert is a reason for which TLS is refused (RFC 8446, 6.2).
type Alert byte

// The alerts that are sent.
const (
	AlertAccessDenied     Alert = 49
	AlertUnrecognizedName Alert = 112
)

// Record returns the record of a fatal alert, in the clear, as an answer to a ClientHello.
func (a Alert) Record() []byte {
	const fatal = 2
	return []byte{recordAlert, 3, 3, 0, 2, fatal, byte(a)}
}
