package record

import (
	"encoding/json"
	"errors"
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// maxSums bounds the sums that are kept between two flushes. What comes beyond is counted
// together, without a principal and a workspace.
const maxSums = 1024

// Sums counts the operations that get no record each, those that are refused for want of a budget or of
// room on the disk among them. The zero value is ready for use.
type Sums struct {
	mu sync.Mutex
	of map[looker]map[operation.Name]int64
}

// looker is who observed which workspace; no workspace if the operation has none.
type looker struct {
	principal, owner string
	workspace        id.Workspace
	// refused is why the operations were not done, where that is not recorded of each; "" of those
	// that were.
	refused string
}

// Why operations are refused and only counted.
const (
	TooMuch  = "too much is recorded of this owner"
	DiskFull = "the disk was full"
)

// Observed counts one operation of class observe.
func (w *Writer) Observed(r *operation.Request) {
	w.sums.count(looker{principal: r.By.String(), owner: OnBehalf(r.By), workspace: r.On.Workspace()}, r.Op.Op())
}

// Unrecorded counts one operation of an owner's that was refused and gets no record: why is TooMuch or
// DiskFull.
func (w *Writer) Unrecorded(owner string, op operation.Name, why string) {
	w.sums.count(looker{principal: owner, refused: why}, op)
}

func (s *Sums) count(l looker, op operation.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.of[l]
	if counts == nil && len(s.of) >= maxSums {
		l = looker{refused: l.refused}
		counts = s.of[l]
	}
	if counts == nil {
		if s.of == nil {
			s.of = make(map[looker]map[operation.Name]int64)
		}
		counts = make(map[operation.Name]int64, 1)
		s.of[l] = counts
	}
	counts[op]++
}

// FlushSums records what was observed since it was called last: one record for each principal
// and workspace. It does not wait for the disk.
func (w *Writer) FlushSums() error {
	w.sums.mu.Lock()
	of := w.sums.of
	w.sums.of = nil
	w.sums.mu.Unlock()
	var errs []error
	for l, counts := range of {
		data, _ := json.Marshal(counts) // names and numbers always marshal
		rec := audit.Record{
			Type: audit.Observed, Principal: l.principal, Owner: l.owner, Workspace: l.workspace, Status: audit.StatusOK, Data: data,
		}
		if l.refused != "" {
			rec.Status, rec.ErrorKind, rec.Error = audit.StatusDenied, "resource_exhausted", l.refused
		}
		errs = append(errs, w.to.AppendAsync(rec))
	}
	return errors.Join(errs...)
}
