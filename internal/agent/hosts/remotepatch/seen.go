package remotepatch

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// What is kept of changes that are not made yet: how many, and the bytes of their files together.
const (
	maxSeen      = 16
	maxSeenTotal = 2 * maxTotal
)

// Seen are what files of hosts were when changes to them were computed, so that those can be merged. It keeps the newest in memory: where
// nothing is kept any more, a file that has changed is an error. The zero value is ready, and its methods may be called from any
// goroutine.
type Seen struct {
	mu  sync.Mutex
	all []seen
}

type seen struct {
	key   string
	files map[string]patch.Found
	size  int
}

// keyOf is the same for the request that computes a change and the one that makes it, or a part of it.
func keyOf(host string, w patch.Wanted) string {
	b, _ := json.Marshal([]any{host, w.Text, w.Modes}) // texts and numbers are always written, and a map in the order of its keys
	return string(b)
}

// keep keeps what the files are. What is too much beside it goes, the oldest first.
func (s *Seen) keep(host string, w patch.Wanted, files map[string]patch.Found) {
	if s == nil {
		return
	}
	one := seen{key: keyOf(host, w), files: files}
	one.size = len(one.key)
	for _, f := range files {
		one.size += len(f.Content)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(slices.DeleteFunc(s.all, func(x seen) bool { return x.key == one.key }), one)
	total := 0
	for i, x := range slices.Backward(s.all) {
		if total += x.size; total > maxSeenTotal || len(s.all)-i > maxSeen {
			s.all = slices.Clone(s.all[i+1:])
			return
		}
	}
}

// take returns what is kept of a change, and keeps it no longer; nil if it is not known.
func (s *Seen) take(host string, w patch.Wanted) map[string]patch.Found {
	if s == nil {
		return nil
	}
	key := keyOf(host, w)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.all {
		if x.key == key {
			s.all = slices.Delete(s.all, i, i+1)
			return x.files
		}
	}
	return nil
}
