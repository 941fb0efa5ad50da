package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/budget"
)

// body is the body of a request, held in pieces.
type body struct {
	pieces [][]byte
	size   int64
	room   *room.Room
	taken  int64

	model string
	// unasked: usage is asked for which the program did not want.
	unasked bool
}

const (
	firstPiece = 32 << 10
	largePiece = 1 << 20
	// bodyWithin bounds the time in which a body has to come.
	bodyWithin = 10 * time.Minute
)

// free gives the memory back. The body must not be used after it.
func (b *body) free() {
	b.pieces = nil
	b.room.Give(b.taken)
	b.taken = 0
}

// readBody reads the body of a call that names a model.
func (x *exchange) readBody() *problem {
	if x.r.ContentLength > MaxBody {
		return tooLarge
	}
	b, s := x.body, newScanner("model", "models", "stream", "stream_options", "background")
	end := time.Now().Add(bodyWithin)
	for {
		piece, no := b.piece()
		if no != nil {
			return no
		}
		for len(piece) < cap(piece) {
			soon := time.Now().Add(x.h.cfg.Slow)
			if soon.After(end) {
				soon = end
			}
			_ = x.control.SetReadDeadline(soon)
			n, err := x.r.Body.Read(piece[len(piece):cap(piece)])
			got := piece[len(piece) : len(piece)+n]
			piece = piece[:len(piece)+n]
			b.pieces[len(b.pieces)-1] = piece
			if b.size += int64(n); b.size > MaxBody {
				return tooLarge
			}
			if s.feed(got) != nil {
				return notJSON
			}
			if errors.Is(err, io.EOF) {
				return b.understand(s, &x.call, x.h.cfg.KeepStreams)
			}
			if err != nil {
				return incomplete(err)
			}
		}
	}
}

// piece adds an empty piece.
func (b *body) piece() ([]byte, *problem) {
	size := min(firstPiece<<len(b.pieces), largePiece)
	if len(b.pieces) > 10 {
		size = largePiece
	}
	if !b.room.Take(int64(size)) {
		return nil, noRoom
	}
	b.taken += int64(size)
	piece := make([]byte, 0, size)
	b.pieces = append(b.pieces, piece)
	return piece, nil
}

func incomplete(err error) *problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &problem{kind: late, text: "the body of the request did not come in time"}
	}
	return &problem{kind: invalid, text: "the body of the request is not complete"}
}

// understand reads what the handler has to know of a body, and asks for usage where the program did not.
func (b *body) understand(s *scanner, c *call, keep bool) *problem {
	if s.end() != nil {
		return notJSON
	}
	for name, m := range s.found {
		if m.times > 1 || m.odd || m.raw == nil {
			return &problem{kind: invalid, text: "the body has " + name + " twice, in other letter case or at great length; write it once"}
		}
	}
	var flag bool
	if m := s.found["models"]; m.present() {
		return &problem{kind: invalid, text: "the body names several models; name one, so that it is known which one is counted"}
	}
	if m := s.found["background"]; m.present() && (json.Unmarshal(m.raw, &flag) != nil || flag) {
		return &problem{kind: invalid, text: "what a response in the background uses cannot be counted; leave background out"}
	}
	m := s.found["model"]
	if m == nil || json.Unmarshal(m.raw, &b.model) != nil || b.model == "" || len(b.model) > budget.MaxModel ||
		strings.ContainsFunc(b.model, unicode.IsControl) {
		return &problem{kind: invalid, text: "the body names no model; write its name in the member model"}
	}
	flag = false
	if m := s.found["stream"]; c.chat && !keep && m.present() && json.Unmarshal(m.raw, &flag) == nil && flag {
		b.askUsage(s)
	}
	return nil
}

// askUsage has the host tell the usage at the end of a stream.
func (b *body) askUsage(s *scanner) {
	const member = `"include_usage":true`
	m := s.found["stream_options"]
	if m == nil {
		b.splice(s.first+1, s.first+1, `"stream_options":{`+member+`},`)
		b.unasked = true
		return
	}
	options := map[string]json.RawMessage{}
	if json.Unmarshal(m.raw, &options) != nil { // the host says what is wrong with it
		return
	}
	var asked bool
	if v, ok := options["include_usage"]; ok && json.Unmarshal(v, &asked) == nil && asked {
		return
	}
	if options == nil { // null
		options = map[string]json.RawMessage{}
	}
	options["include_usage"] = json.RawMessage("true")
	text, err := json.Marshal(options)
	if err != nil {
		return
	}
	b.splice(m.start, m.end, string(text))
	b.unasked = true
}

// splice replaces what is between two offsets.
func (b *body) splice(start, end int64, text string) {
	var out [][]byte
	at := int64(0)
	add := func(p []byte) {
		if len(p) > 0 {
			out = append(out, p)
		}
	}
	for _, p := range b.pieces {
		n := int64(len(p))
		if at <= start && start < at+n {
			add(p[:start-at])
			add([]byte(text))
		} else if at+n <= start {
			add(p)
		}
		if end < at+n {
			add(p[max(end-at, 0):])
		}
		at += n
	}
	b.pieces, b.size = out, b.size-(end-start)+int64(len(text))
}

// reader returns what is sent to the host.
func (b *body) reader() io.ReadCloser {
	all := make([]io.Reader, 0, len(b.pieces))
	for _, p := range b.pieces {
		all = append(all, bytes.NewReader(p))
	}
	return io.NopCloser(io.MultiReader(all...))
}
