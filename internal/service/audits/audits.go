// Package audits keeps the audit log in order: it notes how far the log is known, closes
// what a crash left open, signs the log and removes files that were kept for their time; and
// it shows, verifies and proves the log to those who may read it.
//
// It must not decide what is recorded of an operation: the gate does.
package audits

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/events"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/store"
)

const (
	// metaMark is where the store keeps how far the audit log is known.
	metaMark = "audit_mark"
	// markEvery is after how many intents that is noted again.
	markEvery = 4096

	started = "daemon.started"
	stopped = audit.Stopped
)

// Config holds the dependencies of New. All but Checkpoints are required, if not said otherwise.
type Config struct {
	Gate    *gate.Gate
	Log     *slog.Logger
	Audit   *audit.Log
	Store   *store.Store
	Records *record.Writer
	Events  *events.Events
	// Find returns the workspace that a key or a name means, and when it was made; not_found if there is none. History takes it.
	Find func(ref string) (on operation.Target, made time.Time, err error)
	// Checkpoints sign Audit, after Every if there is something new, and after so many
	// records. They stay the caller's.
	Checkpoints *audit.Checkpoints
	Every       time.Duration
	After       int64
	// Keep says how long full files of Audit are kept once they are signed.
	Keep audit.Keep
	// Full says that the disk is full: what can wait is not recorded then. Optional.
	Full func() error
	// Policy names the rules in force, "" before there are any; Version is the daemon's.
	Policy  func() string
	Version string
}

// Auditing keeps an audit log in order. Its methods may be called from any goroutine.
type Auditing struct {
	cfg      Config
	intents  atomic.Int64
	unsigned atomic.Bool // the last checkpoint failed
	marking  sync.Mutex
	ended    bool // the last mark is kept, or no more are; under marking
}

// New returns the keeper of an audit log.
func New(cfg Config) *Auditing { return &Auditing{cfg: cfg} }

// metaKnown is where the store keeps the record that was on disk last when it was changed last.
const metaKnown = "audit_known"

// LoadMark returns what the store last noted of the audit log, and the record that was the last one when
// the store was changed, for audit.Open.
func LoadMark(ctx context.Context, s *store.Store) (m audit.Mark, known audit.Head, err error) {
	return decode(func(name string) (string, error) { return s.Meta(ctx, name) })
}

// PeekMark is LoadMark for a database that nobody has open, and its write-ahead log; see store.Peek.
func PeekMark(ctx context.Context, db, wal io.Reader) (m audit.Mark, known audit.Head, err error) {
	values, err := store.Peek(ctx, db, wal, metaMark, metaKnown)
	if err != nil {
		return m, known, err
	}
	return decode(func(name string) (string, error) { return values[name], nil })
}

func decode(meta func(name string) (string, error)) (m audit.Mark, known audit.Head, err error) {
	for name, into := range map[string]any{metaMark: &m, metaKnown: &known} {
		text, err := meta(name)
		if err == nil && text != "" {
			err = json.Unmarshal([]byte(text), into)
		}
		if err != nil {
			return m, known, fmt.Errorf("cannot read how far the audit log is known: %w: %w", err, errdefs.ErrDataLoss)
		}
	}
	return m, known, nil
}

// Watch has each change of the store note which record of the log is the last on disk, so that a log
// whose end is lost is known to have lost it, before the next checkpoint too.
func Watch(s *store.Store, log *audit.Log) {
	s.Beside(metaKnown, func() string {
		text, _ := json.Marshal(log.Head()) // a number and a text always marshal
		return string(text)
	})
}

// metaParted is where the store keeps when the log could no longer be written.
const metaParted = "audit_parted"

// Part changes the store once more after the log could no longer be written, so that the store knows the last record
// that was on disk then: see Watch. If another file was put in the log's place, the next start says what it lacks.
func Part(ctx context.Context, s *store.Store, now time.Time) error {
	return s.SetMeta(ctx, metaParted, now.UTC().Format(time.RFC3339))
}

// KeepMark has the store note how far the log is known: what lies before the mark is not read again at the next start,
// and a log that ends before has been cut.
func KeepMark(ctx context.Context, s *store.Store, m audit.Mark) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot note how far the audit log is known: %w", err)
	}
	return s.SetMeta(ctx, metaMark, string(text))
}

