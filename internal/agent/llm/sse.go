package llm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// The errors of an sseReader, beside those of its input.
var (
	errLongEvent = fmt.Errorf("it sent an event of more than %d bytes", MaxEvent)
	errLong      = fmt.Errorf("it sent more than %d bytes", MaxAnswer)
)

// sseEvent is an event of a stream. Its data is valid until the next one is read.
type sseEvent struct {
	name string
	data []byte
}

// sseReader reads a stream of the form text/event-stream (https://html.spec.whatwg.org/multipage/server-sent-events.html).
// Lines end with LF, CR or CRLF; comments, ids and times of reconnection are passed over. What follows the last empty line
// is no event. After an error nothing more is read.
type sseReader struct {
	in    io.Reader
	buf   [32 << 10]byte
	rest  []byte // of buf, not looked at yet
	total int    // bytes of the whole stream
	size  int    // bytes since the last event
	began bool   // something was read
	cr    bool   // the last byte was CR: an LF now belongs to it
	line  []byte // the beginning of a line that is not whole
	data  []byte
	name  string
	some  bool // data has a line
}

// next returns the next event that has data. io.EOF is the end of the input, in the middle of an event too.
func (r *sseReader) next() (sseEvent, error) {
	r.data, r.name, r.some, r.size = r.data[:0], "", false, 0
	for {
		line, err := r.readLine()
		if err != nil {
			return sseEvent{}, err
		}
		if len(line) > 0 {
			r.field(line)
			continue
		}
		if r.some {
			return sseEvent{r.name, r.data}, nil
		}
		r.name, r.size = "", 0
	}
}

func (r *sseReader) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		r.name = string(value)
	case "data":
		if r.some {
			r.data = append(r.data, '\n')
		}
		r.data, r.some = append(r.data, value...), true
	}
}

// readLine returns the next line without its end. It is valid until the next call.
func (r *sseReader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	for {
		if len(r.rest) == 0 {
			if err := r.fill(); err != nil {
				return nil, err
			}
		}
		if r.cr {
			r.cr = false
			if r.rest[0] == '\n' {
				r.rest = r.rest[1:]
				continue
			}
		}
		end := bytes.IndexAny(r.rest, "\r\n")
		part, after := r.rest, len(r.rest)
		if end >= 0 {
			part, after = r.rest[:end], end+1
		}
		if r.size += after; r.size > MaxEvent {
			return nil, errLongEvent
		}
		if end < 0 {
			r.line, r.rest = append(r.line, part...), nil
			continue
		}
		r.cr, r.rest = r.rest[end] == '\r', r.rest[after:]
		if len(r.line) == 0 {
			return r.unmarked(part), nil
		}
		r.line = append(r.line, part...)
		return r.unmarked(r.line), nil
	}
}

// unmarked removes the byte order mark that a stream may begin with.
func (r *sseReader) unmarked(line []byte) []byte {
	if !r.began {
		r.began = true
		return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	return line
}

// fill reads at least one byte.
func (r *sseReader) fill() error {
	for range 100 {
		n, err := r.in.Read(r.buf[:min(len(r.buf), MaxAnswer+1-r.total)])
		if r.total += n; r.total > MaxAnswer {
			return errLong
		}
		if n > 0 { // an error comes again
			r.rest = r.buf[:n]
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errors.New("it sent nothing")
}
