package gate

import (
	"context"
	"errors"

	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// Asker has people answer for requests that the policy does not let pass by itself.
type Asker interface {
	// Ask returns once a person has let the request pass. A Refused error is recorded as a
	// denial; ErrJudgeAgain says that the policy has changed meanwhile.
	Ask(ctx context.Context, q *Question) (Pass, error)
}

// Question is a request that a person has to answer for.
type Question struct {
	Request   *operation.Request
	Judgement *judge.Judgement
	// Record writes records of the request, without its secrets.
	Record *record.Of
}

// Pass is what let a request through that a person was asked about.
type Pass struct {
	// Text is what the record of the intent says of it, as "ap-… once by uid:0".
	Text string
	// Remembered are the permissions that let a plan pass without a question.
	Remembered []string
	// First: of a plan it lets the first step through, and no other.
	First bool
	// Files: of a plan it lets the part through that is about these files, with the digest Digest, and nothing else.
	Files  []string
	Digest string
	// Spent is told the number of that record, if it is not nil.
	Spent func(intent int64)
}

// ErrJudgeAgain is returned by an Asker if the policy has changed since the judgement.
var ErrJudgeAgain = errors.New("the policy has changed")
