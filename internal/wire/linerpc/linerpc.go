// Package linerpc reads and writes JSON-RPC 2.0, one message a line, where the other side is a program that nobody
// trusts. A line has a bound, and nothing of a line that breaks a rule is used.
//
// It must not know any method. A Reader keeps no more than one line, and a Peer no more than MaxCalls requests.
package linerpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

const (
	// MaxLine bounds a line in bytes, without its end.
	MaxLine = 512 << 10
	// MaxDepth bounds how deep arrays and objects are nested.
	MaxDepth = 128
	// maxID bounds the id of a request in bytes, as it stands in the line.
	maxID = 128
	piece = 32 << 10
)

// Error codes of JSON-RPC 2.0 (https://www.jsonrpc.org/specification#error_object).
const (
	InvalidRequest = -32600
	MethodNotFound = -32601
	InvalidParams  = -32602
	// Refused is carrel's own: what was asked for is not given.
	Refused = -32001
)

// Error is the error of a response.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Message is one message: a request has ID and Method, a notification only Method, and a response ID with Result or Error.
type Message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// Request reports whether an answer is waited for.
func (m *Message) Request() bool { return m.Method != "" && m.ID != nil }

// Response reports whether it is an answer.
func (m *Message) Response() bool { return m.Method == "" }

// ErrHalf is the end of the input in the middle of a line.
var ErrHalf = errors.New("it ended in the middle of a line")

// Reader reads messages. It is for one goroutine.
type Reader struct{ in *bufio.Reader }

// NewReader returns a reader of messages.
func NewReader(in io.Reader) *Reader { return &Reader{bufio.NewReaderSize(in, piece)} }

// More reports whether a whole line has been read already, so that Read will not wait.
func (r *Reader) More() bool {
	b, _ := r.in.Peek(r.in.Buffered())
	return bytes.IndexByte(b, '\n') >= 0
}

// Read returns the next message. Empty lines are passed over. io.EOF is the end of the input between two lines. After an
// error nothing more is read.
func (r *Reader) Read() (Message, error) {
	for {
		line, err := r.line()
		if err != nil {
			return Message{}, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return Parse(line)
		}
	}
}

// line returns the next line with its end. It is read no further than MaxLine.
func (r *Reader) line() (line []byte, err error) {
	for {
		b, err := r.in.ReadSlice('\n')
		if len(line)+len(b) > MaxLine+1 {
			return nil, fmt.Errorf("it sent a line of more than %d bytes", MaxLine)
		}
		switch {
		case err == nil && line == nil:
			return b, nil
		case err == nil:
			return append(line, b...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			line = append(line, b...)
		case errors.Is(err, io.EOF) && len(line)+len(b) > 0:
			return nil, ErrHalf
		default:
			return nil, err
		}
	}
}

// Parse reads one message. What it returns holds no part of line.
func Parse(line []byte) (m Message, err error) {
	switch {
	case len(line) > MaxLine:
		return m, fmt.Errorf("it sent a line of more than %d bytes", MaxLine)
	case !utf8.Valid(line):
		return m, fmt.Errorf("it sent a line that is not UTF-8: %.60q", line)
	case strictjson.Depth(line) > MaxDepth:
		return m, fmt.Errorf("it sent JSON that is nested more than %d deep", MaxDepth)
	}
	if err := strictjson.UnmarshalNewer(line, &m); err != nil {
		return Message{}, fmt.Errorf("it sent a line that is no message of JSON-RPC: %.60q: %w", line, err)
	}
	if why := m.wrong(line); why != "" {
		return Message{}, fmt.Errorf("it sent a line that is no message of JSON-RPC 2.0: %.60q: %s", line, why)
	}
	return m, nil
}

// wrong says what is wrong with a message, "" if nothing is.
func (m *Message) wrong(line []byte) string {
	switch {
	case line[0] != '{':
		return "it is no object"
	case m.Version != "2.0":
		return `jsonrpc is not "2.0"`
	case m.ID != nil && !isID(m.ID):
		return fmt.Sprintf("id is no text and no whole number of at most %d bytes", maxID)
	case m.Method != "" && (m.Result != nil || m.Error != nil):
		return "it has a method and an answer"
	case m.Method != "" && m.Params != nil && m.Params[0] != '{':
		return "params is no object"
	case m.Method == "" && m.ID == nil:
		return "it has no method and no id"
	case m.Method == "" && (m.Result == nil) == (m.Error == nil):
		return "it has no method, and not one of result and error"
	}
	return ""
}

func isID(b json.RawMessage) bool {
	if len(b) > maxID {
		return false
	}
	if b[0] == '"' {
		return true
	}
	var n int64
	return json.Unmarshal(b, &n) == nil && b[0] != 'n'
}

// Write writes a message as one line.
func Write(w io.Writer, m Message) error {
	m.Version = "2.0"
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot write a message: %w", err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
