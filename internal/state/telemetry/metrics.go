package telemetry

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// buckets of durations, in seconds: from a warm exec to a slow archive.
var buckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300}

// Metrics are the counters. The values of labels are a few fixed words, never a user's text.
type Metrics struct {
	registry  *prometheus.Registry
	actions   *prometheus.CounterVec
	durations *prometheus.HistogramVec
	decisions *prometheus.CounterVec
	// Of connections out of workspaces.
	connections *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	// Of requests to models.
	requests *prometheus.CounterVec
	tokens   *prometheus.CounterVec
}

// NewMetrics returns counters at zero, and the metrics of the process and its runtime.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carrel_actions_total", Help: "Actions that passed the gate, by kind and how they ended: ok, error, denied.",
		}, []string{"kind", "status"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "carrel_action_duration_seconds",
			Help:    "From the request of an action to the end of its effect; of an attached command, to its start.",
			Buckets: buckets,
		}, []string{"kind"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carrel_decisions_total", Help: "Decisions of the policy, by level.",
		}, []string{"level"}),
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carrel_egress_connections_total",
			Help: "Connections out of workspaces that have ended, by how they were asked for and whether they were allowed or refused.",
		}, []string{"way", "verdict"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carrel_egress_bytes_total", Help: "Bytes of connections that have ended, to hosts (sent) and from them (received).",
		}, []string{"direction"}),
	}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carrel_model_requests_total",
		Help: "Requests of workspaces to models, by the name of the model on the host and whether they were made or refused.",
	}, []string{"model", "verdict"})
	m.tokens = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carrel_model_tokens_total", Help: "Tokens that requests to models have used, by the name of the model on the host.",
	}, []string{"model"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "carrel_build_info", Help: "Always 1; the label says which release runs.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.actions, m.durations, m.decisions, m.connections, m.bytes, m.requests, m.tokens, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Action counts an action by kind and status, and records its duration.
func (m *Metrics) Action(kind, status string, took time.Duration) {
	m.actions.WithLabelValues(kind, status).Inc()
	m.durations.WithLabelValues(kind).Observe(took.Seconds())
}

// Decision counts a decision.
func (m *Metrics) Decision(level string) { m.decisions.WithLabelValues(level).Inc() }

// ways are the values of a label. A process that parses what workspaces send reports them.
var ways = map[string]bool{"transparent": true, "proxy": true, "connect": true, "http": true, "socks": true, "dns": true, "end": true}

// Connections counts so many connections out of workspaces. A way that is not known is "other".
func (m *Metrics) Connections(way string, refused bool, count, sent, received int64) {
	verdict := "allowed"
	if refused {
		verdict = "refused"
	}
	if !ways[way] {
		way = "other"
	}
	m.connections.WithLabelValues(way, verdict).Add(float64(max(count, 1)))
	m.bytes.WithLabelValues("sent").Add(float64(max(sent, 0)))
	m.bytes.WithLabelValues("received").Add(float64(max(received, 0)))
}

// Model counts a request to a model, and the tokens that it has used. Models are those that an administrator has named.
func (m *Metrics) Model(name string, refused bool, tokens int64) {
	verdict := "allowed"
	if refused {
		verdict = "refused"
	}
	m.requests.WithLabelValues(name, verdict).Inc()
	m.tokens.WithLabelValues(name).Add(float64(max(tokens, 0)))
}

// Gauge adds a gauge. f returns its value when the metrics are read, and must not block.
func (m *Metrics) Gauge(name, help string, f func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

// Counter is Gauge for a counter.
func (m *Metrics) Counter(name, help string, f func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f))
}

// States adds a gauge with one value for each value of a label. f returns them when the metrics are
// read.
func (m *Metrics) States(name, help, label string, f func() map[string]int) {
	m.registry.MustRegister(&states{prometheus.NewDesc(name, help, []string{label}, nil), f})
}

type states struct {
	desc *prometheus.Desc
	f    func() map[string]int
}

// Describe implements prometheus.Collector.
func (s *states) Describe(c chan<- *prometheus.Desc) { c <- s.desc }

// Collect implements prometheus.Collector.
func (s *states) Collect(c chan<- prometheus.Metric) {
	for word, n := range s.f() {
		c <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(n), word)
	}
}

// Handler serves the metrics. The caller decides who may read them.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}
