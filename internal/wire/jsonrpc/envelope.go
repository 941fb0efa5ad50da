package jsonrpc

import (
	"slices"
	"strconv"
)

const (
	// maxDepth is how deep arrays and objects may nest, the envelope included.
	maxDepth = 64
	// maxID and maxMethod bound an id and a method name in bytes on the wire.
	maxID     = 128
	maxMethod = 64
)

// envelope is one message taken apart. The slices point into the frame; those of
// members that the message does not have are nil. fds is the number in count.
type envelope struct {
	version, id, method, count, params, result, errObj []byte
	fds                                                int
}

// violation is a broken rule. fatal ones end the connection.
type violation struct {
	code  int
	text  string
	fatal bool
}

func malformed(text string) *violation { return &violation{CodeParse, text, true} }
func invalid(text string) *violation   { return &violation{CodeInvalidRequest, text, true} }

// parseEnvelope reads a frame without its newline. Before any value is decoded the frame is
// known to be valid UTF-8 and one JSON object of bounded depth. The id is set in the envelope
// whenever it could be read.
func parseEnvelope(frame []byte, maxFDs int) (e envelope, bad *violation) {
	if why := Unreadable(frame); why != "" {
		return e, malformed("the frame " + why)
	}
	start := 0
	for isSpace(frame[start]) {
		start++
	}
	switch frame[start] {
	case '{':
	case '[':
		return e, invalid("the frame is an array; batches are not served")
	default:
		return e, invalid("the frame is not an object")
	}
	m := members{frame, start + 1}
	for name, value, ok := m.next(); ok; name, value, ok = m.next() {
		switch slot := e.member(string(name)); {
		case slot == nil:
			bad = invalid("the message has a member that the envelope does not know")
		case *slot != nil:
			bad = invalid("the message has a member of the envelope twice")
		default:
			*slot = value
		}
	}
	if e.id != nil && !validID(e.id) {
		e.id = nil
		return e, invalid("the id is not an integer or a plain string of at most 128 bytes")
	}
	if bad != nil {
		return e, bad
	}
	return e, e.check(maxFDs)
}

// member returns where the value of a member goes, or nil. Names are compared exactly.
func (e *envelope) member(name string) *[]byte {
	switch name {
	case `"jsonrpc"`:
		return &e.version
	case `"id"`:
		return &e.id
	case `"method"`:
		return &e.method
	case `"fds"`:
		return &e.count
	case `"params"`:
		return &e.params
	case `"result"`:
		return &e.result
	case `"error"`:
		return &e.errObj
	default:
		return nil
	}
}

// check checks the envelope against JSON-RPC 2.0 and the rules of our member fds.
func (e *envelope) check(maxFDs int) *violation {
	if string(e.version) != `"2.0"` {
		return invalid(`the message does not say "jsonrpc":"2.0"`)
	}
	if e.count != nil {
		n, err := strconv.Atoi(string(e.count))
		if err != nil || n < 1 {
			return invalid("fds is not a positive integer")
		}
		if n > maxFDs {
			return invalid("fds is more than this side accepts in one message")
		}
		e.fds = n
	}
	reply, both := e.result != nil || e.errObj != nil, e.result != nil && e.errObj != nil
	switch {
	case e.method != nil && reply:
		return invalid("the message has both a method and a result or error")
	case e.method == nil && (!reply || both):
		return invalid("the message has neither a method nor exactly one of result and error")
	case e.method == nil && e.id == nil:
		return invalid("the reply has no id")
	case e.result != nil && string(e.id) == "null":
		return invalid("the reply has no id")
	case e.method == nil && e.params != nil:
		return invalid("the reply has params")
	case e.errObj != nil && e.errObj[0] != '{':
		return invalid("the error is not an object")
	case e.errObj != nil && e.fds > 0:
		return invalid("an error carries no fds")
	case e.method == nil:
		return nil
	case string(e.id) == "null":
		e.id = nil
		return invalid("the id of a request is null")
	}
	m := e.method
	if m[0] != '"' || len(m) < 3 || len(m) > maxMethod+2 {
		return invalid("the method is not a string of 1 to 64 bytes")
	}
	e.method = m[1 : len(m)-1]
	if !validMethod(string(e.method)) {
		return invalid("the method has characters other than letters, digits and _ . / - $")
	}
	if e.params != nil && e.params[0] != '{' {
		return &violation{CodeInvalidParams, "cannot read the params: they are not an object", false}
	}
	return nil
}

func validMethod(m string) bool {
	for i := range len(m) {
		c := m[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '_', c == '.', c == '/', c == '-', c == '$':
		default:
			return false
		}
	}
	return m != "" && len(m) <= maxMethod
}

// validID accepts an integer, a string without escapes, and null, which only an
// error reply to an unreadable message may have. Ids are compared and echoed byte
// by byte, so forms with several spellings are refused.
func validID(id []byte) bool {
	if len(id) > maxID {
		return false
	}
	if string(id) == "null" {
		return true
	}
	if id[0] == '"' {
		return !slices.Contains(id, '\\')
	}
	if id[0] == '-' {
		id = id[1:]
	}
	for _, c := range id {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(id) > 0
}
