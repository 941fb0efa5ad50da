package errtext_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
)

func TestText(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("plain"), "plain"},
		{fmt.Errorf("cannot find x: there is none: %w", errdefs.ErrNotFound), "cannot find x: there is none"},
		{fmt.Errorf("cannot a: cannot b: it is gone: %w: %w", errdefs.ErrUnavailable, errdefs.ErrUnavailable), "cannot a: cannot b: it is gone"},
		{fmt.Errorf("cannot find x: %w", errdefs.ErrNotFound), "cannot find x: not found"},
		{errdefs.ErrNotFound, "not found"},
		{
			errors.Join(fmt.Errorf("cannot a: it is gone: %w", errdefs.ErrNotFound), fmt.Errorf("cannot b: no: %w", errdefs.ErrAborted)),
			"cannot a: it is gone\ncannot b: no",
		},
		{errors.Join(errors.New("a: not found")), "a: not found"},
		{fmt.Errorf("it says not found"), "it says not found"},
		{fmt.Errorf("cannot a: %w", &fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}), "cannot a: open /x: permission denied"},
		{fmt.Errorf("cannot a: open /x: %w: %w", syscall.EACCES, errdefs.ErrPermissionDenied), "cannot a: open /x: permission denied"},
		{fmt.Errorf("cannot a: %w: %w", errdefs.ErrNotFound, syscall.EACCES), "cannot a: not found: permission denied"},
	} {
		if got := errtext.Text(tt.err); got != tt.want {
			t.Errorf("%v: %q, not %q", tt.err, got, tt.want)
		}
	}
}
