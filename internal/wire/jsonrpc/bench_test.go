package jsonrpc_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

type benchParams struct {
	ID   string   `json:"id"`
	Argv []string `json:"argv"`
	Cwd  string   `json:"cwd,omitempty"`
	Wait bool     `json:"wait,omitempty"`
}

type benchResult struct {
	PID    int    `json:"pid"`
	Stdout []byte `json:"stdout,omitempty"`
}

func benchPair(b *testing.B, cfg jsonrpc.Config) *jsonrpc.Conn {
	a, z := socketPair(b)
	server := jsonrpc.New(z, cfg)
	client := jsonrpc.New(a, jsonrpc.Config{MaxFDs: 4})
	b.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client
}

// BenchmarkCall is one round trip with params and a result of the size that an
// exec has, both decoded. p50 and p99 are in nanoseconds.
func BenchmarkCall(b *testing.B) {
	client := benchPair(b, jsonrpc.Config{Handler: func(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
		var p benchParams
		if err := r.Decode(&p); err != nil {
			return nil, nil, err
		}
		return benchResult{PID: 7}, nil, nil
	}})
	p := benchParams{ID: "c-0123456789abcdef", Argv: []string{"/bin/true"}, Wait: true}
	times := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		var res benchResult
		t := time.Now()
		if _, err := client.Call(b.Context(), "exec", &p, &res); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(t))
	}
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
}

// BenchmarkPing has neither params nor a result.
func BenchmarkPing(b *testing.B) {
	client := benchPair(b, jsonrpc.Config{Handler: func(context.Context, *jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
		return nil, nil, nil
	}})
	times := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		t := time.Now()
		if _, err := client.Call(b.Context(), "ping", nil, nil); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(t))
	}
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
}

// BenchmarkCallFD sends one descriptor there and one back.
func BenchmarkCallFD(b *testing.B) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	client := benchPair(b, jsonrpc.Config{MaxFDs: 4, Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		f := r.FDs[0]
		r.FDs[0] = nil
		return nil, []*os.File{f}, nil
	}})
	b.ReportAllocs()
	for b.Loop() {
		fds, err := client.Call(b.Context(), "exec", nil, nil, null)
		if err != nil {
			b.Fatal(err)
		}
		_ = fds[0].Close()
	}
}

func BenchmarkCallParallel(b *testing.B) {
	client := benchPair(b, jsonrpc.Config{Handler: func(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
		var p benchParams
		if err := r.Decode(&p); err != nil {
			return nil, nil, err
		}
		return benchResult{PID: 7}, nil, nil
	}})
	p := benchParams{ID: "c-0123456789abcdef", Argv: []string{"/bin/true"}, Wait: true}
	b.SetParallelism(4)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			var res benchResult
			if _, err := client.Call(b.Context(), "exec", &p, &res); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
