package audit_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// BenchmarkSyncEach is the baseline of group commit: one write and one fdatasync for each
// record.
func BenchmarkSyncEach(b *testing.B) {
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "f"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	line := makeChain(1)[0]
	lat := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		began := time.Now()
		if _, err := f.Write(line); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		lat = append(lat, time.Since(began))
	}
	report(b, lat)
}

func BenchmarkAppend1(b *testing.B)  { benchmarkAppend(b, 1) }
func BenchmarkAppend8(b *testing.B)  { benchmarkAppend(b, 8) }
func BenchmarkAppend64(b *testing.B) { benchmarkAppend(b, 64) }

func benchmarkAppend(b *testing.B, appenders int) {
	var d *doubleDisk
	l := open(b, audit.Options{Path: logPath(b), Room: 16 << 20}.Wrap(func(f audit.File) audit.File { d = &doubleDisk{File: f}; return d }))
	r := intent(0)
	lat := make([][]time.Duration, appenders)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range appenders {
		n := b.N / appenders
		if w < b.N%appenders {
			n++
		}
		wg.Go(func() {
			lat[w] = make([]time.Duration, 0, n)
			for range n {
				began := time.Now()
				if _, err := l.Append(b.Context(), r); err != nil {
					b.Error(err)
					return
				}
				lat[w] = append(lat[w], time.Since(began))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/float64(d.syncs), "records/sync")
	report(b, slices.Concat(lat...))
}

// BenchmarkAppendAsync is the cost of an outcome to its caller.
func BenchmarkAppendAsync(b *testing.B) {
	l := open(b, audit.Options{Path: logPath(b), Room: 16 << 20})
	r := audit.Record{
		Type: audit.Outcome, Trace: "0123456789abcdef0123456789abcdef", Workspace: "ws-2a97516c",
		Status: audit.StatusOK, Data: []byte(`{"code":0}`),
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.AppendAsync(r); err != nil {
			b.Fatal(err)
		}
	}
}

func report(b *testing.B, lat []time.Duration) {
	slices.Sort(lat)
	b.ReportMetric(float64(lat[len(lat)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(lat[len(lat)*99/100].Nanoseconds())/1e3, "p99-µs")
}

func BenchmarkVerify(b *testing.B) {
	whole := bytes.Join(makeChain(60_000), nil)
	b.SetBytes(int64(len(whole)))
	b.ReportAllocs()
	for b.Loop() {
		v, err := audit.Verify(b.Context(), bytes.NewReader(whole), audit.Head{})
		if err != nil || v.Bad != nil {
			b.Fatal(v.Bad, err)
		}
	}
}

// BenchmarkVerifySigned verifies a log with a checkpoint after every 4096 records, for which each
// line is hashed a second time, and the tree above it.
func BenchmarkVerifySigned(b *testing.B) {
	d := newFixture(b)
	l := open(b, audit.Options{Path: d.path})
	c := d.checkpoints(b, l, d.options())
	const records = 60_000
	for i := range records {
		if err := l.AppendAsync(intent(i)); err != nil {
			b.Fatal(err)
		}
		if (i+1)%4096 == 0 || i+1 == records {
			if _, err := l.Mark(); err != nil {
				b.Fatal(err)
			}
			mustMake(b, c, int64(i+1))
		}
	}
	fi, err := os.Stat(d.path)
	if err != nil {
		b.Fatal(err)
	}
	trust := d.trust(b)
	b.SetBytes(fi.Size())
	b.ReportAllocs()
	began := processorTime(b)
	for b.Loop() {
		v, err := audit.VerifyLog(b.Context(), d.path, trust)
		if err != nil || v.Bad != nil || v.Countersigned != records {
			b.Fatal(v.Bad, err)
		}
	}
	// By processor time, so that other load does not count.
	spent := (processorTime(b) - began).Seconds() / float64(b.N)
	b.ReportMetric(records/spent, "records/s-a-core")
	b.ReportMetric(float64(fi.Size())/1e6/spent, "MB/s-a-core")
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
