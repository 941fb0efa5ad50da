// Package recorder writes records of the connections of one workspace to the audit log, at a bounded pace: what is
// beyond it is only counted.
//
// It must not wait for the disk where a connection is reported, or decide what is told to people.
package recorder

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// pace limits the records: a burst, then one each Every. Connections beyond that are only counted.
var pace = bucket.Bound{Every: 100 * time.Millisecond, Burst: 200}

// queued is how many reports wait for the disk.
const queued = 256

// Log is where records go: record.Writer.
type Log interface {
	AppendAsync(r audit.Record) error
}

// Config holds the dependencies of New. All are required.
type Config struct {
	Log Log
	// Principal is on whose behalf connections are made, as principal.Principal prints it.
	Principal string
	Workspace id.Workspace
	// Trouble is told of each record that cannot be written.
	Trouble func(error)
}

// Recorder records connections until Close.
type Recorder struct {
	cfg     Config
	reports chan egressapi.Connection
	written sync.WaitGroup

	mu     sync.Mutex // of untold
	untold untold
}

// untold is what connections without a record of their own add up to.
type untold struct {
	Connections   int64 `json:"connections"`
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
}

// connected is the Data of a record of a connection.
type connected struct {
	*egressapi.Connection
	// Untold are the connections before that have no record. The last record may have them alone.
	Untold *untold `json:"untold,omitempty"`
}

// New returns a Recorder, which the caller must close.
func New(c Config) *Recorder {
	r := &Recorder{cfg: c, reports: make(chan egressapi.Connection, queued)}
	r.written.Go(r.write)
	return r
}

// Connection takes a report. It does not wait for the disk. It must not be called after Close.
func (r *Recorder) Connection(c egressapi.Connection) {
	select {
	case r.reports <- c:
	default:
		r.leaveOut(c)
	}
}

// Close returns when every connection has been recorded. Call it once.
func (r *Recorder) Close() {
	close(r.reports)
	r.written.Wait()
}

// leaveOut counts a connection that gets no record of its own.
func (r *Recorder) leaveOut(c egressapi.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.untold.Connections += max(c.Count, 1)
	r.untold.SentBytes += c.SentBytes
	r.untold.ReceivedBytes += c.ReceivedBytes
}

// write records what is reported, until reports is closed.
func (r *Recorder) write() {
	var full time.Time
	for c := range r.reports {
		then, wait := pace.Take(full, time.Now())
		if wait > 0 {
			r.leaveOut(c)
			continue
		}
		full = then
		r.record(&c, r.takeUntold())
	}
	if rest := r.takeUntold(); rest != nil {
		r.record(nil, rest)
	}
}

func (r *Recorder) takeUntold() *untold {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.untold
	r.untold = untold{}
	if u == (untold{}) {
		return nil
	}
	return &u
}

func (r *Recorder) record(c *egressapi.Connection, rest *untold) {
	data, _ := json.Marshal(connected{c, rest}) // texts and numbers always marshal
	one := audit.Record{
		Type: audit.Connection, Principal: r.cfg.Principal, Workspace: r.cfg.Workspace, Status: audit.StatusOK, Data: data,
	}
	if c != nil && c.Refused != "" {
		one.Status, one.Error = audit.StatusDenied, c.Refused
	}
	if err := r.cfg.Log.AppendAsync(one); err != nil {
		r.cfg.Trouble(err)
	}
}
