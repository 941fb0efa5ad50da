package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// A change takes blocks in two places: in the write-ahead log, and later, when that is taken over, in
// the database. So that it needs none that others may have taken:
//
//   - the log is kept from one run to the next, and holds room behind its end for as much as SQLite puts
//     into one before it begins again at its start;
//   - the database has free pages, of a table that was filled and dropped;
//   - SQLite keeps its index of the log in memory (locking_mode=EXCLUSIVE): it would cut off and fill anew
//     a file at each start. No other process can read the database meanwhile.
const (
	// logRoom is for the 1000 pages after which SQLite takes a log over, and one large change.
	logRoom = 6 << 20
	// freeRoom is how much of the database is free pages.
	freeRoom = 1 << 20
	// roomEvery is how often Room looks at those.
	roomEvery = time.Minute
	// roomPart: on a small file system one part in so many is enough for each.
	roomPart = 64
)

// roomState is what Room knows.
type roomState struct {
	log    diskreserve.Ahead
	looked time.Time
	short  bool
}

// UseReserve has the store take room from a reserve, where the file system cannot hold any. It is called before
// anything else.
func (s *Store) UseReserve(r *diskreserve.Reserve) { s.reserve = r }

// keepLog has SQLite leave the write-ahead log where it is when the database is closed.
func (s *Store) keepLog(ctx context.Context) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Raw(func(driver any) error {
		d, ok := driver.(interface {
			FileControlPersistWAL(database string, mode int) (int, error)
		})
		if !ok {
			return fmt.Errorf("the driver cannot keep the write-ahead log: %w", errdefs.ErrNotImplemented)
		}
		_, err := d.FileControlPersistWAL("main", 1)
		return err
	})
}

// Room has the database hold room for the changes that are made while the disk is full. The error is
// resource_exhausted if there is none. It is cheap when nothing is missing.
func (s *Store) Room(ctx context.Context) error {
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot hold room for the database %s: %w", s.path, err)
	}
	defer give()
	now := time.Now()
	if !s.room.short && now.Sub(s.room.looked) < roomEvery {
		return nil
	}
	s.room.looked = now
	err = s.hold(ctx)
	s.room.short = err != nil
	if err != nil {
		return fmt.Errorf("cannot hold room for the database %s: %w", s.path, err)
	}
	return nil
}

func (s *Store) hold(ctx context.Context) error {
	// So that every page has its place in the database, and the log begins at its start.
	_ = s.takeOver(ctx)
	f, err := os.OpenFile(s.path+"-wal", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close() // SQLite has no lock on this one that closing it would give up
	if fi, err := f.Stat(); err == nil {
		s.room.log.Has(fi)
	}
	if err := s.room.log.Keep(diskreserve.Of(f), 0); err != nil {
		return full(fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted))
	}
	var pages, size int64
	if err := s.db.QueryRowContext(ctx, `SELECT (SELECT freelist_count FROM pragma_freelist_count), (SELECT page_size FROM pragma_page_size)`).
		Scan(&pages, &size); err != nil {
		return err
	}
	least := diskreserve.Share(filepath.Dir(s.path), freeRoom, roomPart)
	if pages*size >= least/2 {
		return nil
	}
	if err := full(errors.Join(s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS room (bytes BLOB)`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO room VALUES (zeroblob(?))`, least)
		return err
	}), s.exec(ctx, `DROP TABLE IF EXISTS room`))); err != nil {
		return err
	}
	return s.takeOver(ctx)
}

// takeOver has SQLite write what is in the write-ahead log into the database.
func (s *Store) takeOver(ctx context.Context) error {
	var busy, frames, taken int
	err := s.db.QueryRowContext(ctx, `PRAGMA wal_checkpoint(RESTART)`).Scan(&busy, &frames, &taken)
	if err == nil && busy != 0 {
		err = errdefs.ErrUnavailable // never: there is one connection
	}
	return full(err)
}

// inRoom makes a change, and again if it found no room in the write-ahead log, once SQLite has taken that over
// and begins it at its start.
func (s *Store) inRoom(change func() error) error {
	err := change()
	if code(err) != codeFull {
		return err
	}
	if s.takeOver(context.Background()) == nil {
		err = change()
	}
	for code(err) == codeFull && s.reserve.Give() {
		err = change()
	}
	return err
}
