// Package recorder writes records of the connections of one workspace to the audit log, at a bounded pace: what is
// beyond it is summed up, by host, once a minute.
//
// It must not wait for the disk where a connection is reported, or decide what is told to people.
package recorder

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// pace limits the records of single connections: a burst, then one each Every. With a record of sums each sumEvery, a workspace
// that connects in a loop writes some 40 MB a day.
var pace = bucket.Bound{Every: 3 * time.Second, Burst: 400}

const (
	sumEvery = time.Minute
	// mostHosts bounds the hosts that a record of sums tells apart.
	mostHosts = 16
)

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
	sum
	// Hosts are those of them, in the order in which they came; others are in the sums alone.
	Hosts []*host `json:"hosts,omitempty"`
}

type sum struct {
	Connections   int64 `json:"connections"`
	Refused       int64 `json:"refused,omitempty"`
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
}

type host struct {
	Host string `json:"host"`
	Port uint16 `json:"port,omitempty"`
	sum
}

func (s *sum) add(c *egressapi.Connection) {
	n := max(c.Count, 1)
	s.Connections += n
	if c.Refused != "" {
		s.Refused += n
	}
	s.SentBytes += c.SentBytes
	s.ReceivedBytes += c.ReceivedBytes
}

// connected is the Data of a record of a connection.
type connected struct {
	*egressapi.Connection
	// Untold are connections of the last minute that have no record. A record that has them has no connection.
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
	r.untold.add(&c)
	at := slices.IndexFunc(r.untold.Hosts, func(h *host) bool { return h.Host == c.Host && h.Port == c.Port })
	if at < 0 {
		if len(r.untold.Hosts) == mostHosts {
			return
		}
		at = len(r.untold.Hosts)
		r.untold.Hosts = append(r.untold.Hosts, &host{Host: c.Host, Port: c.Port})
	}
	r.untold.Hosts[at].add(&c)
}

// write records what is reported, until reports is closed.
func (r *Recorder) write() {
	var full time.Time
	var sums <-chan time.Time // nil while there is nothing to sum up
	for {
		select {
		case c, more := <-r.reports:
			if !more {
				r.recordUntold()
				return
			}
			then, wait := pace.Take(full, time.Now())
			if full = then; wait == 0 {
				r.record(&c, nil)
			} else {
				r.leaveOut(c)
			}
		case <-sums:
			r.recordUntold()
			sums = nil
		}
		if sums == nil && r.left() {
			sums = time.After(sumEvery)
		}
	}
}

// left reports whether there are connections to sum up.
func (r *Recorder) left() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.untold.Connections > 0
}

func (r *Recorder) recordUntold() {
	if rest := r.takeUntold(); rest != nil {
		r.record(nil, rest)
	}
}

func (r *Recorder) takeUntold() *untold {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.untold
	r.untold = untold{}
	if u.Connections == 0 {
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
