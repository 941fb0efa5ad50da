package proxy_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
)

// sink is a connection that keeps what is written, and ends when it is read.
type sink struct{ bytes.Buffer }

func (*sink) Read([]byte) (int, error)         { return 0, io.EOF }
func (*sink) Close() error                     { return nil }
func (*sink) LocalAddr() net.Addr              { return nil }
func (*sink) RemoteAddr() net.Addr             { return nil }
func (*sink) SetDeadline(time.Time) error      { return nil }
func (*sink) SetReadDeadline(time.Time) error  { return nil }
func (*sink) SetWriteDeadline(time.Time) error { return nil }

func hello(name string, alpn ...string) []byte {
	var s sink
	_ = tls.Client(&s, &tls.Config{ServerName: name, NextProtos: alpn, InsecureSkipVerify: name == ""}).Handshake()
	return s.Bytes()
}

// split puts the handshake message of one record into records of so many bytes.
func split(record []byte, size int) []byte {
	var out []byte
	for part := range slices.Chunk(record[5:], size) {
		out = append(out, record[:3]...)
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

func TestReadHello(t *testing.T) {
	plain := hello("example.org", "h2", "http/1.1")
	for name, c := range map[string]struct {
		in   io.Reader
		name string
	}{
		"whole":         {bytes.NewReader(plain), "example.org"},
		"byte by byte":  {dribble{bytes.NewReader(plain)}, "example.org"},
		"small records": {dribble{bytes.NewReader(split(plain, 7))}, "example.org"},
		"bytes after":   {bytes.NewReader(append(slices.Clone(plain), "early data"...)), "example.org"},
		"no name":       {bytes.NewReader(hello("", "h2", "http/1.1")), ""},
	} {
		h, err := proxy.ReadHello(c.in)
		if err != nil || h.Name != c.name || !slices.Equal(h.ALPN, []string{"h2", "http/1.1"}) || h.ECH {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	twice := bytes.Replace(slices.Clone(plain), []byte("example.org"), []byte("example.or."), 1)
	for name, in := range map[string][]byte{
		"cut":                plain[:len(plain)-1],
		"one byte":           {22},
		"not TLS":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"a name with a dot":  twice,
		"too long":           split(append([]byte{22, 3, 1, 0, 0, 1, 0, 0x80, 0}, make([]byte, 0x8000)...), 16000),
		"empty records":      bytes.Repeat([]byte{22, 3, 1, 0, 0}, 4000),
		"application record": {23, 3, 3, 0, 1, 0},
	} {
		read := &counter{r: bytes.NewReader(in)}
		if h, err := proxy.ReadHello(read); !errdefs.IsInvalidArgument(err) || read.n > proxy.MaxHello {
			t.Errorf("%s: %+v, %v after %d bytes", name, h, err, read.n)
		}
	}
}

func TestAlert(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		buf := make([]byte, 4096)
		_, _ = far.Read(buf)
		_, _ = far.Write(proxy.AlertUnrecognizedName.Record())
		_ = far.Close()
	}()
	err := tls.Client(near, &tls.Config{ServerName: "example.org"}).Handshake()
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Error(err)
	}
}

func FuzzReadHello(f *testing.F) {
	f.Add(hello("example.org", "h2"))
	f.Add(split(hello("example.org"), 100))
	f.Fuzz(func(t *testing.T, in []byte) {
		read := &counter{r: bytes.NewReader(in)}
		h, err := proxy.ReadHello(read)
		if read.n > proxy.MaxHello || err != nil && h.Name != "" {
			t.Errorf("%+v, %v after %d bytes", h, err, read.n)
		}
		again, err2 := proxy.ReadHello(dribble{bytes.NewReader(in)})
		if (err == nil) != (err2 == nil) || h.Name != again.Name {
			t.Errorf("at once %+v, %v; byte by byte %+v, %v", h, err, again, err2)
		}
	})
}

type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}
