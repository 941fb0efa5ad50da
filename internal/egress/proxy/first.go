package proxy

import (
	"bytes"
	"io"
	"strings"
)

// Protocol is what the first bytes of a connection are.
type Protocol int

// The protocols. Opaque is one that names no host, such as SSH.
const (
	Undecided Protocol = iota // more bytes are needed
	Opaque
	TLS
	HTTP
)

// preface begins HTTP/2 without TLS (RFC 9113, 3.4). The host is compressed in what follows.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Detect tells what the first bytes of a connection are. Whatever any server may take for an HTTP/1 request is
// HTTP, or Undecided while its first line is not complete: a lenient server skips empty lines and spaces before
// it, and separates its parts by any control character. No server accepts a NUL.
func Detect(b []byte) Protocol {
	if len(b) == 0 {
		return Undecided
	}
	if p, record := detectRecord(b); record {
		return p
	}
	line := bytes.TrimLeft(b, "\r\n\t\v\f ")
	if len(line) == 0 {
		return Undecided
	}
	if !tokenByte(line[0]) {
		return Opaque
	}
	switch {
	case strings.HasPrefix(string(b), preface):
		return Opaque
	case strings.HasPrefix(preface, string(b)):
		return Undecided
	}
	line, _, complete := bytes.Cut(line, []byte("\n"))
	switch {
	case bytes.IndexByte(line, 0) >= 0:
		return Opaque
	case !complete:
		return Undecided
	case bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")):
		return HTTP
	}
	return Opaque
}

// The types of records of TLS (RFC 8446, 5.1; RFC 6520).
const (
	recordFirst = 20 // change_cipher_spec
	recordAlert = 21
	recordLast  = 24 // heartbeat
)

// detectRecord reports whether bytes begin with a record of TLS, or are too few to tell. Many servers skip some records that
// come before a ClientHello, so that each type counts. All but handshakes and alerts are records only with the major version 3:
// what does not look at the version takes no others first, and lengths begin messages of other protocols.
func detectRecord(b []byte) (p Protocol, record bool) {
	switch {
	case b[0] < recordFirst || b[0] > recordLast:
		return Opaque, false
	case b[0] == RecordHandshake:
		return TLS, true
	case len(b) == 1:
		return Undecided, true
	case b[1] == 3 || b[0] == recordAlert && b[1] < 16:
		return TLS, true
	}
	return Opaque, true
}

// First is what the first bytes of a connection tell of the server they are for.
type First struct {
	Protocol Protocol
	Hello    Hello // of TLS
	Head     Head  // of HTTP
}

// ReadFirst reads the first bytes of a connection until they tell for whom they are. had is what was read before.
// read is everything that was read, had included, to be forwarded as it is. An error of kind invalid argument
// says that they have no single reading.
func ReadFirst(had []byte, r io.Reader) (f First, read []byte, err error) {
	read = had
	for {
		switch f.Protocol = Detect(read); f.Protocol {
		case Opaque:
			return f, read, nil
		case HTTP:
			f.Head, read, err = ReadHead(read, r)
			return f, read, err
		case TLS:
			if read[0] != RecordHandshake {
				return f, read, malformed("the first record of TLS is not that of a ClientHello")
			}
			var more bytes.Buffer
			f.Hello, err = ReadHello(io.MultiReader(bytes.NewReader(read), io.TeeReader(r, &more)))
			return f, append(read, more.Bytes()...), err
		case Undecided:
		}
		if read, err = readMore(read, r); err != nil {
			return f, read, err
		}
	}
}
