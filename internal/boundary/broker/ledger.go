package broker

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/strictjson"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// The ledger is a file of JSON lines. Each states one workspace as it is from then on,
// and the last line about a workspace counts. The first line of a compacted ledger
// states the next free id. It and each line that spends ids state the pace of creation.
//
//	{"next_uid":1879048198,"pace_ms":1790000000000}
//	{"pace_ms":1790000060000,"workspace":{"name":"ws-2a97516c","state":"creating","ids":{…},…}}
//	{"workspace":{"name":"ws-2a97516c","state":"stopped","ids":{…},…}}
//
// A line is written before what it announces begins (creating, destroying) or after
// what it states is so (stopped, running, destroyed), and it is on disk when append
// returns. What a crash tears is the last line only, because each is written and synced
// before the next.

// Entry is what the ledger holds of one workspace.
type Entry struct {
	Name      id.Workspace        `json:"name"`
	KeyDigest string              `json:"key_digest"`
	State     workspace.State     `json:"state"`
	IDs       workspace.IDs       `json:"ids"`
	Home      string              `json:"home"`
	Limits    workspace.Limits    `json:"limits"`
	Executor  *brokerapi.Executor `json:"executor,omitempty"`
	Retained  string              `json:"retained,omitempty"`
	// Purge is how a destroy under way was asked for.
	Purge bool `json:"purge,omitempty"`
	// Owner is that of brokerapi.CreateParams.
	Owner string `json:"owner,omitempty"`
	// Allow is what commands may do that commands of other workspaces may not.
	Allow []workspace.Opening `json:"allow,omitempty"`
	// Egress: it was started with a way out.
	Egress bool `json:"egress,omitempty"`
	// Trust is that of brokerapi.Workspace.
	Trust string `json:"trust,omitempty"`
	// Mounts are the project mounts; they are bounded by workspace.CheckMounts.
	Mounts []Mount `json:"mounts,omitempty"`
}

type ledgerLine struct {
	NextUID uint32 `json:"next_uid,omitempty"`
	// PaceMS is when the bucket of pace will be full again, in milliseconds since 1970.
	PaceMS    int64  `json:"pace_ms,omitempty"`
	Workspace *Entry `json:"workspace,omitempty"`
}

const (
	ledgerName    = "ledger.jsonl"
	ledgerNew     = "ledger.new"
	lockName      = "lock"
	reserveName   = "reserve"
	maxLedgerLine = 16 << 10
	// compactAbove is the size from which the ledger is rewritten, if most of it is out of date.
	compactAbove = 1 << 20
	// ledgerRoom is what is held behind the ledger's end, for some thousand lines about workspaces that are
	// ended while the disk is full; on a small file system one part in ledgerPart is enough.
	ledgerRoom = 4 << 20
	ledgerPart = 64
	// keepDestroyed is how many destroyed workspaces are remembered, so that a repeated
	// destroy gets the same answer.
	keepDestroyed = 1000
)

// Ledger is the broker's memory. Its methods may be called from any goroutine.
type Ledger struct {
	dir   *os.File
	lock  *os.File
	audit *Countersigner

	allocating sync.Mutex // one at a time, from choosing ids to having written them

	mu      sync.Mutex
	file    *os.File
	size    int64
	ahead   diskreserve.Ahead // the room behind its end
	reserve *diskreserve.Reserve
	broken  error // a write failed: what is on disk is not known
	entries map[id.Workspace]Entry
	order   map[id.Workspace]int // of the last line that names it
	lines   int
	cut     string // what was cut off when it was opened
	next    uint32
	paced   time.Time // when the bucket of pace will be full again

	// compactAt is the size from which the ledger is rewritten next: twice what it had after the
	// last time. It is rewritten by one goroutine at most.
	compactAt int64
	compacts  sync.WaitGroup
}

