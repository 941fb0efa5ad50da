package copies

import (
	"context"
	"hash/maphash"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/changed"
)

// How often Sync looks: each time when the copy has been the same for one interval it is applied. An interval is many times as long as
// the look took, so that large copies are looked at less often.
const (
	syncEvery   = 250 * time.Millisecond
	syncPatient = 10
	maxSync     = 1_000_000 // names
)

// Sync applies the source of a copy that commands write, as it changes, until the context ends. tell is told what was applied, and
// what could not be, once.
func (c *Copy) Sync(ctx context.Context, reads changed.Reader, tell func(Result, error)) {
	seed := maphash.MakeSeed()
	var applied, last uint64
	said := ""
	wait := syncEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := time.Now()
		now := c.mark(seed)
		if now != last || now == applied {
			last = now
			wait = max(syncEvery, syncPatient*time.Since(began))
			continue
		}
		r, err := c.apply(ctx, Options{}, reads, false)
		if applied = now; ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if len(r.Applied) > 0 || text != said && text != "" {
			tell(r, err)
		}
		said = text
		wait = max(syncEvery, syncPatient*time.Since(began))
	}
}

// mark is a number that is another one when something in the upper directory is.
func (c *Copy) mark(seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	n := 0
	_ = filepath.WalkDir(c.upper(), func(p string, _ fs.DirEntry, err error) error {
		if n++; err != nil || n > maxSync {
			return nil //nolint:nilerr // it is written meanwhile
		}
		var st unix.Stat_t
		if unix.Lstat(p, &st) == nil {
			h.WriteString(p)
			maphash.WriteComparable(&h, [3]int64{st.Ctim.Sec, st.Ctim.Nsec, st.Size})
		}
		return nil
	})
	return h.Sum64()
}
