// Package telemetry exports what the daemon does and how long it takes: spans of each request, with
// OpenTelemetry's types, and counters in the format of Prometheus.
//
// Spans are written to a file, the console or a configured collector; nothing else is sent to the
// network. They are not reliable: spans are dropped if there are too many. The audit log has what
// must not be lost.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/containerd/errdefs"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// The values of Config.Traces.
const (
	// Off keeps none.
	Off = "off"
	// File writes them to a file, one JSON object a line.
	File = "file"
	// Console writes the same to a stream.
	Console = "console"
	// OTLP sends them to a collector by OTLP over HTTP.
	OTLP = "otlp"
)

// Bounds.
const (
	// queued bounds the spans that wait to be written; further ones are dropped.
	queued = 4096
	// every is the interval between writes.
	every = time.Second
	// sendTimeout bounds the sending of one batch to a collector.
	sendTimeout = 10 * time.Second
)

// Config holds the options of Start.
type Config struct {
	// Traces is one of Off, File, Console and OTLP; "" is Off.
	Traces string
	// Path is the file of File, in a directory that only the daemon can enter. At MaxBytes it
	// is renamed to Path + ".1", which replaces the file of that name; 0 means DefaultMaxBytes.
	Path     string
	MaxBytes int64
	// Out is the stream of Console.
	Out io.Writer
	// Endpoint is the address of OTLP, as http://127.0.0.1:4318/v1/traces. Headers are sent
	// with each request.
	Endpoint string
	Headers  map[string]string
	// Version is the daemon's version.
	Version string
	// Redact removes secrets from a text. Required unless Traces is Off.
	Redact func(string) string
}

// Telemetry is started by Start and ended by Close.
type Telemetry struct {
	tracer   trace.Tracer
	provider *sdktrace.TracerProvider
	file     *spanFile
}

// Start starts to export spans. Close ends it.
func Start(ctx context.Context, c Config) (*Telemetry, error) {
	t := &Telemetry{tracer: noop.NewTracerProvider().Tracer("")}
	var exporter sdktrace.SpanExporter
	switch c.Traces {
	case "", Off:
		return t, nil
	case File:
		f, err := openSpanFile(c.Path, c.MaxBytes)
		if err != nil {
			return nil, err
		}
		t.file = f
		exporter = &lines{out: f, redact: c.Redact}
	case Console:
		exporter = &lines{out: c.Out, redact: c.Redact}
	case OTLP:
		if err := CheckEndpoint(c.Endpoint); err != nil {
			return nil, err
		}
		e, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(
			c.Endpoint,
		), otlptracehttp.WithHeaders(c.Headers), otlptracehttp.WithTimeout(sendTimeout))
		if err != nil {
			return nil, fmt.Errorf("cannot send spans: %w", err)
		}
		exporter = &redacted{SpanExporter: e, redact: c.Redact}
	default:
		return nil, fmt.Errorf("cannot keep spans in %q: it must be one of %s, %s, %s, %s: %w",
			c.Traces, Off, File, Console, OTLP, errdefs.ErrInvalidArgument)
	}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(
			queued,
		), sdktrace.WithBatchTimeout(every), sdktrace.WithExportTimeout(sendTimeout)),
		sdktrace.WithIDGenerator(ids{}),
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
		// Not resource.Default: it reads the environment.
		sdktrace.WithResource(resource.NewSchemaless(attribute.String(
			"service.name", "carreld",
		), attribute.String("service.version", c.Version))),
		// Attributes are cut to this length, however long a command is.
		sdktrace.WithRawSpanLimits(sdktrace.SpanLimits{
			AttributeValueLengthLimit: 256, AttributeCountLimit: 32, EventCountLimit: 8, LinkCountLimit: 4,
			AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 4,
		}),
	)
	t.tracer = t.provider.Tracer("carrel")
	return t, nil
}

// CheckEndpoint returns an error if spans may not be sent to an address.
func CheckEndpoint(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("cannot send spans to that address: "+
			"it must be like http://127.0.0.1:4318/v1/traces, without a name or password in it: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// Tracer returns the tracer that makes spans.
func (t *Telemetry) Tracer() trace.Tracer { return t.tracer }

// Close writes the waiting spans until ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	err := t.provider.Shutdown(ctx)
	if t.file != nil {
		if cerr := t.file.Close(); err == nil {
			err = cerr
		}
	}
	return err
}
