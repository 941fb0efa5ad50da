package tasks

import (
	"encoding/json"
	"strings"

	"github.com/carrel-dev/carrel/internal/linerpc"
	"github.com/carrel-dev/carrel/internal/seat"
)

// inSeat is the client of an agent that others made, in the place of carrel's own. It speaks ACP and nothing else, is told in front of
// the prompt what carrel's own is told beside it, and proposes by the tools that session/new names: see proposals.
type inSeat struct {
	acp
	words lines
}

func newSeat(c *conversation) *inSeat {
	s := &inSeat{acp: acp{c: c}}
	s.preface = func() string { return seat.Preface(c.situation()) }
	s.say = s.update
	return s
}

func (s *inSeat) begin(prompt string) error {
	s.c.seat.begin(s.c)
	return s.acp.begin(prompt)
}

func (s *inSeat) take(m linerpc.Message) error {
	if m.Response() { // the turn may be over
		if err := s.rest(); err != nil {
			return err
		}
	}
	return s.acp.take(m)
}

// update takes an update of the session. The words of an answer come in pieces of any length.
func (s *inSeat) update(u json.RawMessage) error {
	text := chunkOf(u)
	if text == "" {
		if err := s.rest(); err != nil {
			return err
		}
		return s.c.message("message", u)
	}
	return s.tell(s.words.add(text))
}

// rest tells what was said and not told yet.
func (s *inSeat) rest() error { return s.tell(s.words.rest()) }

func (s *inSeat) tell(text string) error {
	if text == "" {
		return nil
	}
	return s.c.message("message", map[string]any{
		"sessionUpdate": "agent_message_chunk", "content": map[string]string{"type": "text", "text": text},
	})
}

const (
	// maxHeld bounds what is held back of an answer, in bytes.
	maxHeld = 64 << 10
	// secretBlock is how a text begins that goes over several lines and may be secret as a whole.
	secretBlock = "-----BEGIN"
)

// lines are the words of an answer, told in whole lines: secrets are looked for in what is told, and none is found that comes in halves.
// From a block such as a private key on, all is told at once.
type lines struct{ held strings.Builder }

// add takes the next piece, and returns what can be told.
func (l *lines) add(text string) string {
	l.held.WriteString(text)
	all := l.held.String()
	if len(all) > maxHeld {
		return l.rest()
	}
	before, _, _ := strings.Cut(all, secretBlock)
	n := strings.LastIndexByte(before, '\n') + 1
	l.held.Reset()
	l.held.WriteString(all[n:])
	return all[:n]
}

// rest is what was not told yet.
func (l *lines) rest() string {
	defer l.held.Reset()
	return l.held.String()
}
