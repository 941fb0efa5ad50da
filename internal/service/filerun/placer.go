package filerun

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// Placer keeps placeholders of secrets in files of workspaces. Program is as in Runner.
type Placer struct {
	Program func() (*os.File, error)
}

// most is how much of a file is looked at: one that has a placeholder and much else is somebody's own.
const most = workspace.MaxSecretFile + 1

// Place makes the file of a secret below the home, of mode 0600. One that has the placeholder already stays as it is.
//
// Errors: already_exists if something else is there, also a link.
func (x Placer) Place(ctx context.Context, rt runtime.Runtime, p permit.Permit, u workspace.SecretUse) error {
	mode := uint32(0o600)
	in := io.NopCloser(strings.NewReader(u.Content()))
	r := fileapi.Request{Op: fileapi.Write, Path: []byte(u.File), Mode: &mode, Parents: true, Keep: true}
	_, err := x.run(ctx, rt, p, r, fileapi.Streams{In: in})
	if !errdefs.IsAlreadyExists(err) {
		return err
	}
	have, rerr := x.read(ctx, rt, p, u.File)
	if rerr == nil && bytes.Contains(have, []byte(u.Placeholder)) {
		return nil
	}
	return fmt.Errorf("cannot make the file %q: something else is there, which is not overwritten; move it away, or choose another path: %w",
		u.File, errdefs.ErrAlreadyExists)
}

// Take removes the file of a secret if nothing else was written to it. One that is not there is no error.
//
// Errors: failed_precondition if something else is there.
func (x Placer) Take(ctx context.Context, rt runtime.Runtime, p permit.Permit, u workspace.SecretUse) error {
	have, err := x.read(ctx, rt, p, u.File)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !u.Wrote(have) {
		return fmt.Errorf("cannot remove the file %q: it has something else than what was written for the secret; remove it yourself: %w",
			u.File, errdefs.ErrFailedPrecondition)
	}
	_, err = x.run(ctx, rt, p, fileapi.Request{Op: fileapi.Remove, Path: []byte(u.File)}, fileapi.Streams{})
	return err
}

// read returns the bytes of a small regular file that is no link.
func (x Placer) read(ctx context.Context, rt runtime.Runtime, p permit.Permit, path string) ([]byte, error) {
	res, err := x.run(ctx, rt, p, fileapi.Request{Op: fileapi.Stat, Path: []byte(path)}, fileapi.Streams{})
	if err != nil {
		return nil, err
	}
	if res.File == nil || res.File.Type != "file" {
		return nil, fmt.Errorf("cannot use %q: it is no regular file: %w", path, errdefs.ErrFailedPrecondition)
	}
	var out bytes.Buffer
	_, err = x.run(ctx, rt, p, fileapi.Request{Op: fileapi.Read, Path: []byte(path), Length: most}, fileapi.Streams{Out: &out})
	return out.Bytes(), err
}

func (x Placer) run(
	ctx context.Context, rt runtime.Runtime, p permit.Permit, r fileapi.Request, s fileapi.Streams,
) (fileapi.Result, error) {
	r.Home = workspace.Home
	if err := r.Validate(); err != nil {
		return fileapi.Result{}, err
	}
	return Runner{Program: x.Program}.Run(ctx, rt, p, &r, s)
}
