package turns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// choosable are the parts of a change of which a person may choose, nil if there are none: its parts must be all of it, and
// what the person is shown of each must be all that is shown.
func choosable(d *runtime.HostPatched) []runtime.PatchPart {
	var digests, paths, files, risks []string
	shown := 0
	for _, p := range d.Parts {
		if p.Path == "" || slices.Contains(paths, p.Path) || p.Shown <= 0 || p.Shown > len(d.Diff)-shown || len(p.Files) == 0 {
			return nil
		}
		digests, paths, shown = append(digests, p.Digest), append(paths, p.Path), shown+p.Shown
		files, risks = append(files, p.Files...), append(risks, p.Risks...)
	}
	if len(d.Parts) < 2 || shown != len(d.Diff) || operation.PatchDigest(digests) != d.Digest || !slices.Equal(files, d.Files) ||
		!slices.Equal(risks, d.Risks) {
		return nil
	}
	return d.Parts
}

// chooseFrom has a person be able to let a part of a plan through, that about some files of its patch.
func chooseFrom(op *operation.Plan, steps []step) {
	if len(steps) == 0 || steps[0].patch == nil || len(steps[0].patch.parts) == 0 {
		return
	}
	for _, p := range steps[0].patch.parts {
		op.Files = append(op.Files, p.Path)
	}
	whole := *op
	op.Part = func(files []string) (operation.Plan, error) {
		part, _, err := narrowed(whole, steps, files)
		return part, err
	}
}

// narrowed is the part of a plan that is about some files of its patch, with its steps. The others stay as they are; what comes
// behind the patch is the same. The digest of what is left follows from what was shown, and nothing is computed anew.
func narrowed(op operation.Plan, steps []step, files []string) (operation.Plan, []step, error) {
	first := steps[0]
	was := first.patch
	now := &patched{change: was.change}
	now.change.Only = nil
	var digests []string
	for _, p := range was.parts {
		if !slices.Contains(files, p.Path) {
			continue
		}
		digests, now.change.Only = append(digests, p.Digest), append(now.change.Only, p.Path)
		now.op.Files, now.op.Risks = append(now.op.Files, p.Files...), append(now.op.Risks, p.Risks...)
	}
	if len(digests) != len(files) || len(digests) == 0 {
		return op, nil, fmt.Errorf("cannot choose the files %s: name some of %s, each once: %w", strings.Join(files, ", "),
			strings.Join(op.Files, ", "), errdefs.ErrInvalidArgument)
	}
	now.op.Digest = operation.PatchDigest(digests)
	now.change.Digest = now.op.Digest
	first.patch = now
	first.shown.Command = fmt.Sprintf("change %d of %d files", len(digests), len(was.parts))
	first.shown.Diff = "" // it was shown
	j, err := first.look.Judge(now.op)
	if err != nil {
		return op, nil, err
	}
	first.shown.Level, first.shown.Risk = j.Level.String(), j.RiskScore
	if first.shown.Digest, err = operation.Same(now.op, first.on); err != nil {
		return op, nil, err
	}
	steps, op.Steps = slices.Clone(steps), slices.Clone(op.Steps)
	steps[0], op.Steps[0] = first, first.shown
	op.Files, op.Part = nil, nil
	return op, steps, nil
}

// chosen is what is left of a plan, with its steps, if a person chose some files of its change, and the files that they left out. Else
// it is the plan.
func (t *Turns) chosen(ctx context.Context, turn *Turn, a *gate.Admitted, op operation.Plan, steps []step) (
	operation.Plan, []step, []string, error,
) {
	files := a.Files()
	if len(files) == 0 {
		return op, steps, nil, nil
	}
	out := leftOut(op, files)
	part, left, err := narrowed(op, steps, files)
	if err != nil {
		return op, nil, nil, a.Deny(ctx, err)
	}
	digest, err := operation.Same(part, turn.On)
	if err != nil {
		return op, nil, nil, err
	}
	return part, left, out, turn.Note("part", partNote{op.Number, digest, files, out})
}

// partNote says which files of a plan's change a person chose.
type partNote struct {
	Plan   int    `json:"plan"`
	Digest string `json:"digest"`
	// Files are to be changed, and LeftOut stay as they are.
	Files   []string `json:"files"`
	LeftOut []string `json:"left_out"`
}

// leftOut are the files of a plan's change that are not among those that a person chose.
func leftOut(op operation.Plan, files []string) (out []string) {
	for _, f := range op.Files {
		if !slices.Contains(files, f) {
			out = append(out, f)
		}
	}
	return out
}
