package model

import (
	"net/http"
	"time"
)

// Scan reads an object that comes in pieces, and returns the values that were wanted.
func Scan(pieces [][]byte, want ...string) (map[string]string, error) {
	s := newScanner(want...)
	for _, p := range pieces {
		if err := s.feed(p); err != nil {
			return nil, err
		}
	}
	found := map[string]string{}
	for name, m := range s.found {
		if m.times == 1 && !m.odd && m.raw != nil {
			found[name] = string(m.raw)
		}
	}
	return found, s.end()
}

// Measure reads a response that comes in pieces, and returns what the program gets and what was used.
func Measure(api API, contentType string, drop bool, pieces [][]byte) (out string, used Usage) {
	m := newMeter(api, drop, http.Header{"Content-Type": {contentType}})
	for _, p := range pieces {
		out += string(m.take(p))
	}
	out += string(m.end(true))
	return out, m.used(100, time.Second)
}

// ReadUsage reads a usage object.
var ReadUsage = readUsage
