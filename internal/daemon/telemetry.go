package daemon

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/daemon/compose"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/state/telemetry"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// observer turns what passes the gate into spans and counters.
type observer struct {
	spans   *telemetry.Telemetry
	tracer  trace.Tracer
	metrics *telemetry.Metrics
}

func newObserver(ctx context.Context, cfg *config.Config, redact func(string) string, console io.Writer) (*observer, error) {
	spans, err := telemetry.Start(ctx, telemetry.Config{
		Traces: cfg.Traces, Path: filepath.Join(stateDir(cfg), "telemetry", "spans.jsonl"), Out: console, Endpoint: cfg.TracesEndpoint,
		Version: build.Version(), Redact: redact,
	})
	if err != nil {
		return nil, err
	}
	return &observer{spans: spans, tracer: spans.Tracer(), metrics: telemetry.NewMetrics(build.Version())}, nil
}

// states adds the metrics that are computed when they are read.
func (o *observer) states(g *compose.Flow, log *audit.Log) {
	o.metrics.States("carrel_workspaces", "Workspaces by state.", "state", func() map[string]int {
		n := map[string]int{}
		for state, count := range g.States() {
			n[string(state)] = count
		}
		return n
	})
	o.metrics.Counter("carrel_audit_records_total", "Records in the audit log.", func() float64 { return float64(log.Head().Seq) })
}

// connection counts a connection out of a workspace.
func (o *observer) connection(c egressapi.Connection) {
	o.metrics.Connections(c.Way, c.Refused != "", c.Count, c.SentBytes, c.ReceivedBytes)
}

// model counts a request to a model. The labels are the models that the host's file names.
func (o *observer) model(conf *conf.Config, endpoint string, refused bool, tokens int64) {
	if _, err := conf.Model(endpoint); err != nil {
		endpoint = "other"
	}
	o.metrics.Model(endpoint, refused, tokens)
}

// passed records one operation; the gate calls it.
func (o *observer) passed(p *gate.Passage) {
	status := audit.StatusOK
	switch {
	case p.Denied:
		status = audit.StatusDenied
	case p.Err != nil:
		status = audit.StatusFailed
	}
	o.metrics.Action(string(p.Kind), status, p.Ended.Sub(p.Began))
	if p.Level != "" {
		o.metrics.Decision(p.Level)
	}
	ctx, span := o.tracer.Start(telemetry.WithTrace(context.Background(), p.Trace), "gate", trace.WithTimestamp(p.Began), trace.WithAttributes(
		attribute.String("carrel.kind", string(p.Kind)), attribute.String("carrel.workspace", string(p.Workspace)),
		attribute.String("carrel.principal", p.By), attribute.String("carrel.level", p.Level), attribute.String("carrel.status", status),
	))
	if !span.IsRecording() {
		return
	}
	for _, s := range p.Steps {
		_, part := o.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Began))
		part.End(trace.WithTimestamp(s.Ended))
	}
	if p.Err != nil {
		span.SetStatus(codes.Error, p.Err.Error())
	}
	span.End(trace.WithTimestamp(p.Ended))
}

// closeTimeout bounds the sending of the last spans.
const closeTimeout = 3 * time.Second

func (o *observer) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return o.spans.Close(ctx)
}

func (o *observer) handler() http.Handler { return o.metrics.Handler() }
