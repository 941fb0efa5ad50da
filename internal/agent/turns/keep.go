package turns

import (
	"encoding/json"

	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// keyOf is the digest of all that has to be the same for a command to pass by an answer for the session: its words and what is around
// them, but for the time that it may take, as with commands; its target; whether it is held to reading; on hosts the place where the client
// works; verdict, which is what the policy says of it, and the policy.
func (turn *Turn) keyOf(s *step, verdict []any) (string, error) {
	words := s.op.Command()
	if !s.shown.Background { // a job is approved with its time
		words.TimeoutMS = 0
	}
	same, err := operation.Same(s.op.With(words), s.on)
	if err != nil {
		return "", err
	}
	place := ""
	if s.on.Kind != operation.Workspace {
		if hosts := turn.Hosts(); hosts != nil {
			place = hosts.Place()
		}
		if place == "" {
			return "", nil // where it would run is not known, and so not remembered
		}
	}
	b, err := json.Marshal([]any{same, s.shown.ReadOnly, s.shown.Background, place, verdict})
	return operation.Digest(b), err
}

// keep is what an answer for the session remembers of a plan, nil if it can be answered for once only: if it changes files or undoes
// something, and if a command of it is for several hosts at once or is one that the policy never remembers.
func (turn *Turn) keep(op operation.Plan, steps []step) *operation.Keep {
	if turn.Session == "" || !op.Asks || op.Undoes > 0 || op.From > 0 {
		return nil
	}
	k := &operation.Keep{Session: turn.Session, By: turn.By.String()}
	for _, s := range steps {
		switch {
		case !s.asks && s.patch == nil:
			continue
		case s.key == "" || s.patch != nil || s.hosts > 1:
			return nil
		}
		k.Steps = append(k.Steps, operation.KeptStep{Target: s.shown.Target, Command: s.shown.Command, Key: s.key})
	}
	return k
}
