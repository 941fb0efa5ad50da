package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// DefaultMaxBytes is the default size of a file of spans.
const DefaultMaxBytes = 64 << 20

// Line is one span in a file or on the console.
type Line struct {
	Time     time.Time      `json:"time"` // of its start
	Trace    string         `json:"trace_id"`
	Span     string         `json:"span_id"`
	Parent   string         `json:"parent_id,omitempty"`
	Name     string         `json:"name"`
	Duration float64        `json:"duration_us"`
	Error    string         `json:"error,omitempty"`
	Attrs    map[string]any `json:"attributes,omitempty"`
}

// lines writes spans as JSON, one a line.
type lines struct {
	mu     sync.Mutex
	out    io.Writer
	redact func(string) string
}

// ExportSpans implements sdktrace.SpanExporter.
func (l *lines) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	for _, s := range spans {
		line := Line{
			Time: s.StartTime().UTC(), Trace: s.SpanContext().TraceID().String(), Span: s.SpanContext().SpanID().String(), Name: s.Name(),
			Duration: float64(s.EndTime().Sub(s.StartTime()).Nanoseconds()) / 1000,
		}
		if p := s.Parent(); p.HasSpanID() {
			line.Parent = p.SpanID().String()
		}
		if s.Status().Code == codes.Error {
			line.Error = l.redact(s.Status().Description)
		}
		for _, a := range s.Attributes() {
			if line.Attrs == nil {
				line.Attrs = map[string]any{}
			}
			line.Attrs[string(a.Key)] = plain(a.Value, l.redact)
		}
		j, err := json.Marshal(line)
		if err != nil {
			return fmt.Errorf("cannot write a span: %w", err)
		}
		b = append(append(b, j...), '\n')
	}
	if _, err := l.out.Write(b); err != nil {
		return fmt.Errorf("cannot write spans: %w", err)
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (l *lines) Shutdown(context.Context) error { return nil }

func plain(v attribute.Value, redact func(string) string) any {
	if v.Type() == attribute.STRING {
		return redact(v.AsString())
	}
	return v.AsInterface()
}

// redacted removes secrets from the spans that another exporter sends.
type redacted struct {
	sdktrace.SpanExporter
	redact func(string) string
}

// ExportSpans implements sdktrace.SpanExporter.
func (r *redacted) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	clean := make(tracetest.SpanStubs, len(spans))
	for i, s := range spans {
		clean[i] = tracetest.SpanStubFromReadOnlySpan(s)
		clean[i].Status.Description = r.redact(clean[i].Status.Description)
		attrs := make([]attribute.KeyValue, len(clean[i].Attributes))
		for j, a := range clean[i].Attributes {
			if a.Value.Type() == attribute.STRING {
				a.Value = attribute.StringValue(r.redact(a.Value.AsString()))
			}
			attrs[j] = a
		}
		clean[i].Attributes = attrs
	}
	return r.SpanExporter.ExportSpans(ctx, clean.Snapshots())
}

// spanFile is a file of bounded size.
type spanFile struct {
	path string
	max  int64
	f    *os.File
	size int64
}

func openSpanFile(path string, limit int64) (*spanFile, error) {
	if limit == 0 {
		limit = DefaultMaxBytes
	}
	s := &spanFile{path: path, max: limit}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot keep spans: %w", err)
	}
	return s, s.open()
}

func (s *spanFile) open() error {
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot keep spans: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("cannot keep spans: %w", err), f.Close())
	}
	s.f, s.size = f, st.Size()
	return nil
}

// Write appends whole lines.
func (s *spanFile) Write(p []byte) (int, error) {
	if s.size > 0 && s.size+int64(len(p)) > s.max {
		if err := errors.Join(s.f.Close(), os.Rename(s.path, s.path+".1")); err != nil {
			return 0, err
		}
		if err := s.open(); err != nil {
			return 0, err
		}
	}
	n, err := s.f.Write(p)
	s.size += int64(n)
	return n, err
}

func (s *spanFile) Close() error { return s.f.Close() }