// OpenLedger opens or makes the ledger in dir, which it takes over, and holds a lock on
// it until Close: another broker on the same ledger is an error of kind unavailable.
func OpenLedger(dir *os.File) (*Ledger, error) {
	l := newLedger(dir)
	if err := l.open(); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func newLedger(dir *os.File) *Ledger {
	return &Ledger{dir: dir, compactAt: compactAbove, entries: map[id.Workspace]Entry{}, order: map[id.Workspace]int{}}
}

// takeLock keeps other brokers from the ledger.
func (l *Ledger) takeLock() (err error) {
	if l.lock, err = openAt(l.dir, lockName, unix.O_RDWR|unix.O_CREAT, 0o600); err != nil {
		return fmt.Errorf("cannot lock the broker's ledger: %w", err)
	}
	err = withFD(l.lock, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("cannot lock the broker's ledger: another carrel-broker uses %s; stop it first: %w",
			l.dir.Name(), errdefs.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("cannot lock the broker's ledger: %w", err)
	}
	return nil
}

func (l *Ledger) open() (err error) {
	if err := l.takeLock(); err != nil {
		return err
	}
	// What a crash left of a compaction that had not come to its end.
	if err := withFD(l.dir, func(fd int) error { return unix.Unlinkat(fd, ledgerNew, 0) }); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove %s/%s: %w", l.dir.Name(), ledgerNew, err)
	}
	if l.file, err = openAt(l.dir, ledgerName, unix.O_RDWR|unix.O_CREAT|unix.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("cannot open the broker's ledger: %w", err)
	}
	if err := l.replay(); err != nil {
		return fmt.Errorf("cannot read the broker's ledger %s/%s: %w", l.dir.Name(), ledgerName, err)
	}
	least := diskreserve.Share(l.dir.Name(), ledgerRoom, ledgerPart)
	l.ahead = diskreserve.Ahead{Least: least, Step: least / 2}
	if fi, err := l.file.Stat(); err == nil {
		l.ahead.Has(fi)
	}
	_ = l.ahead.Keep(diskreserve.Of(l.file), l.size) // tried again with each line
	if err := l.openReserve(least); err != nil {
		return fmt.Errorf("cannot open the reserve of the broker's ledger: %w", err)
	}
	if l.size > compactAbove {
		l.compactAt = 2 * l.size
		if l.lines > 2*len(l.entries) {
			if err := l.compact(); err != nil && !diskreserve.Full(err) {
				return fmt.Errorf("cannot compact the broker's ledger: %w", err)
			}
		}
	}
	if l.audit, err = OpenCountersigner(l.dir); err != nil {
		return err
	}
	return syncFile(l.dir) // the files themselves may be new
}

// replay reads all lines and cuts off one that a crash tore.
func (l *Ledger) replay() error {
	in := bufio.NewReaderSize(l.file, maxLedgerLine+1)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			if len(line) > 0 {
				l.cut = string(line)
				if err := l.file.Truncate(l.size); err != nil {
					return err
				}
				return l.file.Sync()
			}
			return nil
		case err != nil:
			return fmt.Errorf("line %d: %w", l.lines+1, err)
		}
		l.lines++
		var x ledgerLine
		if err := strictjson.Unmarshal(line, &x); err != nil {
			return fmt.Errorf("line %d: %w; restore the ledger from a backup, or have \"carrel doctor --repair\" drop what cannot be read",
				l.lines, err)
		}
		if err := l.take(x); err != nil {
			return fmt.Errorf("line %d: %w", l.lines, err)
		}
		l.size += int64(len(line))
	}
}

// take applies one line to what is in memory.
func (l *Ledger) take(x ledgerLine) error {
	l.next = max(l.next, x.NextUID)
	if x.PaceMS > 0 {
		l.paced = time.UnixMilli(x.PaceMS)
	}
	if e := x.Workspace; e != nil {
		if !id.IsWorkspace(string(e.Name)) || e.IDs != workspace.IDsFrom(e.IDs.Executor) || e.IDs.Executor == 0 {
			return fmt.Errorf("it names workspace %q with ids %+v: %w", e.Name, e.IDs, errdefs.ErrDataLoss)
		}
		l.entries[e.Name] = *e
		l.order[e.Name] = l.lines
		// Ids of failed creates and destroyed workspaces count too: never reused.
		l.next = max(l.next, e.IDs.Agent+1)
	}
	return nil
}

// Put writes e and returns when it is on disk. After a failed write nothing more is accepted,
// because the content of the disk is unknown; a full disk is the exception.
func (l *Ledger) Put(e Entry) error { return l.append(ledgerLine{Workspace: &e}) }

func (l *Ledger) append(x ledgerLine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return fmt.Errorf("cannot write the broker's ledger: an earlier write failed: %w; see to the disk and restart the broker: %w",
			l.broken, errdefs.ErrUnavailable)
	}
	size, lines := l.size, l.lines
	_ = l.ahead.Keep(diskreserve.Of(l.file), size+maxLedgerLine) // if it is full, the line goes into what is held
	n, err := put(l.file, x)
	for diskreserve.Full(err) && l.file.Truncate(size) == nil && l.reserve.Give() {
		n, err = put(l.file, x)
	}
	l.lines, l.size = lines+1, size+n
	if err != nil {
		// On a full disk, what there was room for is cut off again, as after a crash. Then it
		// is known what is there, and the next line can be tried.
		l.broken = err
		if diskreserve.Full(err) && l.file.Truncate(size) == nil && syncFile(l.file) == nil {
			l.broken = nil
		}
		l.ahead.Reset()
		l.size, l.lines = size, lines
		return fmt.Errorf("cannot write the broker's ledger: %w: %w", full(err, l.dir.Name()), errdefs.ErrUnavailable)
	}
	crashpoint.Here("broker.ledger.written")
	if err := withFD(l.file, unix.Fdatasync); err != nil {
		l.broken = err
		return fmt.Errorf("cannot write the broker's ledger: %w: %w", err, errdefs.ErrUnavailable)
	}
	crashpoint.Here("broker.ledger.synced")
	_ = l.reserve.Room(context.Background())
	if l.size > l.compactAt {
		l.compactAt = math.MaxInt64
		l.compacts.Go(func() { _ = l.compact() }) // tried again when it has doubled
	}
	return l.take(x)
}

