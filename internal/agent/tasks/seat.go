package tasks

import (
	"encoding/json"
	"strings"

	"github.com/carrel-dev/carrel/internal/agent/seat"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// inSeat is the client of an agent that others made, in the place of carrel's own. It speaks ACP and nothing else, is told in front of
// the prompt what carrel's own is told beside it, and proposes by the tools that session/new names: see proposals.
type inSeat struct {
	acp
	words, thoughts lines
	own             ownTools
	// thought is how much of its thoughts was told, in bytes.
	thought int
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
	switch {
	case m.Response(): // the turn may be over
		if err := s.rest(); err != nil {
			return err
		}
		if s.step.Load() == promptStep && m.Error == nil {
			if note := s.c.seat.note(); note != "" {
				if err := s.c.offer(note); err != nil {
					return err
				}
			}
		}
	case m.Method == "session/request_permission": // it is for a tool of the program's own
		s.c.seat.reads()
	}
	return s.acp.take(m)
}

// update takes an update of the session. The words of an answer, and of thoughts, come in pieces of any length.
func (s *inSeat) update(u json.RawMessage) error {
	if s.own.take(u); s.own.used {
		s.c.seat.reads()
	}
	if text := chunkOf(u); text != "" {
		if err := s.think(s.thoughts.rest()); err != nil {
			return err
		}
		return s.tell(answerPiece, s.words.add(text))
	}
	if text := pieceOf(u, thoughtPiece); text != "" {
		if err := s.tell(answerPiece, s.words.rest()); err != nil {
			return err
		}
		return s.think(s.thoughts.add(text))
	}
	if err := s.rest(); err != nil {
		return err
	}
	return s.c.message("message", u)
}

// rest tells what was said and not told yet.
func (s *inSeat) rest() error {
	if err := s.think(s.thoughts.rest()); err != nil {
		return err
	}
	return s.tell(answerPiece, s.words.rest())
}

// think tells a thought. What is beyond the bound is left out, so that thoughts leave room for what is done.
func (s *inSeat) think(text string) error {
	left := maxThought - s.thought
	if s.thought += len(text); left <= 0 {
		return nil
	}
	return s.tell(thoughtPiece, cut(text, left))
}

func (s *inSeat) tell(kind, text string) error {
	if text == "" {
		return nil
	}
	return s.c.message("message", map[string]any{"sessionUpdate": kind, "content": map[string]string{"type": "text", "text": text}})
}

const (
	// maxThought bounds the thoughts of a turn that are told, in bytes.
	maxThought = 64 << 10
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
