package principal

import "context"

type contextKey struct{}

// NewContext returns ctx with the one for whom everything is done that it is passed to.
func NewContext(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns for whom something is done, the zero Principal if that is the daemon itself.
func FromContext(ctx context.Context) Principal {
	p, _ := ctx.Value(contextKey{}).(Principal)
	return p
}
