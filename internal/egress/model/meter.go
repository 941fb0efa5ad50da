package model

import (
	"bytes"
	"mime"
	"net/http"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// maxHeld is how much of an event is held until it is known whether the program gets it.
const maxHeld = 64 << 10

// meter reads the usage in a response while that passes.
type meter struct {
	api API
	// drop leaves out the events that the program did not ask for: see request.splice.
	drop bool

	kind   kind
	all    int64 // bytes
	one    *scanner
	text   int64 // of scanners before
	events int64
	known  budget.Usage
	told   bool // the host told some of it
	final  bool // and there is no more to tell

	// Of an event stream.
	line    []byte // the beginning of a line, until its name is known
	in      lineState
	lines   int    // data lines of this event
	cr      bool   // the last byte was a carriage return
	held    []byte // this event, with drop
	free    bool   // this event passes
	unasked bool   // the last event is one to leave out
}

type kind byte

const (
	other kind = iota
	object
	stream
)

type lineState byte

const (
	lineStart lineState = iota
	lineData
	lineOther
)

// paths are where responses and events have their usage.
var paths = []string{"usage", "message/usage", "response/usage", "choices"}

func newMeter(api API, drop bool, h http.Header) *meter {
	m := &meter{api: api, drop: drop, one: newScanner(paths...)}
	switch t, _, _ := mime.ParseMediaType(h.Get("Content-Type")); t {
	case "application/json":
		m.kind = object
	case "text/event-stream":
		m.kind = stream
	}
	return m
}

// take reads what the host sent, and returns what the program gets of it. The result may be b.
func (m *meter) take(b []byte) []byte {
	m.all += int64(len(b))
	switch m.kind {
	case object:
		_ = m.one.feed(b) // what is not JSON tells no usage
	case stream:
		if out := m.pass(b); m.drop {
			return out
		}
	case other:
	}
	return b
}

// end reads the end of the response. whole says that it is complete. What it returns goes to the program.
func (m *meter) end(whole bool) (rest []byte) {
	switch {
	case m.kind == stream:
		m.endEvent() // some servers leave the last empty line out
		if m.unasked && !m.free {
			m.held = nil
		}
	case m.kind == object && m.one.end() == nil:
		m.harvest()
		m.final = m.told
	}
	m.text += m.one.text
	m.final = m.final || whole && m.told && m.kind == stream && m.api != Anthropic
	rest, m.held = m.held, nil
	return rest
}

// harvest reads the usage that a scanner has found.
func (m *meter) harvest() {
	for _, path := range []string{"usage", "message/usage", "response/usage"} {
		found := m.one.found[path]
		if !found.present() || found.raw == nil {
			continue
		}
		u, ok := readUsage(m.api, found.raw)
		if !ok {
			continue
		}
		m.known, m.told = larger(m.known, u), true
		// The first event of a stream of Anthropic tells what was read; some servers tell of each piece so far.
		if path != "message/usage" && (m.one.found["choices"] == nil || m.noChoices()) {
			m.final = true
		}
	}
}

// noChoices reports whether an object has an empty list of choices.
func (m *meter) noChoices() bool {
	c := m.one.found["choices"]
	return c != nil && string(bytes.Join(bytes.Fields(c.raw), nil)) == "[]"
}

// used returns what a request has used, of whose body there were so many bytes, after a time. The response has ended.
func (m *meter) used(sent int64, after time.Duration) Usage {
	if m.final {
		return Usage{Usage: m.known}
	}
	return estimate(m.known, sent, m.wrote(), after)
}

// soFar is used for a response that has not ended.
func (m *meter) soFar(sent int64, after time.Duration) Usage {
	wrote := max(m.text+m.one.text, m.events)
	if m.kind == other {
		wrote = m.all
	}
	return estimate(m.known, sent, wrote, after)
}

// wrote is how many bytes of text the response had.
func (m *meter) wrote() int64 {
	if m.kind == other || m.kind == object && m.one.err != nil {
		return m.all
	}
	return max(m.text, m.events)
}

// estimate completes what is known. sent are bytes of the request, wrote those of the model's text.
func estimate(known budget.Usage, sent, wrote int64, after time.Duration) Usage {
	u := Usage{Usage: known, Unknown: true}
	if known.Input+known.CachedInput+known.CacheWrite == 0 {
		u.Input = (sent + egressapi.BytesPerToken - 1) / egressapi.BytesPerToken
	}
	u.Output = max(u.Output, (wrote+egressapi.BytesPerToken-1)/egressapi.BytesPerToken, int64(after/time.Second)*egressapi.TokensPerSecond)
	return u
}

// pass reads a part of an event stream, and returns what the program gets.
func (m *meter) pass(b []byte) []byte {
	if !m.drop {
		for len(b) > 0 {
			n, _ := m.read(b)
			b = b[n:]
		}
		return nil
	}
	out := make([]byte, 0, len(m.held)+len(b))
	for len(b) > 0 {
		n, ended := m.read(b)
		m.held = append(m.held, b[:n]...)
		b = b[n:]
		switch {
		case ended && m.unasked && !m.free && len(m.held) <= maxHeld: // of a longer one the beginning may have passed
			m.held = m.held[:0]
		case ended || m.free || len(m.held) > maxHeld:
			m.free = !ended
			out = append(out, m.held...)
			m.held = m.held[:0]
		}
	}
	return out
}

// read reads lines up to the end of an event (WHATWG HTML, 9.2), and returns how many bytes it has read. The data of
// the event goes to a scanner.
func (m *meter) read(b []byte) (n int, ended bool) {
	for n < len(b) {
		c := b[n]
		switch {
		case c == '\n' && m.cr: // of the line that has ended
			m.cr = false
			n++
		case c == '\n' || c == '\r':
			m.cr = c == '\r'
			n++
			if m.endLine() {
				return n, true
			}
		case m.in == lineStart:
			m.cr = false
			m.begin(c)
			n++
		default:
			length := bytes.IndexAny(b[n:], "\r\n")
			if length < 0 {
				length = len(b) - n
			}
			if m.in == lineData {
				_ = m.one.feed(b[n : n+length])
			}
			n += length
		}
	}
	return n, false
}

// begin reads one byte of the name that a line begins with.
func (m *meter) begin(c byte) {
	switch {
	case c != ':' && len(m.line) < len("data"):
		m.line = append(m.line, c)
		return
	case c == ':' && string(m.line) == "data":
		m.in = lineData
		if m.lines > 0 {
			_ = m.one.feed([]byte{'\n'})
		}
		m.lines++
	default:
		m.in = lineOther
	}
}

// endLine ends a line, and reports whether it was an empty one that ends an event.
func (m *meter) endLine() bool {
	empty := m.in == lineStart && len(m.line) == 0
	m.in, m.line = lineStart, m.line[:0]
	if empty {
		m.endEvent()
	}
	return empty
}

// endEvent takes what an event has told.
func (m *meter) endEvent() {
	m.unasked = false
	if m.lines == 0 {
		return
	}
	m.events++
	if m.one.end() == nil {
		m.harvest()
		m.unasked = m.drop && m.one.found["usage"].present() && m.noChoices()
	}
	m.text += m.one.text
	m.one, m.lines = newScanner(paths...), 0
}
