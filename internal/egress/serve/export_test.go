package serve

import (
	"context"
	"net/netip"
)

// KeepAnswers and MostAnswers bound what is kept of a resolver.
const (
	KeepAnswers = keepAnswers
	MostAnswers = mostAnswers
)

// Answers keeps what ask says, as resolver does.
func Answers(ask func(context.Context, string) ([]netip.Addr, error)) func(context.Context, string) ([]netip.Addr, error) {
	return (&answers{known: map[string]answer{}, ask: ask}).resolve
}
