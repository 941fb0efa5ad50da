package staged

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Conflict is a path that another process changed.
type Conflict struct{ Path, Why string }

// ConflictError says why nothing was changed. It is of kind failed precondition.
type ConflictError struct {
	// What was not done: "apply the changes".
	What      string
	Conflicts []Conflict
}

// maxListed bounds the conflicts that a message names.
const maxListed = 10

func (e *ConflictError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot %s: other processes changed %d of the files, and nothing was done", e.What, len(e.Conflicts))
	for i, c := range e.Conflicts {
		if i == maxListed {
			b.WriteString("; and more")
			break
		}
		fmt.Fprintf(&b, "; %s: %s", quote(c.Path), c.Why)
	}
	return b.String() + "; leave them out, or change them by hand"
}

// Unwrap is the kind.
func (e *ConflictError) Unwrap() error { return errdefs.ErrFailedPrecondition }
