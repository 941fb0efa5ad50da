// Package store keeps what the daemon must not forget: which workspaces there
// are, whose they are, how far an operation on one had come, and which tokens
// were made. It is a SQLite
// database with one connection; every change is durable when its method returns.
//
// Callers take turns by the principal of their context (principal.NewContext), so that nobody waits for the many
// calls of another. No turn lasts while its caller uses what was read.
//
// Living workspaces are also held in memory, and lookups are answered from
// there: running a command does not touch the database.
//
// It must not decide anything, and it does not know what exists and runs: the broker's
// ledger does, and package lifecycle brings the two together at start-up.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Workspace is what is kept of a workspace.
type Workspace = workspace.Kept

// Store is the open database. Its methods may be called from any goroutine.
type Store struct {
	db   *sql.DB
	path string

	// A turn is held over each use of the database, and over a change of database and maps together, so that
	// they cannot part. mu guards the maps alone and is taken for writing only once the database has agreed,
	// so that a lookup waits for no disk.
	turns turns
	// decoding is a turn at the processor; see Decode.
	decoding turns
	room     roomState // of who has the turn
	reserve  *diskreserve.Reserve
	// clock tells the time, and last is the newest stamp, of who has the turn; see stamp.
	clock func() time.Time
	last  int64
	// beside is what each change keeps with it; value is nil for nothing.
	beside struct {
		name  string
		value func() string
	}

	mu     sync.RWMutex
	byName map[id.Workspace]Workspace // living ones
	byKey  map[id.Key]id.Workspace
	tokens map[string]principal.Issued // by id
}

// Result codes of SQLite (https://www.sqlite.org/rescode.html).
const (
	codeBusy       = 5
	codeFull       = 13
	codePrimaryKey = 1555
	codeUnique     = 2067
)

// code is the result code of an error of the driver's, 0 if it is none.
func code(err error) int {
	if e, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
		return e.Code()
	}
	return 0
}

// Open opens the database at path and brings its schema up to date; a missing
// one is made, with mode 0600. The program has to link package store/sqlite. A schema that is newer than this build is
// failed_precondition.
func Open(ctx context.Context, path string) (*Store, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot open the database %q: its path must be absolute: %w", path, errdefs.ErrInvalidArgument)
	}
	// SQLite gives its side files the mode of the database, so that is set first.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("cannot open the database: %w", err)
	}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		// The driver sorts them. Those that open the database come after locking_mode: see full.go.
		"_pragma": {
			"busy_timeout(5000)", "foreign_keys(1)", "locking_mode(EXCLUSIVE)", "main.cache_size(-1024)", "main.journal_mode(WAL)",
			"synchronous(FULL)",
		},
		"_txlock": {"immediate"},
	}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	s := &Store{
		db: db, path: path, clock: time.Now, byName: make(map[id.Workspace]Workspace), byKey: make(map[id.Key]id.Workspace),
		tokens: make(map[string]principal.Issued),
	}
	held := diskreserve.Share(filepath.Dir(path), logRoom, roomPart)
	s.room.log = diskreserve.Ahead{Least: held}
	if err = s.keepLog(ctx); err == nil {
		err = migrate(ctx, db, migrations)
	}
	if err == nil {
		err = full(s.load(ctx))
	}
	if code(err) == codeBusy {
		err = fmt.Errorf("another process has it open; a second carreld with the same data directory? end that one first: %w: %w", err,
			errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the database %s: %w", path, err), db.Close())
	}
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("cannot close the database: %w", err)
	}
	return nil
}

