// Package fault turns an error into the sentence that a person or a peer is given.
//
// It must not decide what an error means: its kind is found by containerd/errdefs.
package fault

import (
	"strings"

	"github.com/containerd/errdefs"
)

// kinds are the texts that wrapping with a kind appends.
var kinds = []string{
	errdefs.ErrUnknown.Error(), errdefs.ErrInvalidArgument.Error(), errdefs.ErrNotFound.Error(), errdefs.ErrAlreadyExists.Error(),
	errdefs.ErrPermissionDenied.Error(), errdefs.ErrResourceExhausted.Error(), errdefs.ErrFailedPrecondition.Error(),
	errdefs.ErrConflict.Error(), errdefs.ErrNotModified.Error(), errdefs.ErrAborted.Error(), errdefs.ErrOutOfRange.Error(),
	errdefs.ErrNotImplemented.Error(), errdefs.ErrInternal.Error(), errdefs.ErrUnavailable.Error(), errdefs.ErrDataLoss.Error(),
	errdefs.ErrUnauthenticated.Error(),
}

// Text is err's text without the names of kinds at its end: "cannot find x: there is
// none" and not "cannot find x: there is none: not found". A text that says nothing
// else is kept. It is "" for nil.
func Text(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for again := true; again; {
		again = false
		for _, k := range kinds {
			if rest, ok := strings.CutSuffix(text, ": "+k); ok && strings.Contains(rest, ": ") {
				text, again = rest, true
			}
		}
	}
	return text
}