// Mark notes how far the log is known. It changes nothing once the log has ended.
func (a *Auditing) Mark(ctx context.Context) error {
	a.marking.Lock()
	defer a.marking.Unlock()
	if a.ended {
		return nil
	}
	m, err := a.cfg.Audit.Mark()
	if err != nil {
		return err
	}
	return KeepMark(ctx, a.cfg.Store, m)
}

// CountIntent notes the mark now and then, away from the request that is due.
func (a *Auditing) CountIntent() {
	if a.intents.Add(1)%markEvery != 0 {
		return
	}
	a.cfg.Gate.Later(func() {
		if err := a.Mark(context.Background()); err != nil {
			a.cfg.Log.Error("cannot note how far the audit log is known", "error", err)
		}
	})
}

func (a *Auditing) lifecycle(event string) audit.Record {
	data, _ := json.Marshal(struct { // strings and a number always marshal
		Event   string `json:"event"`
		Version string `json:"version,omitempty"`
		PID     int    `json:"pid"`
		// Policy is the digest of the rules in force.
		Policy string `json:"policy,omitempty"`
	}{event, a.cfg.Version, os.Getpid(), a.cfg.Policy()})
	return audit.Record{Type: audit.Lifecycle, Principal: principal.Self().String(), Status: audit.StatusOK, Data: data}
}

// Begin records that the daemon has started, and closes the intents that the last run left
// without an outcome, which it returns. Nothing is run again.
func (a *Auditing) Begin(ctx context.Context) (open []audit.Record, err error) {
	if open, err = a.cfg.Audit.Unfinished(); err != nil {
		return nil, err
	}
	// From here on the log may be longer than the last stop left it.
	if err := a.Mark(ctx); err != nil {
		return nil, err
	}
	seq, err := a.cfg.Audit.Append(ctx, a.lifecycle(started))
	if err != nil && !errdefs.IsResourceExhausted(err) { // on a full disk the line waits for room
		return nil, err
	}
	self := principal.Self().String()
	a.cfg.Events.Add(workspace.Event{Time: time.Now(), Owner: self, Kind: started, Status: audit.StatusOK, Principal: self, Intent: seq})
	for _, r := range open {
		if err := a.cfg.Audit.AppendAsync(audit.Record{
			Type: audit.Outcome, Trace: r.Trace, Principal: self, Workspace: r.Workspace, Intent: r.Seq,
			Status: audit.StatusInterrupted, Error: "the daemon ended before the outcome was recorded; what was begun was not repeated",
		}); err != nil {
			return nil, err
		}
	}
	if len(open) > 0 {
		a.cfg.Log.Warn("closed operations that the last run left without an outcome", "count", len(open))
	}
	crashpoint.Here("daemon.recover.closed")
	return open, nil
}

// Sum records what was only observed since it was called last. On a full disk that waits.
func (a *Auditing) Sum() {
	if a.cfg.Full == nil || a.cfg.Full() == nil {
		a.sum()
	}
}

func (a *Auditing) sum() {
	if err := a.cfg.Records.FlushSums(); err != nil {
		a.cfg.Log.Error("cannot record how often things were looked at", "error", err)
	}
}

// End records that the daemon stops, as the last record that the log takes, and signs the end of the log. What might still
// record something has to have ended: it is refused from here on.
func (a *Auditing) End(ctx context.Context) error {
	a.sum()
	err := a.end(ctx)
	if a.cfg.Checkpoints != nil {
		if _, cerr := a.cfg.Checkpoints.Make(ctx); cerr != nil {
			a.cfg.Log.Error("cannot sign the end of the audit log as it should be; the next start does", "error", cerr)
		}
	}
	return err
}

func (a *Auditing) end(ctx context.Context) error {
	a.marking.Lock()
	defer a.marking.Unlock()
	a.ended = true
	m, err := a.cfg.Audit.End(ctx, a.lifecycle(stopped))
	if err != nil {
		return err
	}
	return KeepMark(ctx, a.cfg.Store, m)
}