func (s *Store) load(ctx context.Context) error {
	rows, err := s.db.QueryContext(ctx, `SELECT `+workspaceColumns+` FROM workspaces WHERE phase <> 'destroyed'`)
	if err != nil {
		return fmt.Errorf("cannot read the workspaces: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		w, err := scanWorkspace(rows.Scan)
		if err != nil {
			return err
		}
		s.byName[w.Name], s.byKey[w.Key] = w, w.Name
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("cannot read the workspaces: %w", err)
	}
	_ = rows.Close()
	if err := s.db.QueryRowContext(ctx, `SELECT max((SELECT ifnull(max(changed_ns), 0) FROM workspaces), (SELECT ifnull(max(began_ns), 0)
			FROM requests))`).Scan(&s.last); err != nil {
		return fmt.Errorf("cannot read when the database was changed last: %w", err)
	}
	return s.loadTokens(ctx)
}

// stamp is the time in Unix nanoseconds, or just after the last stamp if the host's clock
// has been set back since: what came later must not seem to have come before. The caller has
// the turn.
func (s *Store) stamp() int64 {
	s.last = max(s.clock().UnixNano(), s.last+1)
	return s.last
}

// ByName returns the living workspace with that name.
func (s *Store) ByName(name id.Workspace) (Workspace, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w, ok := s.byName[name]
	return w, ok
}

// ByKey returns the living workspace with that key.
func (s *Store) ByKey(key id.Key) (Workspace, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	name, ok := s.byKey[key]
	return s.byName[name], ok
}

// Workspaces returns the living workspaces by name.
func (s *Store) Workspaces() []Workspace {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.byName), func(a, b Workspace) int { return strings.Compare(string(a.Name), string(b.Name)) })
}

// Each calls f with every living workspace, in no order. f must not change it or call the
// store.
func (s *Store) Each(f func(*Workspace)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, w := range s.byName {
		f(&w)
	}
}

// Due returns the living workspaces for which f is true, in no order.
func (s *Store) Due(f func(*Workspace) bool) []Workspace {
	var due []Workspace
	s.Each(func(w *Workspace) {
		if f(w) {
			due = append(due, *w)
		}
	})
	return due
}

// Len returns how many workspaces live.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byName)
}

// FreeSuffix returns a number that no name derived from key with this prefix
// has ever had, living or destroyed; see id.Derive.
func (s *Store) FreeSuffix(ctx context.Context, prefix string, key id.Key) (int, error) {
	give, err := s.turn(ctx)
	if err != nil {
		return 0, fmt.Errorf("cannot look for a free name: %w", err)
	}
	defer give()
	base := string(id.Derive(prefix, key, 0))
	// '.' is the character after '-'.
	rows, err := s.db.QueryContext(ctx, `SELECT name FROM workspaces WHERE name = ? OR (name > ? AND name < ?)`, base, base+"-", base+".")
	if err != nil {
		return 0, fmt.Errorf("cannot look for a free name: %w", err)
	}
	defer rows.Close()
	free := 0
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return 0, fmt.Errorf("cannot look for a free name: %w", err)
		}
		n, _ := strconv.Atoi(strings.TrimPrefix(strings.TrimPrefix(name, base), "-")) // none is 0
		free = max(free, n+1)
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("cannot look for a free name: %w", err)
	}
	return free, nil
}

