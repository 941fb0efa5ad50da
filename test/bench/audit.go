package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// appenders is how many append at once.
const appenders = 64

// durable says whether the run's directory is on a disk.
func (b *bench) durable() error {
	if b.Machine.FileSystem == "tmpfs" {
		return errors.New("the directory is on tmpfs, where nothing is durable; name one on a disk with -dir")
	}
	return nil
}

// lines are the records that the daemon wrote of one exec.
type lines struct {
	intent, outcome audit.Record
	intentBytes     []byte
}

// execLines runs a command and takes the daemon's records of it.
func (h *carrelHost) execLines() (l lines, err error) {
	if _, err := h.workspace("demo"); err != nil {
		return l, err
	}
	if _, err := h.api("one", true, "demo").Op(); err != nil {
		return l, err
	}
	s, err := h.client.Audit().Show(h.b.ctx, connect.NewRequest(&carrelv1.ShowRequest{Last: 2}))
	if err != nil {
		return l, err
	}
	defer s.Close()
	for s.Receive() {
		for _, line := range s.Msg().GetLines() {
			r, err := audit.Decode(line)
			if err != nil {
				return l, err
			}
			r.Time = time.Time{}
			switch r.Type {
			case audit.Intent:
				l.intent, l.intentBytes = r, append(line, '\n')
			case audit.Outcome:
				l.outcome = r
			default: // somebody else's
			}
		}
	}
	if err := s.Err(); err != nil {
		return l, err
	}
	if l.intent.Type == "" || l.outcome.Type == "" {
		return l, errors.New("the audit log does not end with an exec's intent and outcome")
	}
	return l, nil
}

// audit measures durable appends of an exec's intent by 64 appenders and by one, beside a
// write and an fdatasync for each such line, on one file system. They are recorded as
// denials, which are durable alike and which the log need not remember until they end.
func (b *bench) audit() error {
	if err := b.durable(); err != nil {
		for _, what := range []string{report.Audit, report.AuditLatency, report.AuditAlone} {
			b.Miss(what, err)
		}
		return nil
	}
	h, err := b.host()
	if err != nil {
		return err
	}
	l, err := h.execLines()
	if err != nil {
		return err
	}
	denial := l.intent
	denial.Type = audit.Denial
	log, err := audit.Open(b.ctx, audit.Options{Path: filepath.Join(b.dir, "audit", "append.jsonl")})
	if err != nil {
		return err
	}
	defer log.Close()
	f, err := os.OpenFile(filepath.Join(b.dir, "audit", "each"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	appending := measure.Contestant{Op: measure.Timed(func() error {
		_, err := log.Append(b.ctx, denial)
		return err
	})}
	each := measure.Contestant{Name: report.OneSync, Op: measure.Timed(func() error {
		if _, err := f.Write(l.intentBytes); err != nil {
			return err
		}
		return unix.Fdatasync(int(f.Fd()))
	})}
	// Both kinds of block by turns, so that the disk is the same for all.
	p := b.pace(0)
	one := p
	one.Rounds = 1
	many, alone, sync := measure.Series{Name: "audit append, 64 appenders"}, measure.Series{Name: "audit append, one appender"}, measure.Series{Name: report.OneSync}
	for range p.Rounds {
		add(&many, measure.Throughput(b.ctx, one, appenders, []measure.Contestant{appending})[0])
		got := measure.Interleave(b.ctx, one, []measure.Contestant{appending, each})
		add(&alone, got[0])
		add(&sync, got[1])
		for _, s := range []measure.Series{many, alone, sync} {
			if s.Err != nil {
				return s.Err
			}
		}
	}
	for _, r := range sync.Rounds {
		sync.Rates = append(sync.Rates, float64(len(r))/total(r).Seconds())
	}
	if err := b.rates(report.Audit, "records/s", many, []measure.Series{sync}); err != nil {
		return err
	}
	many.Name += ": latency"
	if err := b.times(report.AuditLatency, time.Millisecond, many, []measure.Series{sync}); err != nil {
		return err
	}
	sync.Rates = nil
	return b.times(report.AuditAlone, time.Millisecond, alone, []measure.Series{sync})
}

func add(to *measure.Series, s measure.Series) {
	to.Rounds, to.Rates, to.Err = append(to.Rounds, s.Rounds...), append(to.Rates, s.Rates...), s.Err
}

func total(times []time.Duration) (sum time.Duration) {
	for _, d := range times {
		sum += d
	}
	return sum
}

// verify measures how fast a log of an exec's intents and outcomes is verified, beside one
// thread that computes SHA-256 over the same file.
func (b *bench) verify() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	l, err := h.execLines()
	if err != nil {
		return err
	}
	pairs, rounds := 50_000, 9
	if b.quick {
		pairs, rounds = 20_000, 5
	}
	path := filepath.Join(b.dir, "audit", "verify.jsonl")
	size, err := writeLog(b.ctx, path, l, pairs)
	if err != nil {
		return err
	}
	got := measure.Interleave(b.ctx, measure.Pace{Rounds: rounds, Warm: 1}, []measure.Contestant{
		{Name: "audit verify", Op: measure.Timed(func() error {
			v, err := audit.VerifyFile(b.ctx, path, audit.Head{})
			if err == nil && (v.Bad != nil || v.Records != 2*int64(pairs)) {
				err = fmt.Errorf("%d records hold, of %d: %+v", v.Records, 2*pairs, v.Bad)
			}
			return err
		})},
		{Name: report.OneSHA, Op: measure.Timed(func() error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteTo(sha256.New())
			return err
		})},
	})
	for i := range got {
		for _, r := range got[i].Rounds {
			got[i].Rates = append(got[i].Rates, float64(size)/1e6/r[0].Seconds())
		}
	}
	return b.rates(report.Verify, "MB/s", got[0], got[1:])
}

// writeLog makes a log of so many commands and returns its size.
func writeLog(ctx context.Context, path string, l lines, pairs int) (int64, error) {
	log, err := audit.Open(ctx, audit.Options{Path: path})
	if err != nil {
		return 0, err
	}
	for i := range pairs {
		l.outcome.Intent = int64(2*i + 1)
		if err := errors.Join(log.AppendAsync(l.intent), log.AppendAsync(l.outcome)); err != nil {
			return 0, errors.Join(err, log.Close())
		}
	}
	if err := log.Close(); err != nil {
		return 0, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
