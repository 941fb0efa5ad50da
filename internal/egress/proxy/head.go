package proxy

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// MaxHead bounds the head of a request in bytes: the request line, the fields and the empty line after them.
const MaxHead = 64 << 10

// Form is the form of a request's target (RFC 9112, 3.2).
type Form int

// The forms. Origin includes the asterisk of OPTIONS: neither names a host.
const (
	Origin    Form = iota // GET /path
	Absolute              // GET http://host/path
	Authority             // CONNECT host:port
)

// Head is the head of an HTTP/1 request that has one reading only.
type Head struct {
	Method, Target string
	Form           Form
	Authority      string // the host, and the port if there is one, that the target names; "" in the form Origin
	Host           string // the field Host, "" if there is none
	Accept         string // the field Accept
	Size           int    // the length of the head in bytes
}

// ReadHead reads up to the end of a request's head. had is what was read before. read is everything that was read,
// had included, and may go on after the head. On a connection that ends early the error is io.ErrUnexpectedEOF; of
// a head that is too long or not well formed it is of kind invalid argument.
func ReadHead(had []byte, r io.Reader) (h Head, read []byte, err error) {
	read = had
	for seen := 0; ; {
		at, err := endOfHead(read, seen)
		if err != nil {
			return Head{}, read, err
		}
		if at > 0 {
			h, err := ParseHead(read[:at])
			return h, read, err
		}
		seen = len(read)
		if read, err = readMore(read, r); err != nil {
			return Head{}, read, err
		}
	}
}

// endOfHead returns the length of the head, or 0 if its end is not there yet. Bytes before seen were looked at
// before.
func endOfHead(b []byte, seen int) (int, error) {
	for i := seen; i < len(b); i++ {
		if b[i] != '\n' {
			continue
		}
		if i == 0 || b[i-1] != '\r' {
			return 0, malformed("a line of the request ends in LF alone")
		}
		if bytes.HasSuffix(b[:i+1], []byte("\r\n\r\n")) {
			return i + 1, nil
		}
	}
	return 0, nil
}

// readMore appends what one read brings. There are never more than MaxHead bytes.
func readMore(b []byte, r io.Reader) ([]byte, error) {
	if len(b) >= MaxHead {
		return b, malformed("the head of the request has more than %d bytes", MaxHead)
	}
	if len(b) == cap(b) {
		b = append(b, make([]byte, 4<<10)...)[:len(b)]
	}
	n, err := r.Read(b[len(b):min(cap(b), MaxHead)])
	if n > 0 {
		return b[:len(b)+n], nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// ParseHead takes a complete head apart, its final empty line included. It refuses what servers read differently:
// lines that do not end in CRLF, folded fields, space around a field's name, control characters, a field Host
// that is there twice, a length that is there twice or beside a transfer coding, and any coding but chunked.
func ParseHead(b []byte) (Head, error) {
	text, complete := strings.CutSuffix(string(b), "\r\n\r\n")
	if !complete || len(b) > MaxHead {
		return Head{}, malformed("the head of the request is not complete, or has more than %d bytes", MaxHead)
	}
	lines := strings.Split(text, "\r\n")
	h := Head{Size: len(b)}
	old, err := h.requestLine(lines[0])
	if err != nil {
		return Head{}, err
	}
	f, err := readFields(lines[1:])
	if err != nil {
		return Head{}, err
	}
	h.Host, h.Accept = f.value["host"], f.value["accept"]
	_, length := f.value["content-length"]
	coding, coded := f.value["transfer-encoding"]
	switch {
	case f.count["host"] == 0 && !old:
		return Head{}, malformed("the request has no field Host")
	case f.count["host"] > 1 || f.count["content-length"] > 1 || f.count["transfer-encoding"] > 1:
		return Head{}, malformed("Host, Content-Length or Transfer-Encoding is there twice")
	case coded && (length || old || !strings.EqualFold(coding, "chunked")):
		return Head{}, malformed("the length of the request has two readings")
	case length && strings.Trim(f.value["content-length"], "0123456789") != "" || length && f.value["content-length"] == "":
		return Head{}, malformed("the length of the request is not a number")
	case strings.ContainsAny(h.Host, "@/?#\\ ,\t"):
		return Head{}, malformed("the field Host is not a host")
	}
	return h, nil
}

// requestLine reads the first line. old states that it is HTTP/1.0.
func (h *Head) requestLine(line string) (old bool, err error) {
	parts := strings.Split(line, " ")
	if len(parts) != 3 || !token(parts[0]) || !visible(parts[1]) || parts[1] == "" {
		return false, malformed("the request line is not METHOD TARGET HTTP/1.1")
	}
	switch parts[2] {
	case "HTTP/1.1":
	case "HTTP/1.0":
		old = true
	default:
		return false, malformed("the request is neither HTTP/1.1 nor HTTP/1.0")
	}
	h.Method, h.Target = parts[0], parts[1]
	return old, h.target()
}

// target finds the form of the target, and its authority.
func (h *Head) target() error {
	if h.Method == "CONNECT" {
		h.Form, h.Authority = Authority, h.Target
		if strings.ContainsAny(h.Authority, "@/?#\\") {
			return malformed("the target of CONNECT is not host:port")
		}
		return nil
	}
	if h.Target[0] == '/' || h.Target == "*" {
		return nil
	}
	scheme, rest, ok := strings.Cut(h.Target, "://")
	if !ok || !strings.EqualFold(scheme, "http") {
		return malformed("the target of the request is neither a path nor a URL with http://")
	}
	h.Form, h.Authority = Absolute, rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		h.Authority = rest[:end]
	}
	if h.Authority == "" || strings.ContainsAny(h.Authority, `@\`) || strings.Contains(rest, "#") {
		return malformed("the URL of the request has no host, a login or a fragment")
	}
	return nil
}

// fields are the fields of a head by their names in lower case. Of one that is there twice the value is the first.
type fields struct {
	value map[string]string
	count map[string]int
}

func readFields(lines []string) (fields, error) {
	f := fields{map[string]string{}, map[string]int{}}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token(name) {
			return f, malformed("a field of the request is folded or has no name")
		}
		value = strings.Trim(value, " \t")
		for i := range len(value) {
			if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
				return f, malformed("a field of the request has a control character")
			}
		}
		name = strings.ToLower(name)
		if f.count[name]++; f.count[name] == 1 {
			f.value[name] = value
		}
	}
	return f, nil
}

// token reports whether s is a token of RFC 9110, 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func tokenByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// visible reports whether s has neither spaces nor control characters. Bytes beyond ASCII are in targets that
// curl sends.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
