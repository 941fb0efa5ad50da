package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/carrel-dev/carrel/internal/base/redact"
)

// cleanLog masks secrets in the attributes of log records. Messages are constants.
type cleanLog struct {
	slog.Handler
	r *redact.Redactor
}

// Handle implements slog.Handler.
func (c cleanLog) Handle(ctx context.Context, rec slog.Record) error {
	out := slog.NewRecord(rec.Time, rec.Level, rec.Message, rec.PC)
	rec.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(c.attr(a))
		return true
	})
	return c.Handler.Handle(ctx, out)
}

func (c cleanLog) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(c.r.Text(v.String()))
	case slog.KindAny:
		// Formatted as the handlers format it.
		text := fmt.Sprint(v.Any())
		if clean := c.r.Text(text); clean != text {
			a.Value = slog.StringValue(clean)
		}
	case slog.KindGroup:
		var group []slog.Attr
		for _, one := range v.Group() {
			group = append(group, c.attr(one))
		}
		a.Value = slog.GroupValue(group...)
	default: // numbers and times
	}
	return a
}

// WithAttrs implements slog.Handler.
func (c cleanLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, 0, len(attrs))
	for _, a := range attrs {
		clean = append(clean, c.attr(a))
	}
	return cleanLog{c.Handler.WithAttrs(clean), c.r}
}

// WithGroup implements slog.Handler.
func (c cleanLog) WithGroup(name string) slog.Handler {
	return cleanLog{c.Handler.WithGroup(name), c.r}
}
