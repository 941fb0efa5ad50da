package egress_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress"
)

// BenchmarkTunnel sends blocks through a tunnel that stands; both ends are TCP on loopback.
func BenchmarkTunnel(b *testing.B) {
	w, at := benchHost(b, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	c := benchTunnel(b, w, at)
	block := make([]byte, 256<<10)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		if _, err := c.Write(block); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect makes a tunnel and has one byte echoed.
func BenchmarkConnect(b *testing.B) {
	w, at := benchHost(b, func(c net.Conn) { _, _ = io.Copy(c, c) })
	for b.Loop() {
		c := benchTunnel(b, w, at)
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}

// benchHost serves a host at its own address with the server's own dialler.
func benchHost(b *testing.B, serve func(net.Conn)) (*workspace, string) {
	at := raw(b, serve).String()
	return start(b, rules(b, at), func(c *egress.Config) {
		c.Dial = nil
		c.Record = nil
	}), at
}

// benchTunnel makes a tunnel by CONNECT, on which one opaque byte was sent.
func benchTunnel(b *testing.B, w *workspace, at string) net.Conn {
	b.Helper()
	c, err := net.Dial("tcp", w.proxy.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	const established = "HTTP/1.1 200 Connection established\r\n\r\n"
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n\x00", at, at); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len(established))); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}
