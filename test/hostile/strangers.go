package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"time"

	"golang.org/x/net/http2/hpack"
)

// What a stranger does on the TLS port, without a token. Each is bounded by the time that its connection
// is given, so that a way that is answered with silence goes on.

var strangerBurdens = []burden{
	{name: "strangers: window updates", far: true, parts: []part{{8, endlessly(frame(8, 0, 0, 0, 0, 0, 1))}}},
	{name: "strangers: settings", far: true, parts: []part{{8, endlessly(frame(4, 0, 0))}}},
	{name: "strangers: pings", far: true, parts: []part{{8, endlessly(frame(6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8))}}},
	{name: "strangers: priorities", far: true, parts: []part{{8, endlessly(frame(2, 0, 1, 0, 0, 0, 0, 1))}}},
	{name: "strangers: empty continuations", far: true, parts: []part{{8, continuations}}},
	{name: "strangers: rapid resets", far: true, parts: []part{{8, resets}}},
	{name: "strangers: handshakes", far: true, parts: []part{{16, handshake}}},
	{name: "strangers: 60 connections", far: true, parts: []part{{60, stay}}},
	{name: "strangers: connect and close", far: true, parts: []part{{4, connectFar}}},
	{name: "strangers: half a handshake", far: true, parts: []part{{8, halfHandshake}}},
}

// frame is a frame of HTTP/2 (RFC 9113, section 4.1).
func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// preface begins a connection of HTTP/2.
var preface = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0)...)

func (r *raid) dialFar(ctx context.Context) (net.Conn, error) {
	d := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // whoever floods does not ask whom
	}}
	ctx, cancel := context.WithTimeout(ctx, held)
	defer cancel()
	return d.DialContext(ctx, "tcp", r.Address)
}

// pour connects, writes what begin says and then again and again what more returns, until it is cut off.
func (r *raid) pour(ctx context.Context, begin []byte, more func() []byte) error {
	c, err := r.dialFar(ctx)
	if err != nil {
		return nil //nolint:nilerr // it is turned away
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := c.SetDeadline(time.Now().Add(2 * held)); err != nil {
		return err
	}
	go func() { // what is answered must not fill the way back
		b := make([]byte, 16<<10)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	}()
	for text := begin; ; text = more() {
		if _, err := c.Write(text); err != nil {
			return nil //nolint:nilerr // it is cut off
		}
	}
}

func endlessly(f []byte) func(context.Context, *raid) error {
	text := bytes.Repeat(f, 16<<10/len(f))
	return func(ctx context.Context, r *raid) error { return r.pour(ctx, preface, func() []byte { return text }) }
}

// request is the header of a request that nobody may make.
func request() []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "https"},
		{":path", "/carrel.v1.WorkspaceService/List"},
		{":authority", "127.0.0.1"},
		{"content-type", "application/proto"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
	}
	return b.Bytes()
}

// continuations are a header that does not end.
func continuations(ctx context.Context, r *raid) error {
	text := bytes.Repeat(frame(9, 0, 1), 1024)
	return r.pour(ctx, append(bytes.Clone(preface), frame(1, 0, 1, request()...)...), func() []byte { return text })
}

// resets are requests that are taken back at once.
func resets(ctx context.Context, r *raid) error {
	stream := uint32(1)
	header := request()
	return r.pour(ctx, preface, func() (text []byte) {
		for range 100 {
			text = append(text, frame(1, 4, stream, header...)...)
			text = append(text, frame(3, 0, stream, 0, 0, 0, 8)...)
			stream += 2
		}
		return text
	})
}

// handshake does no more than that.
func handshake(ctx context.Context, r *raid) error {
	if c, err := r.dialFar(ctx); err == nil {
		_ = c.Close() // that is all there is to it
	}
	return nil
}

// stay connects and says nothing more.
func stay(ctx context.Context, r *raid) error {
	c, err := r.dialFar(ctx)
	if err != nil {
		return nil //nolint:nilerr // it is turned away
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(burdenTime)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_, _ = c.Read(make([]byte, 1)) // it is closed
	return nil
}

func connectFar(ctx context.Context, r *raid) error {
	if c, err := new(net.Dialer).DialContext(ctx, "tcp", r.Address); err == nil {
		_ = c.Close() // that is all there is to it
	}
	return nil
}

// halfHandshake begins one and does not go on.
func halfHandshake(ctx context.Context, r *raid) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return nil //nolint:nilerr // it is turned away
	}
	defer c.Close()
	hello := append([]byte{22, 3, 1, 64, 0}, make([]byte, 1<<10)...)
	if err := c.SetDeadline(time.Now().Add(held)); err != nil {
		return err
	}
	for {
		if _, err := c.Write(hello); err != nil {
			return nil //nolint:nilerr // it is cut off
		}
	}
}
