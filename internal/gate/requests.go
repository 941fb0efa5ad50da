package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/principal"
)

// once carries out what a client asks for under an id of its own, which it may repeat
// when it does not know whether it was heard: what was answered is answered again. Every
// operation takes up what an earlier attempt began, so that one whose answer is not
// known is carried out. f is told when it was first asked for, or the zero time. Without
// an id it is carried out.
func once[T any](ctx context.Context, g *Gate, p principal.Principal, request string, a action.Action, f func(began time.Time) (T, error)) (T, error) {
	var answer T
	if request == "" {
		return f(time.Time{})
	}
	canonical, err := a.Canonical()
	if err != nil {
		return answer, err
	}
	before, began, err := g.cfg.Store.Begin(ctx, p.String(), request, action.Digest(canonical))
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
		return answer, errors.Join(err, g.cfg.Store.Forget(ctx, p.String(), request))
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return answer, fmt.Errorf("cannot keep the answer to request %q: %w", request, err)
	}
	return answer, g.cfg.Store.Answer(ctx, p.String(), request, string(text))
}
