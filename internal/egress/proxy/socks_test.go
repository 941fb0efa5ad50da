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

func TestReadSOCKS(t *testing.T) {
	const hello, zeros = "\x05\x01\x00", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	early := func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }
	for name, c := range map[string]struct {
		in, host, reply string
		kind            func(error) bool
	}{
		"name":             {hello + "\x05\x01\x00\x03\x0bexample.org\x01\xbb", "example.org", "\x05\x00", nil},
		"IPv4":             {hello + "\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb", "192.0.2.7", "\x05\x00", nil},
		"IPv6":             {hello + "\x05\x01\x00\x04 \x01\r\xb8" + zeros + "\x01\x01\xbb", "2001:db8::1", "\x05\x00", nil},
		"mapped":           {hello + "\x05\x01\x00\x04" + zeros[:10] + "\xff\xff\x7f\x00\x00\x01\x01\xbb", "::ffff:127.0.0.1", "\x05\x00", nil},
		"several methods":  {"\x05\x03\x02\x01\x00\x05\x01\x00\x03\x01a\x01\xbb", "a", "\x05\x00", nil},
		"login":            {"\x05\x01\x02", "", "\x05\xff", errdefs.IsNotImplemented},
		"no methods":       {"\x05\x00", "", "\x05\xff", errdefs.IsNotImplemented},
		"version 4":        {"\x04\x01\x00", "", "", errdefs.IsInvalidArgument},
		"version 4 inside": {hello + "\x04\x01\x00\x01\xc0\x00\x02\x07\x01\xbb", "", "\x05\x00\x05\x01", errdefs.IsInvalidArgument},
		"reserved":         {hello + "\x05\x01\x01\x01\xc0\x00\x02\x07\x01\xbb", "", "\x05\x00\x05\x01", errdefs.IsInvalidArgument},
		"BIND":             {hello + "\x05\x02\x00\x01\xc0\x00\x02\x07\x01\xbb", "", "\x05\x00\x05\x07", errdefs.IsNotImplemented},
		"UDP":              {hello + "\x05\x03\x00\x01\xc0\x00\x02\x07\x01\xbb", "", "\x05\x00\x05\x07", errdefs.IsNotImplemented},
		"type 2":           {hello + "\x05\x01\x00\x02\xc0\x00\x02\x07\x01\xbb", "", "\x05\x00\x05\x08", errdefs.IsNotImplemented},
		"empty name":       {hello + "\x05\x01\x00\x03\x00\x01\xbb", "", "\x05\x00\x05\x01", errdefs.IsInvalidArgument},
		// C code would dial what is before the NUL, while the rules see what is behind it.
		"NUL in the name": {hello + "\x05\x01\x00\x03\x10evil\x00.example.org\x01\xbb", "", "\x05\x00\x05\x01", errdefs.IsInvalidArgument},
		"line in it":      {hello + "\x05\x01\x00\x03\x03a\r\n\x01\xbb", "", "\x05\x00\x05\x01", errdefs.IsInvalidArgument},
		"not ASCII":       {hello + "\x05\x01\x00\x03\x02\xc3\xbc\x01\xbb", "", "\x05\x00\x05\x01", errdefs.IsInvalidArgument},
		"ends early":      {hello + "\x05\x01\x00\x03\x0bexam", "", "\x05\x00", early},
	} {
		t.Run(name, func(t *testing.T) {
			rest := strings.NewReader(c.in + "rest")
			if c.kind != nil {
				rest = strings.NewReader(c.in)
			}
			s := &script{in: dribble{rest}}
			host, port, err := proxy.ReadSOCKS(s)
			if host != c.host || (err == nil) != (c.kind == nil) || err != nil && !c.kind(err) || err == nil && port != 443 {
				t.Errorf("%q, %d, %v", host, port, err)
			}
			length := len(c.reply)
			if length == 4 { // up to the code
				length = 12
			}
			if !strings.HasPrefix(s.reply.String(), c.reply) || s.reply.Len() != length {
				t.Errorf("answered %q", s.reply.String())
			}
			if c.kind == nil && rest.Len() != len("rest") {
				t.Errorf("%d bytes are left of what follows", rest.Len())
			}
		})
	}
}

func FuzzReadSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbb"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in: bytes.NewReader(in)}
		host, _, err := proxy.ReadSOCKS(s)
		if (err == nil) != (host != "") || strings.ContainsAny(host, "\x00\r\n ") || len(host) > 255 {
			t.Errorf("%q, %v", host, err)
		}
		if s.reply.Len() > 12 {
			t.Errorf("answered %q", s.reply.String())
		}
	})
}
