package gate

import (
	"context"
	"time"
)

// TendAll is one round of Tend.
func (g *Gate) TendAll(ctx context.Context, now time.Time) { g.tendAll(ctx, now) }
