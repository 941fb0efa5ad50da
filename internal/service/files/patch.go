package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/service/filerun"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const (
	// patchTime bounds a change to files, and mendTime what puts one right that was broken off.
	patchTime = 5 * time.Minute
	mendTime  = time.Minute
)

// Bounds of what the program says of a change: it runs in the workspace.
const (
	maxDiff  = 64 << 10
	maxParts = 128
	maxPaths = 128 << 10
	maxShort = 128
)

// Patch computes a change to files of the workspace that ref names, or makes it. r has who asks for it, the operation that it is
// and its trace; by that the gate judges it, and lets one be made that a plan's answer covers. The workspace is started if it
// does not run.
//
// A change that is broken off is finished or taken back before Patch returns, and the error says which. If the workspace has
// stopped, the next request about changes there does it.
func (f *Files) Patch(ctx context.Context, r operation.Request, ref string, want runtime.HostPatch) (out runtime.HostPatched, err error) {
	life := f.cfg.Lifecycle
	authorised, err := f.cfg.Gate.Authorise(ctx, r, func() (operation.Target, error) { return life.Find(ref) })
	if err != nil {
		return out, err
	}
	req := &fileapi.Request{
		Op: fileapi.Patch, Home: workspace.Home, Change: &fileapi.Change{Modes: want.Modes, Only: want.Only, Digest: want.Digest},
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patchTime, fmt.Errorf("cannot wait any longer: the change to files of workspace %s takes "+
		"more than %v: %w", authorised.On().Name, patchTime, errdefs.ErrUnavailable))
	defer cancel()
	res, err := f.carryOut(ctx, authorised, req, fileapi.Streams{},
		func(ctx context.Context, rt runtime.Runtime, p permit.Permit, r *fileapi.Request, _ fileapi.Streams) (fileapi.Result, error) {
			res, err := f.runner.Run(ctx, rt, p, r, fileapi.Streams{In: io.NopCloser(strings.NewReader(want.Text))})
			if err == nil || want.Digest == "" || errors.Is(err, runtime.ErrNotRunning) {
				return res, err
			}
			return res, f.mend(ctx, rt, p, err)
		})
	if err != nil {
		return out, err
	}
	return patchedOf(res.Patched, want.Digest)
}

// mend puts right what a change left that has failed, and returns why it failed with what became of it.
func (f *Files) mend(ctx context.Context, rt runtime.Runtime, p permit.Permit, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTime)
	defer cancel()
	res, err := f.runner.Run(ctx, rt, p, &fileapi.Request{Op: fileapi.Patches, Home: workspace.Home}, fileapi.Streams{})
	if err != nil {
		return fmt.Errorf("%w; what it had begun is finished or taken back by the next change there, or by \"carrel undo --on NAME\": %s",
			why, err.Error()) // which is not why: nothing may be tried anew because of it
	}
	for _, r := range res.Recovered {
		why = fmt.Errorf("%w; %s", why, filerun.Shown(r))
	}
	return why
}

// patchedOf is what the program says of a change, if it can be that.
func patchedOf(p *fileapi.Patched, digest string) (out runtime.HostPatched, err error) {
	if p == nil || p.Digest == "" || len(p.Digest) > maxShort || len(p.ID) > maxShort || len(p.Diff) > maxDiff || len(p.Parts) > maxParts ||
		digest != "" && p.Digest != digest || len(p.Merged) > maxParts || len(p.Made) > maxShort {
		return out, filerun.Unreadable(errors.New("it is none to a change of files"))
	}
	out = runtime.HostPatched{Digest: p.Digest, Diff: p.Diff, ID: p.ID, Merged: p.Merged, Made: p.Made}
	n := 0
	for _, part := range p.Parts {
		out.Parts = append(out.Parts, runtime.PatchPart(part))
		out.Files, out.Risks = append(out.Files, part.Files...), append(out.Risks, part.Risks...)
		n += len(part.Path)
	}
	for _, s := range slices.Concat(out.Files, out.Risks, out.Merged) {
		n += len(s)
	}
	if n > maxPaths {
		return runtime.HostPatched{}, filerun.Unreadable(errors.New("its paths are too long"))
	}
	return out, nil
}
