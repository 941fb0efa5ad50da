package telemetry

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"

	"github.com/carrel-dev/carrel/internal/base/id"
)

type traceKey struct{}

// WithTrace makes the spans that start with ctx use the trace id of a request's records.
func WithTrace(ctx context.Context, t id.Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// ids makes the ids of spans. They may be guessable.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var tid trace.TraceID
	if t, ok := ctx.Value(traceKey{}).(id.Trace); ok && len(t) == hex.EncodedLen(len(tid)) {
		if _, err := hex.Decode(tid[:], []byte(t)); err == nil && tid.IsValid() {
			return tid, g.NewSpanID(ctx, tid)
		}
	}
	binary.NativeEndian.PutUint64(tid[:8], nonZero())
	binary.NativeEndian.PutUint64(tid[8:], nonZero())
	return tid, g.NewSpanID(ctx, tid)
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) (s trace.SpanID) {
	binary.NativeEndian.PutUint64(s[:], nonZero())
	return s
}

func nonZero() uint64 {
	for {
		if n := rand.Uint64(); n != 0 { //nolint:gosec // ids of spans, no secret
			return n
		}
	}
}
