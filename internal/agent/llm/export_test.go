package llm

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// SSE is an event of a stream.
type SSE struct{ Name, Data string }

// ReadEvents returns the events of a stream, and how it ended if not with its end.
func ReadEvents(in io.Reader) (all []SSE, err error) {
	r := &sseReader{in: in}
	for {
		e, err := r.next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, SSE{e.name, string(e.data)})
	}
}

// ReadAnswer reads an answer without a server.
func ReadAnswer(w Wire, in io.Reader) (a Answer, all []Event, err error) {
	b := &builder{emit: func(e Event) error {
		all = append(all, e)
		return nil
	}}
	c := &Client{wire: wireOf(w)}
	err = c.receive(b, in)
	return b.answer, all, err
}

// Encode returns the body of a request.
func Encode(c Config, r Request) (string, error) {
	if err := r.check(); err != nil {
		return "", err
	}
	b, err := wireOf(c.Provider.Wire).encode(&c, &r)
	return string(b), err
}

// Depth is depth.
func Depth(text []byte) int { return strictjson.Depth(text) }

// RetryAfter is retryAfter.
func RetryAfter(h http.Header) time.Duration { return retryAfter(h) }
