package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Evidence checks that each piece of evidence of a no_change answer occurs, to the letter, in one of the outputs of the
// turn's tools. An error of kind failed precondition names the first that does not; an answer of another type is an
// invalid argument, because it has no evidence.
func Evidence(a Answer, outputs []string) error {
	if a.Type != NoChangeType || a.NoChange == nil || len(a.NoChange.Evidence) == 0 {
		return fmt.Errorf("cannot check the evidence of an answer of type %.40q: only no_change has any: %w", a.Type, errdefs.ErrInvalidArgument)
	}
	for i, e := range a.NoChange.Evidence {
		if len(strings.TrimSpace(e)) < MinEvidence {
			return fmt.Errorf("cannot use the answer: evidence[%d] has fewer than %d bytes: %w", i, MinEvidence, errdefs.ErrInvalidArgument)
		}
		if !slices.ContainsFunc(outputs, func(o string) bool { return strings.Contains(o, e) }) {
			return fmt.Errorf("cannot use the answer: evidence[%d], %.80q, is in no output of this turn's tools; quote what a tool printed, "+
				"or answer with another type: %w", i, e, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
