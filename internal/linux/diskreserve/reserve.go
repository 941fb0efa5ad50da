package diskreserve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"
)

// giveAtOnce is what of a Reserve is given back in one step.
const giveAtOnce = 1 << 20

// Reserve is a file whose blocks are given back when there are no others, for a file system that cannot hold
// room inside other files. Somebody else may take them first: so they are given back in steps, each right
// before another attempt. A nil Reserve has nothing. Its methods may be called from any goroutine.
type Reserve struct {
	whole int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

// NewReserve takes over f, and makes it a reserve of so many bytes; nil if the file system can hold room inside
// other files. Then the caller removes the file.
func NewReserve(f *os.File, bytes int64) (*Reserve, error) {
	if err := Of(f)(0, 1); err == nil || Full(err) {
		return nil, f.Close()
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Reserve{whole: bytes, f: f, size: fi.Size()}, nil
}

// Room implements Holder: the reserve is filled again.
func (r *Reserve) Room(context.Context) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size >= r.whole {
		return nil
	}
	b := make([]byte, 256<<10)
	_, _ = rand.Read(b) // never fails; zeros might be kept as a hole
	for r.size < r.whole {
		n, err := r.f.WriteAt(b[:min(int64(len(b)), r.whole-r.size)], r.size)
		r.size += int64(n)
		if Full(err) {
			return fmt.Errorf("cannot fill %s again: %w: %w", r.f.Name(), err, errdefs.ErrResourceExhausted)
		}
		if err != nil {
			return fmt.Errorf("cannot fill %s again: %w", r.f.Name(), err)
		}
	}
	return r.f.Sync()
}

// Give gives a part back. false: there is none left.
func (r *Reserve) Give() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size == 0 {
		return false
	}
	next := max(0, r.size-giveAtOnce)
	if r.f.Truncate(next) != nil {
		return false
	}
	r.size = next
	return true
}

// Close closes the file, which stays.
func (r *Reserve) Close() error {
	if r == nil {
		return nil
	}
	return r.f.Close()
}
