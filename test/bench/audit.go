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
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// countersigner is audit.CheckpointOptions.Countersign.
type countersigner = func(context.Context, checkpoint.Checkpoint, int64, tlog.TreeProof) (checkpoint.Countersigned, error)

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
	log, err := audit.Open(b.ctx, audit.Options{Path: filepath.Join(b.dir, "audit", "append.jsonl"), Room: 16 << 20})
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
	// Both kinds of block alternate, so that the disk is in the same state for both.
	p := b.pace(0)
	one := p
	one.Rounds = 1
	many, alone := measure.Series{Name: "audit append, 64 appenders"}, measure.Series{Name: "audit append, one appender"}
	sync := measure.Series{Name: report.OneSync}
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
	size, err := writeLog(b.ctx, path, l, pairs, nil)
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
		{Name: report.OneSHA, Op: measure.Timed(func() error { return sum(path) })},
	})
	for i := range got {
		for _, r := range got[i].Rounds {
			got[i].Rates = append(got[i].Rates, float64(size)/1e6/r[0].Seconds())
		}
	}
	if err := b.rates(report.Verify, "MB/s", got[0], got[1:]); err != nil {
		return err
	}
	return b.verifySigned(l, pairs, rounds)
}

// sum hashes a file.
func sum(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteTo(sha256.New())
	return err
}

// verifySigned measures the same of a log that was signed, and countersigned, after every
// 4096 records, by the time that processors spent: however many there are, it is that of one.
func (b *bench) verifySigned(l lines, pairs, rounds int) error {
	dir := filepath.Join(b.dir, "signed")
	path := filepath.Join(dir, "audit.jsonl")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, "broker"), 0o700)); err != nil {
		return err
	}
	place, err := os.Open(filepath.Join(dir, "broker"))
	if err != nil {
		return err
	}
	defer place.Close()
	c, err := broker.OpenCountersigner(place)
	if err != nil {
		return err
	}
	size, err := writeLog(b.ctx, path, l, pairs,
		func(_ context.Context, next checkpoint.Checkpoint, old int64, proof tlog.TreeProof) (checkpoint.Countersigned, error) {
			signed, last, _, err := c.Sign(next, old, proof)
			return checkpoint.Countersigned{Note: signed, Key: c.Public(), Size: last.Size, Root: last.Root}, err
		})
	if err != nil {
		return err
	}
	public, err := os.ReadFile(filepath.Join(dir, "checkpoint.pub"))
	if err != nil {
		return err
	}
	trust := audit.Trust{Countersigned: c.Last()}
	if trust.Keys, err = checkpoint.ParseKeys(string(public), c.Public()); err != nil {
		return err
	}
	records := 2 * int64(pairs)
	got := measure.Interleave(b.ctx, measure.Pace{Rounds: rounds, Warm: 1}, []measure.Contestant{
		{Name: "audit verify, signed, a core", Op: spent(func() error {
			v, err := audit.VerifyLog(b.ctx, path, trust)
			if err == nil && (v.Bad != nil || v.Records != records || v.Countersigned != records) {
				err = fmt.Errorf("%d records hold and %d are signed, of %d: %+v", v.Records, v.Countersigned, records, v.Bad)
			}
			return err
		})},
		{Name: report.OneSHA, Op: spent(func() error { return sum(path) })},
	})
	count := got[0]
	count.Name = "audit verify, signed, records a core"
	for i := range got {
		for _, r := range got[i].Rounds {
			got[i].Rates = append(got[i].Rates, float64(size)/1e6/r[0].Seconds())
		}
	}
	for _, r := range count.Rounds {
		count.Rates = append(count.Rates, float64(records)/r[0].Seconds())
	}
	if err := b.rates(report.VerifySigned, "MB/s", got[0], got[1:]); err != nil {
		return err
	}
	return b.rates(report.VerifyCount, "records/s", count, nil)
}

// spent is measure.Timed by the time that this process had of processors.
func spent(f func() error) func() (time.Duration, error) {
	now := func() (time.Duration, error) {
		var u unix.Rusage
		err := unix.Getrusage(unix.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
	}
	return func() (time.Duration, error) {
		began, err := now()
		if err == nil {
			err = f()
		}
		ended, nerr := now()
		return ended - began, errors.Join(err, nerr)
	}
}

// signEvery is after how many records a log is signed.
const signEvery = 4096

// writeLog makes a log of so many commands and returns its size. It is signed if there is
// someone to countersign.
func writeLog(ctx context.Context, path string, l lines, pairs int, countersign countersigner) (size int64, err error) {
	log, err := audit.Open(ctx, audit.Options{Path: path})
	if err != nil {
		return 0, err
	}
	sign := func() error { return nil }
	if countersign != nil {
		c, err := audit.OpenCheckpoints(ctx, log, audit.CheckpointOptions{Countersign: countersign})
		if err != nil {
			return 0, errors.Join(err, log.Close())
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		sign = func() error {
			_, err := log.Mark() // what was queued is on disk
			if err == nil {
				_, err = c.Make(ctx)
			}
			return err
		}
	}
	for i := range pairs {
		if 2*i%signEvery == 0 && i > 0 {
			if err := sign(); err != nil {
				return 0, errors.Join(err, log.Close())
			}
		}
		l.outcome.Intent = int64(2*i + 1)
		if err := errors.Join(log.AppendAsync(l.intent), log.AppendAsync(l.outcome)); err != nil {
			return 0, errors.Join(err, log.Close())
		}
	}
	if err := errors.Join(sign(), log.Close()); err != nil {
		return 0, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