// Insert adds a workspace, and notes that it is what the requests act on that ask for it.
// already_exists: its name was used before, or its key belongs to a living one. may, unless it is nil, says
// first whether it may live; nothing else is inserted meanwhile.
func (s *Store) Insert(ctx context.Context, w Workspace, may func() error, by ...RequestID) error {
	x, err := texts(w)
	if err != nil {
		return fmt.Errorf("cannot store workspace %s: %w", w.Name, err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot store workspace %s: %w", w.Name, err)
	}
	defer give()
	if may != nil {
		if err := may(); err != nil {
			return err
		}
	}
	now := w.CreatedAt.UnixNano()
	changed := s.stamp()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO workspaces (name, key, owner, root, boundary, profile, limits, phase, purge, expires_ns,
				idle_ns, created_ns, changed_ns, reach, secrets, models, one_use)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			w.Name, w.Key, w.Owner, w.Root, w.Boundary, w.Profile, x.limits, w.Phase, w.Purge, nanos(w.Expires), int64(w.Idle), now,
			changed, x.reach, x.secrets, x.models, w.OneUse); err != nil {
			return err
		}
		for _, r := range by {
			if _, err := tx.ExecContext(ctx, `UPDATE requests SET own = ? WHERE principal = ? AND id = ?`, w.Name, r.Principal, r.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if conflict(err) {
		return fmt.Errorf("cannot store workspace %s: its name or key is taken: %w", w.Name, errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return fmt.Errorf("cannot store workspace %s: %w", w.Name, err)
	}
	w.CreatedAt, w.Expires = time.Unix(0, now), timeOf(nanos(w.Expires))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[w.Name], s.byKey[w.Key] = w, w.Name
	return nil
}

// exec makes one change, to the end: cut off by ctx in the middle, it would leave
// open whether the database took it. The caller has the turn.
func (s *Store) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.execCounted(ctx, query, args...)
	return err
}

// change is exec in a turn of its own.
func (s *Store) change(ctx context.Context, query string, args ...any) error {
	return s.inTurn(ctx, func() error { return s.exec(ctx, query, args...) })
}

// execCounted is exec, and tells how many rows it changed.
func (s *Store) execCounted(ctx context.Context, query string, args ...any) (n int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	ctx = context.WithoutCancel(ctx)
	err = s.inRoom(func() error {
		return s.tx(ctx, func(tx *sql.Tx) error {
			done, err := tx.ExecContext(ctx, query, args...)
			if err == nil {
				n, err = done.RowsAffected()
			}
			return err
		})
	})
	return n, err
}

// full says of an error that it is for want of space.
func full(err error) error {
	if code(err) == codeFull {
		return fmt.Errorf("%w: no space left on its file system; see with df -h and df -i what is full, free some and try again: %w", err,
			errdefs.ErrResourceExhausted)
	}
	return err
}

func conflict(err error) bool {
	c := code(err)
	return c == codePrimaryKey || c == codeUnique
}

// SetPhase moves a living workspace to a phase other than destroyed. not_found: no such
// workspace lives.
func (s *Store) SetPhase(ctx context.Context, name id.Workspace, phase workspace.Phase) error {
	return s.Update(ctx, name, func(w *Workspace) { w.Phase = phase })
}

// SetDestroying notes that destroying began and whether the home goes with it.
func (s *Store) SetDestroying(ctx context.Context, name id.Workspace, purge bool) error {
	return s.Update(ctx, name, func(w *Workspace) { w.Phase, w.Purge = workspace.Destroying, purge })
}

// SetDestroyed ends the life of a workspace: its key is free, its name is not.
// retained is where the home was kept, or "".
func (s *Store) SetDestroyed(ctx context.Context, name id.Workspace, retained string) error {
	return s.update(ctx, name, func(w *Workspace) { w.Phase = workspace.Destroyed }, retained)
}

// Update changes key, limits, rules of the network, phase, purge or lifetime of a living workspace.
// already_exists: the key belongs to another one.
func (s *Store) Update(ctx context.Context, name id.Workspace, change func(*Workspace)) error {
	return s.update(ctx, name, change, "")
}

// Delete removes a workspace that was never made, as if it had not been begun.
func (s *Store) Delete(ctx context.Context, name id.Workspace) error {
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot remove workspace %s from the database: %w", name, err)
	}
	defer give()
	w, ok := s.ByName(name)
	if !ok {
		return nil
	}
	if err := s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE requests SET own = '' WHERE own = ? AND answer = ''`, name); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM workspaces WHERE name = ?`, name)
		return err
	}); err != nil {
		return fmt.Errorf("cannot remove workspace %s from the database: %w", name, err)
	}
	s.forget(w)
	return nil
}

func (s *Store) update(ctx context.Context, name id.Workspace, change func(*Workspace), retained string) error {
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot change workspace %s: %w", name, err)
	}
	defer give()
	w, ok := s.ByName(name)
	if !ok {
		return fmt.Errorf("cannot change workspace %s: it is not there: %w", name, errdefs.ErrNotFound)
	}
	before := w
	change(&w)
	if reflect.DeepEqual(w, before) {
		return nil
	}
	x, err := texts(w)
	if err == nil {
		err = s.exec(ctx, `UPDATE workspaces SET key = ?, limits = ?, phase = ?, purge = ?, retained = ?, expires_ns = ?, idle_ns = ?,
			changed_ns = ?, reach = ?, secrets = ?, models = ?
			WHERE name = ?`,
			w.Key, x.limits, w.Phase, w.Purge, retained, nanos(w.Expires), int64(w.Idle), s.stamp(), x.reach, x.secrets, x.models, name)
	}
	if conflict(err) {
		return fmt.Errorf("cannot give workspace %s the key %q: another workspace has it: %w", name, w.Key, errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return fmt.Errorf("cannot change workspace %s to %s: %w", name, w.Phase, err)
	}
	w.Expires = timeOf(nanos(w.Expires))
	if w.Phase == workspace.Destroyed {
		s.forget(w)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, before.Key)
	s.byName[name], s.byKey[w.Key] = w, name
	return nil
}

func (s *Store) forget(w Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, w.Name)
	delete(s.byKey, w.Key)
}
