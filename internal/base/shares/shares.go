// Package shares divides what a process has only so much of, such as descriptors or memory, among owners: each may hold so
// much, and all together so much. An owner who holds nothing gets a first piece also when the others hold everything, so
// that nobody keeps anybody else out.
//
// It must not know what is counted, and not say what was refused.
package shares

import (
	"context"
	"sync"
)

// Book counts what owners hold. Its methods may be called from any goroutine.
type Book struct {
	owner, all, first int64

	mu    sync.Mutex
	held  map[string]int64
	sum   int64
	freed chan struct{} // closed by the next Give, if somebody waits
}

// New returns a Book in which an owner may hold so much, all together so much, and one who holds nothing always first.
func New(owner, all, first int64) *Book {
	return &Book{owner: owner, all: all, first: first, held: map[string]int64{}}
}

// Take reports whether an owner may hold n more, and counts them if so. Give gives them back.
func (b *Book) Take(owner string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take(owner, n)
}

func (b *Book) take(owner string, n int64) bool {
	has := b.held[owner]
	alone := has == 0 && n <= b.first
	if !alone && (has+n > b.owner || b.sum+n > b.all) {
		return false
	}
	if n != 0 {
		b.held[owner] = has + n
		b.sum += n
	}
	return true
}

// Wait waits until an owner may hold n more, and counts them. The error is the cause of ctx. It returns false at once if
// that can never be.
func (b *Book) Wait(ctx context.Context, owner string, n int64) (bool, error) {
	for {
		b.mu.Lock()
		if b.take(owner, n) {
			b.mu.Unlock()
			return true, nil
		}
		if n > max(b.owner, b.first) {
			b.mu.Unlock()
			return false, nil
		}
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// Give gives n of an owner's back.
func (b *Book) Give(owner string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sum -= n
	if b.held[owner] -= n; b.held[owner] == 0 {
		delete(b.held, owner)
	}
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// Held is how much an owner holds.
func (b *Book) Held(owner string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[owner]
}

// Bounds are how much an owner may hold, and all together.
func (b *Book) Bounds() (owner, all int64) { return b.owner, b.all }
