package errcode_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

func TestRoundTrip(t *testing.T) {
	for _, c := range []struct {
		err  error
		code connect.Code
		is   func(error) bool
	}{
		{errdefs.ErrNotFound, connect.CodeNotFound, errdefs.IsNotFound},
		{errdefs.ErrAlreadyExists, connect.CodeAlreadyExists, errdefs.IsAlreadyExists},
		{errdefs.ErrInvalidArgument, connect.CodeInvalidArgument, errdefs.IsInvalidArgument},
		{errdefs.ErrOutOfRange, connect.CodeOutOfRange, errdefs.IsOutOfRange},
		{errdefs.ErrPermissionDenied, connect.CodePermissionDenied, errdefs.IsPermissionDenied},
		{errdefs.ErrUnauthenticated, connect.CodeUnauthenticated, errdefs.IsUnauthorized},
		{errdefs.ErrFailedPrecondition, connect.CodeFailedPrecondition, errdefs.IsFailedPrecondition},
		{errdefs.ErrConflict, connect.CodeAborted, errdefs.IsAborted},
		{errdefs.ErrAborted, connect.CodeAborted, errdefs.IsAborted},
		{errdefs.ErrResourceExhausted, connect.CodeResourceExhausted, errdefs.IsResourceExhausted},
		{errdefs.ErrUnavailable, connect.CodeUnavailable, errdefs.IsUnavailable},
		{errdefs.ErrNotImplemented, connect.CodeUnimplemented, errdefs.IsNotImplemented},
		{errdefs.ErrDataLoss, connect.CodeDataLoss, errdefs.IsDataLoss},
		{errdefs.ErrInternal, connect.CodeInternal, errdefs.IsInternal},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded, errdefs.IsDeadlineExceeded},
		{context.Canceled, connect.CodeCanceled, errdefs.IsCanceled},
		{errors.New("no kind"), connect.CodeInternal, errdefs.IsInternal},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			in := fmt.Errorf("cannot do it: %w", c.err)
			wire := errcode.ToWire(in)
			if got := connect.CodeOf(wire); got != c.code {
				t.Errorf("code %v, want %v", got, c.code)
			}
			out := errcode.FromWire(wire)
			if !c.is(out) {
				t.Errorf("kind of %v is lost", out)
			}
			if out.Error() != in.Error() {
				t.Errorf("text %q, want %q", out, in)
			}
		})
	}
	if errcode.ToWire(nil) != nil || errcode.FromWire(nil) != nil {
		t.Error("nil does not stay nil")
	}
}
