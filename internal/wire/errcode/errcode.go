// Package errcode is the one table between the error kinds that carrel uses
// inside (containerd/errdefs) and the codes that its public API speaks
// (Connect). The server reads it one way and the SDK the other.
//
// It must not look at an error's text.
package errcode

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
)

// The first row that matches decides, so a kind that wraps another stands first.
var table = []struct {
	kind error
	code connect.Code
}{
	{errdefs.ErrNotFound, connect.CodeNotFound},
	{errdefs.ErrAlreadyExists, connect.CodeAlreadyExists},
	{errdefs.ErrInvalidArgument, connect.CodeInvalidArgument},
	{errdefs.ErrOutOfRange, connect.CodeOutOfRange},
	{errdefs.ErrPermissionDenied, connect.CodePermissionDenied},
	{errdefs.ErrUnauthenticated, connect.CodeUnauthenticated},
	{errdefs.ErrFailedPrecondition, connect.CodeFailedPrecondition},
	{errdefs.ErrConflict, connect.CodeAborted},
	{errdefs.ErrAborted, connect.CodeAborted},
	{errdefs.ErrResourceExhausted, connect.CodeResourceExhausted},
	{errdefs.ErrUnavailable, connect.CodeUnavailable},
	{errdefs.ErrNotImplemented, connect.CodeUnimplemented},
	{errdefs.ErrDataLoss, connect.CodeDataLoss},
	{errdefs.ErrInternal, connect.CodeInternal},
}

// Code returns the wire code of err: that of its errdefs kind, of the context's
// errors, or of a Connect error that it wraps. Anything else is internal.
func Code(err error) connect.Code {
	for _, row := range table {
		if errors.Is(err, row.kind) {
			return row.code
		}
	}
	switch {
	case errdefs.IsDeadlineExceeded(err):
		return connect.CodeDeadlineExceeded
	case errdefs.IsCanceled(err):
		return connect.CodeCanceled
	}
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce.Code()
	}
	return connect.CodeInternal
}

// ToWire returns err as the API sends it, with the text that errtext.Text gives, as the
// code says the kind. It is nil for nil.
func ToWire(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	return connect.NewError(Code(err), errors.New(errtext.Text(err)))
}

// FromWire gives an error that came over the wire its errdefs kind back, so that
// errdefs.IsNotFound and its like hold, and drops the code from its text. Errors
// that are not Connect's pass unchanged.
func FromWire(err error) error {
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	return &wireError{ce: ce, kind: kindOf(ce.Code())}
}

func kindOf(c connect.Code) error {
	// Conflict and aborted share a code; aborted is what the wire means.
	if c == connect.CodeAborted {
		return errdefs.ErrAborted
	}
	for _, row := range table {
		if row.code == c {
			return row.kind
		}
	}
	switch c {
	case connect.CodeDeadlineExceeded:
		return context.DeadlineExceeded
	case connect.CodeCanceled:
		return context.Canceled
	default:
		return errdefs.ErrUnknown
	}
}

type wireError struct {
	ce   *connect.Error
	kind error
}

func (e *wireError) Error() string { return e.ce.Message() }

func (e *wireError) Unwrap() []error { return []error{e.ce, e.kind} }
