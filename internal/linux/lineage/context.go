package lineage

import "context"

type contextKey struct{}

// NewContext returns ctx with the process that asks for what is done with it.
func NewContext(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the process that asks, the zero Peer if that is none of this machine.
func FromContext(ctx context.Context) Peer {
	p, _ := ctx.Value(contextKey{}).(Peer)
	return p
}
