package record

import (
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// FirstBytes returns the first limit bytes of list, the last string cut at a character if it
// does not fit.
func FirstBytes(list []string, limit int) []string {
	var out []string
	for _, s := range list {
		if limit <= 0 {
			break
		}
		s = ClipTo(s, limit)
		out = append(out, s)
		limit -= len(s) + 1
	}
	return out
}

func size(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s)
	}
	return n
}

// Clip cuts the text of an error for a record.
func Clip(s string) string { return ClipTo(s, MaxError) }

// ClipTo cuts s at limit bytes without splitting a character.
func ClipTo(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

var kinds = []struct {
	name string
	kind error
	is   func(error) bool
}{
	{"not_found", errdefs.ErrNotFound, errdefs.IsNotFound},
	{"already_exists", errdefs.ErrAlreadyExists, errdefs.IsAlreadyExists},
	{"invalid_argument", errdefs.ErrInvalidArgument, errdefs.IsInvalidArgument},
	{"permission_denied", errdefs.ErrPermissionDenied, errdefs.IsPermissionDenied},
	{"failed_precondition", errdefs.ErrFailedPrecondition, errdefs.IsFailedPrecondition},
	{"resource_exhausted", errdefs.ErrResourceExhausted, errdefs.IsResourceExhausted},
	{"unavailable", errdefs.ErrUnavailable, errdefs.IsUnavailable},
	{"aborted", errdefs.ErrAborted, errdefs.IsAborted},
	{"data_loss", errdefs.ErrDataLoss, errdefs.IsDataLoss},
	{"deadline_exceeded", nil, errdefs.IsDeadlineExceeded},
	{"canceled", nil, errdefs.IsCanceled},
	{"internal", errdefs.ErrInternal, errdefs.IsInternal},
}

// KindOf is the errdefs kind of an error in a record.
func KindOf(err error) string {
	for _, k := range kinds {
		if k.is(err) {
			return k.name
		}
	}
	return "unknown"
}

// KindNamed is the kind of error with that name, ErrInternal if there is none.
func KindNamed(name string) error {
	for _, k := range kinds {
		if k.name == name && k.kind != nil {
			return k.kind
		}
	}
	return errdefs.ErrInternal
}
