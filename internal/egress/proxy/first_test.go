package proxy_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
)

func TestDetect(t *testing.T) {
	for in, want := range map[string]proxy.Protocol{
		"":                                    proxy.Undecided,
		"\x16":                                proxy.TLS,
		"\x14\x03\x03\x00\x01\x01":            proxy.TLS,
		"\x15\x03\x01\x00\x02\x01\x00":        proxy.TLS,
		"\x15\x00":                            proxy.TLS,
		"\x17\x03\x03":                        proxy.TLS,
		"\x18\x03\x03":                        proxy.TLS,
		"\x14":                                proxy.Undecided,
		"\x14\x01\x00\x01 a login of MySQL":   proxy.Opaque,
		"\x13\x03\x03":                        proxy.Opaque,
		"\x19\x03\x03":                        proxy.Opaque,
		"G":                                   proxy.Undecided,
		"GET / HTTP/1.1":                      proxy.Undecided,
		"GET / HTTP/1.1\r\n":                  proxy.HTTP,
		"foo / http/1.1\n":                    proxy.HTTP,
		"\r\n":                                proxy.Undecided,
		"\r\n\r\nGET / HTTP/1.1\r\n":          proxy.HTTP,
		"\t GET\t/\tHTTP/1.1\r\n":             proxy.HTTP,
		"\vGET / HTTP/1.1\r\n":                proxy.HTTP,
		"GET /\x01 HTTP/1.1\r\n":              proxy.HTTP,
		"GET / HTTP/1.1 \r\n":                 proxy.HTTP,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":    proxy.Opaque,
		"PRI * HTTP/2.0\r\n\r\n":              proxy.Undecided,
		"PRI * HTTP/2.0\r\nHost: a\r\n\r\n":   proxy.HTTP,
		"SSH-2.0-OpenSSH_9.9\r\n":             proxy.Opaque,
		"EHLO example.org\r\n":                proxy.Opaque,
		"GET /\r\n":                           proxy.Opaque,
		"003egit-upload-pack /p\x00host=a":    proxy.Opaque,
		"\x00\x00\x00\x08\x04\xd2\x16\x2f":    proxy.Opaque,
		"\x10\x0c\x00\x04MQTT":                proxy.Opaque,
		"*1\r\n$4\r\nPING\r\n":                proxy.Opaque,
		"\x80\x2e\x01\x03\x01 an old TLS one": proxy.Opaque,
	} {
		if got := proxy.Detect([]byte(in)); got != want {
			t.Errorf("%q is %v, not %v", in, got, want)
		}
	}
}

func TestReadFirst(t *testing.T) {
	tlsHello := string(hello("example.org"))
	for name, c := range map[string]struct {
		in       string
		protocol proxy.Protocol
		host     string
	}{
		"TLS":  {tlsHello, proxy.TLS, "example.org"},
		"HTTP": {"GET / HTTP/1.1\r\nHost: example.org\r\n\r\nbody", proxy.HTTP, "example.org"},
		"SSH":  {"SSH-2.0-x\r\n", proxy.Opaque, ""},
	} {
		for had := range 3 {
			f, read, err := proxy.ReadFirst([]byte(c.in[:had]), dribble{strings.NewReader(c.in[had:])})
			if err != nil || f.Protocol != c.protocol || f.Hello.Name+f.Head.Host != c.host || !strings.HasPrefix(c.in, string(read)) {
				t.Errorf("%s: %+v, %v, %q", name, f, err, read)
			}
		}
	}
	f, read, err := proxy.ReadFirst(nil, strings.NewReader("GET / HT"))
	if !errors.Is(err, io.ErrUnexpectedEOF) || string(read) != "GET / HT" {
		t.Errorf("one that ends early: %+v, %q, %v", f, read, err)
	}
	for name, in := range map[string]string{
		"an empty line first":      "\r\nGET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
		"an endless line":          strings.Repeat("a", 2*proxy.MaxHead),
		"endless empty lines":      strings.Repeat("\r\n", proxy.MaxHead),
		"an early change of keys":  "\x14\x03\x03\x00\x01\x01" + string(hello("example.org")),
		"an early warning":         "\x15\x03\x01\x00\x02\x01\x5a" + string(hello("example.org")),
		"data before TLS":          "\x17\x03\x03\x00\x01a" + string(hello("example.org")),
		"a heartbeat":              "\x18\x03\x03\x00\x03\x01\x00\x00" + string(hello("example.org")),
		"a warning behind a piece": "\x16\x03\x01\x00\x00" + string(hello("example.org")),
		"bad TLS":                  "\x16GET / HTTP/1.1\r\n\r\n",
	} {
		if f, read, err := proxy.ReadFirst(nil, strings.NewReader(in)); !errdefs.IsInvalidArgument(err) || len(read) > proxy.MaxHead {
			t.Errorf("%s: %+v, %d bytes, %v", name, f, len(read), err)
		}
	}
}

// The bytes that were read are those that came, and how they are cut changes nothing. A request that has passed
// as opaque at some point was never one.
func FuzzReadFirst(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add(hello("example.org"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		a, read, err := proxy.ReadFirst(nil, bytes.NewReader(in))
		if !bytes.HasPrefix(in, read) {
			t.Fatalf("read %q", read)
		}
		b, _, err2 := proxy.ReadFirst(nil, dribble{bytes.NewReader(in)})
		if (err == nil) != (err2 == nil) || err == nil && (a.Protocol != b.Protocol || a.Head != b.Head || a.Hello.Name != b.Hello.Name) {
			t.Errorf("at once %+v, %v; byte by byte %+v, %v", a, err, b, err2)
		}
	})
}
