package telemetry_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/state/telemetry"
)

const secret = "hunter2-secret"

func redact(s string) string { return strings.ReplaceAll(s, secret, "[redacted]") }

// twoSpans makes a span in another.
func twoSpans(tr trace.Tracer, t id.Trace) {
	ctx, outer := tr.Start(telemetry.WithTrace(
		context.Background(), t,
	), "gate", trace.WithAttributes(attribute.String("kind", "command.exec")))
	_, inner := tr.Start(ctx, "policy", trace.WithAttributes(attribute.Int("rules", 3), attribute.String("argv", "curl -u x:"+secret)))
	inner.SetStatus(codes.Error, "refused "+secret)
	inner.End()
	outer.End()
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "telemetry", "spans.jsonl")
	tel, err := telemetry.Start(t.Context(), telemetry.Config{Traces: telemetry.File, Path: path, Redact: redact, Version: "v0"})
	if err != nil {
		t.Fatal(err)
	}
	tid := id.NewTrace()
	twoSpans(tel.Tracer(), tid)
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte(secret)) {
		t.Errorf("the file holds a secret: %s", b)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	byName := map[string]telemetry.Line{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var l telemetry.Line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		byName[l.Name] = l
	}
	outer, inner := byName["gate"], byName["policy"]
	if outer.Trace != string(tid) || inner.Trace != string(tid) || inner.Parent != outer.Span ||
		outer.Parent != "" || outer.Duration < inner.Duration || inner.Duration <= 0 {
		t.Errorf("%+v\n%+v", outer, inner)
	}
	if inner.Error != "refused [redacted]" || inner.Attrs["argv"] != "curl -u x:[redacted]" ||
		inner.Attrs["rules"] != 3.0 || outer.Error != "" {
		t.Errorf("%+v", inner)
	}
}

func TestFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spans.jsonl")
	const limit = 2000
	for range 20 {
		tel, err := telemetry.Start(t.Context(), telemetry.Config{Traces: telemetry.File, Path: path, MaxBytes: limit, Redact: redact})
		if err != nil {
			t.Fatal(err)
		}
		twoSpans(tel.Tracer(), id.NewTrace())
		if err := tel.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{path, path + ".1"} {
		fi, err := os.Stat(p)
		if err != nil || fi.Size() > limit || fi.Size() == 0 {
			t.Errorf("%s: %v, %v", p, fi, err)
		}
	}
}

func TestConsoleAndOff(t *testing.T) {
	var out bytes.Buffer
	for where, want := range map[string]int{telemetry.Console: 2, telemetry.Off: 0, "": 0} {
		out.Reset()
		tel, err := telemetry.Start(t.Context(), telemetry.Config{Traces: where, Out: &out, Redact: redact})
		if err != nil {
			t.Fatal(err)
		}
		twoSpans(tel.Tracer(), id.NewTrace())
		if err := tel.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n != want {
			t.Errorf("%q: %d lines", where, n)
		}
	}
	if _, err := telemetry.Start(t.Context(), telemetry.Config{Traces: "cloud"}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

// A collector gets valid OTLP and no secret.
func TestOTLP(t *testing.T) {
	var mu sync.Mutex
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &req)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("X-Key") != "k" || bytes.Contains(b, []byte(secret)) {
			t.Errorf("%v %v %v", err, r.URL, r.Header)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range req.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				for _, sp := range ss.GetSpans() {
					got = append(got, sp.GetName())
				}
			}
		}
	}))
	defer s.Close()
	// The environment does not choose the destination.
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://192.0.2.1:1")
	tel, err := telemetry.Start(t.Context(), telemetry.Config{
		Traces: telemetry.OTLP, Endpoint: s.URL + "/v1/traces", Headers: map[string]string{"X-Key": "k"}, Redact: redact,
	})
	if err != nil {
		t.Fatal(err)
	}
	twoSpans(tel.Tracer(), id.NewTrace())
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Join(got, " ") != "policy gate" {
		t.Errorf("%v", got)
	}
	for _, bad := range []string{"", "collector:4318", "ftp://x/", "http://u:p@x/"} {
		if _, err := telemetry.Start(t.Context(), telemetry.Config{
			Traces: telemetry.OTLP, Endpoint: bad, Redact: redact,
		}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Making a span never blocks, even if it cannot be written.
func TestHangingOut(t *testing.T) {
	r, w := io.Pipe()
	defer r.CloseWithError(errors.New("over"))
	tel, err := telemetry.Start(t.Context(), telemetry.Config{Traces: telemetry.Console, Out: w, Redact: redact})
	if err != nil {
		t.Fatal(err)
	}
	for range 20000 {
		twoSpans(tel.Tracer(), id.NewTrace())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := tel.Close(ctx); err == nil {
		t.Error("the hanging stream was not noticed")
	}
}

func TestMetrics(t *testing.T) {
	m := telemetry.NewMetrics("v0.1")
	m.Action("command.exec", "ok", 3*time.Millisecond)
	m.Action("command.exec", "denied", time.Millisecond)
	m.Decision("SAFE")
	m.Connections("transparent", false, 0, 5, 7)
	m.Connections("dns", true, 3, 0, 0)
	m.Connections("made up by a process that was taken over", true, 1, -9, 1)
	m.Connections("made up as well", true, 1, 0, 0)
	m.Gauge("carrel_approvals_pending", "h", func() float64 { return 7 })
	m.Counter("carrel_audit_records_total", "h", func() float64 { return 9 })
	m.Model("house", false, 34)
	m.Model("house", true, 0)
	m.States("carrel_workspaces", "h", "state", func() map[string]int { return map[string]int{"running": 2, "stopped": 1} })
	s := httptest.NewServer(m.Handler())
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`carrel_actions_total{kind="command.exec",status="ok"} 1`, `carrel_actions_total{kind="command.exec",status="denied"} 1`,
		`carrel_action_duration_seconds_bucket{kind="command.exec",le="0.005"} 2`, `carrel_decisions_total{level="SAFE"} 1`,
		"carrel_approvals_pending 7", "carrel_audit_records_total 9", `carrel_workspaces{state="running"} 2`,
		`carrel_egress_connections_total{verdict="allowed",way="transparent"} 1`,
		`carrel_egress_connections_total{verdict="refused",way="dns"} 3`,
		`carrel_egress_connections_total{verdict="refused",way="other"} 2`, `carrel_egress_bytes_total{direction="sent"} 5`,
		`carrel_egress_bytes_total{direction="received"} 8`,
		`carrel_model_requests_total{model="house",verdict="allowed"} 1`,
		`carrel_model_requests_total{model="house",verdict="refused"} 1`, `carrel_model_tokens_total{model="house"} 34`,
		`carrel_build_info{version="v0.1"} 1`, "process_resident_memory_bytes",
	} {
		if !strings.Contains(string(b), "\n"+want) {
			t.Errorf("%s is missing", want)
		}
	}
}
