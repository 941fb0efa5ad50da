package gate

import (
	"context"
	"time"
)

// TendAll is one round of Tend.
func (g *Gate) TendAll(ctx context.Context, now time.Time) { g.tendAll(ctx, now) }

// ForgetHomes removes the homes that have been kept for their time by now.
func (g *Gate) ForgetHomes(ctx context.Context, now time.Time) error { return g.forgetHomes(ctx, now) }
