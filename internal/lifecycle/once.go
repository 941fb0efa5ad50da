package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
)

// Once carries out an operation that a client asks for under an id of its own. The client may
// repeat it when it does not know whether it was heard, and gets the answer of the first time.
// Every operation takes up what an earlier attempt began, so that an attempt whose answer is
// not known is carried out again. f is told when it was first asked for, or the zero time.
// Without an id it is just carried out.
func Once[T any](
	ctx context.Context, s *store.Store, p principal.Principal, request string, op operation.Operation, on operation.Target,
	f func(began time.Time) (T, error),
) (T, error) {
	var answer T
	if request == "" {
		return f(time.Time{})
	}
	canonical, err := operation.Canonical(op, on)
	if err != nil {
		return answer, err
	}
	before, began, err := s.Begin(ctx, p.String(), request, operation.Digest(canonical))
	if err != nil {
		return answer, err
	}
	if before != "" {
		if err := json.Unmarshal([]byte(before), &answer); err != nil {
			return answer, fmt.Errorf("cannot read the answer to request %q: %w: %w", request, err, errdefs.ErrDataLoss)
		}
		return answer, nil
	}
	ctx = context.WithoutCancel(ctx) // what was done is noted
	crashpoint.Here("daemon.request.begun")
	answer, err = f(began)
	crashpoint.Here("daemon.request.done")
	if err != nil {
		return answer, errors.Join(err, s.Forget(ctx, p.String(), request))
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return answer, fmt.Errorf("cannot keep the answer to request %q: %w", request, err)
	}
	return answer, s.Answer(ctx, p.String(), request, string(text))
}