// openReserve opens the file that gives room where the file system cannot hold any behind the ledger's end.
func (l *Ledger) openReserve(bytes int64) error {
	f, err := openAt(l.dir, reserveName, unix.O_RDWR|unix.O_CREAT, 0o600)
	if diskreserve.Full(err) {
		return nil
	}
	if err == nil {
		l.reserve, err = diskreserve.NewReserve(f, bytes)
	}
	if err == nil && l.reserve == nil {
		err = removeAt(l.dir, reserveName)
	}
	_ = l.reserve.Room(context.Background()) // tried again with each line
	return err
}

func put(w io.Writer, x ledgerLine) (int64, error) {
	b, err := json.Marshal(x)
	if err != nil {
		return 0, err
	}
	if len(b) >= maxLedgerLine {
		return 0, fmt.Errorf("a line of %d bytes is too long", len(b))
	}
	n, err := w.Write(append(b, '\n'))
	return int64(n), err
}

func (l *Ledger) byOrder() []Entry {
	all := make([]Entry, 0, len(l.entries))
	for _, e := range l.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(l.order[a.Name], l.order[b.Name]) })
	return all
}

// Get returns the entry of name.
func (l *Ledger) Get(name id.Workspace) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[name]
	return e, ok
}

// All returns every entry that is not destroyed, by name.
func (l *Ledger) All() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Entry
	for _, e := range l.entries {
		if e.State != workspace.StateDestroyed {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Allocate begins the life of a workspace: it finds three ids at or above the next free
// one that free agrees to, and writes e with them in state creating. The ids are spent
// from then on, whatever becomes of the workspace. The settings have the range of the ids, how many
// workspaces may live, and how fast they may be made.
func (l *Ledger) Allocate(e Entry, s Settings, free func(workspace.IDs) (bool, error)) (Entry, error) {
	l.allocating.Lock()
	defer l.allocating.Unlock()
	now, pace := time.Now(), s.pace()
	l.mu.Lock()
	paced, next, living := pace.resume(l.paced, now), max(l.next, s.UIDFirst), 0
	for _, o := range l.entries {
		if o.State != workspace.StateDestroyed {
			living++
		}
	}
	l.mu.Unlock()
	if living >= s.MaxWorkspaces {
		return e, fmt.Errorf("cannot create %s: there are %d workspaces already (max_workspaces in the broker's settings); "+
			"destroy one first: %w", e.Name, living, errdefs.ErrResourceExhausted)
	}
	full, err := pace.take(paced, now)
	if err != nil {
		l.setPaced(full)
		return e, fmt.Errorf("cannot create %s: %w", e.Name, err)
	}
	end := uint64(s.endOfWorkspaces())
	if uint64(next) > end { // of before carrel-egress had ids for each workspace
		end = uint64(s.lastUID())
	}
	for ; uint64(next)+3 <= end; next += 3 {
		ids := workspace.IDsFrom(next)
		ok, err := free(ids)
		if err != nil {
			return e, err
		}
		if ok {
			e.IDs, e.State = ids, workspace.StateCreating
			if err := l.append(ledgerLine{PaceMS: max(full.UnixMilli(), 0), Workspace: &e}); err != nil {
				return e, err
			}
			l.setPaced(full) // also by the clock that a line cannot state
			return e, nil
		}
	}
	return e, fmt.Errorf("cannot create %s: every id from %d to %d has been used, and ids are never used again; "+
		"raise uid_count in the broker's settings: %w",
		e.Name, s.UIDFirst, end-1, errdefs.ErrResourceExhausted)
}

func (l *Ledger) setPaced(full time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paced = full
}

// Audit countersigns the audit log, with what is kept beside the ledger.
func (l *Ledger) Audit() *Countersigner { return l.audit }

// NextUID is the lowest id that was never given out.
func (l *Ledger) NextUID() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// Close closes the files and so releases the lock.
func (l *Ledger) Close() error {
	l.compacts.Wait()
	errs := []error{l.reserve.Close()}
	for _, f := range []*os.File{l.file, l.lock, l.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
