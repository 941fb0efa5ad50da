// Package errtext turns an error into text for a person or a peer.
//
// It must not decide what an error means: containerd/errdefs finds its kind.
package errtext

import (
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// kinds are the texts that wrapping with a kind appends.
var kinds = []error{
	errdefs.ErrUnknown, errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists,
	errdefs.ErrPermissionDenied, errdefs.ErrResourceExhausted, errdefs.ErrFailedPrecondition,
	errdefs.ErrConflict, errdefs.ErrNotModified, errdefs.ErrAborted, errdefs.ErrOutOfRange,
	errdefs.ErrNotImplemented, errdefs.ErrInternal, errdefs.ErrUnavailable, errdefs.ErrDataLoss,
	errdefs.ErrUnauthenticated,
}

// Text returns err's text without the names of kinds at its end: "cannot find x: there is none" and
// not "cannot find x: there is none: not found". The same words in other texts stay, as in the
// system's "open x: permission denied", and so does a kind that is the only explanation. For nil it
// returns "". Each of joined errors loses its own.
func Text(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if several, ok := err.(interface{ Unwrap() []error }); ok { // only what is joined on the outside
		var lines []string
		for _, e := range several.Unwrap() {
			lines = append(lines, e.Error())
		}
		if strings.Join(lines, "\n") == text { // errors.Join
			for i, e := range several.Unwrap() {
				lines[i] = Text(e)
			}
			return strings.Join(lines, "\n")
		}
	}
	for _, e := range slices.Backward(leaves(err)) {
		if !slices.Contains(kinds, e) {
			break
		}
		rest, ok := strings.CutSuffix(text, ": "+e.Error())
		if !ok || !strings.Contains(rest, ": ") {
			break
		}
		text = rest
	}
	return text
}

// leaves returns the errors in err's tree that wrap no other, in the order of its text.
func leaves(err error) []error {
	switch e := err.(type) { //nolint:errorlint // this is the walk itself
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return leaves(inner)
		}
	case interface{ Unwrap() []error }:
		var all []error
		for _, inner := range e.Unwrap() {
			all = append(all, leaves(inner)...)
		}
		return all
	}
	return []error{err}
}
