package record

import (
	"encoding/json"
	"errors"
	"sync"

	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
)

// maxSums bounds the sums that are kept between two flushes. What comes beyond is counted
// together, without a principal and a workspace.
const maxSums = 1024

// Sums counts the operations that get no record each. The zero value is ready for use.
type Sums struct {
	mu sync.Mutex
	of map[looker]map[operation.Name]int64
}

// looker is who observed which workspace; no workspace if the operation has none.
type looker struct {
	principal, owner string
	workspace        id.Workspace
}

// Observed counts one operation of class observe.
func (w *Writer) Observed(r *operation.Request) {
	l := looker{r.By.String(), OnBehalf(r.By), r.On.Name}
	s := &w.sums
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.of[l]
	if counts == nil && len(s.of) >= maxSums {
		l = looker{}
		counts = s.of[l]
	}
	if counts == nil {
		if s.of == nil {
			s.of = make(map[looker]map[operation.Name]int64)
		}
		counts = make(map[operation.Name]int64, 1)
		s.of[l] = counts
	}
	counts[r.Op.Op()]++
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
		errs = append(errs, w.to.AppendAsync(audit.Record{
			Type: audit.Observed, Principal: l.principal, Owner: l.owner, Workspace: l.workspace, Status: audit.StatusOK, Data: data,
		}))
	}
	return errors.Join(errs...)
}
