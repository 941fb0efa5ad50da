package patch

import (
	"context"
	"fmt"
	"path/filepath"
)

// maxDiff bounds what a person is shown of a change, in bytes.
const maxDiff = 32 << 10

// Wanted is a change that is to be computed, or made.
type Wanted struct {
	Text string
	// Modes are permission bits that files have afterwards, by the paths of the text.
	Modes map[string]uint32
	// Only are the paths of the text that are meant; none is all of it.
	Only []string
	// Digest is "" to compute what would be done. Otherwise the change is made if that is exactly what it does.
	Digest string
}

// Done is a change that was computed or made.
type Done struct {
	// Digest covers everything that is done, and Diff shows it to a person; it has no colours.
	Digest, Diff string
	// Parts are what is done to each file, in the order of Diff.
	Parts []Part
	// ID is what undoes a change that was made.
	ID string
	// Merged are the paths of files that had changed since the change was computed: it was made to what they are now. Made
	// is the digest of what was made then; else both are empty.
	Merged []string
	Made   string
}

// Part is what is done to one file.
type Part struct {
	// Path is what the text calls the file; of a move the old one.
	Path string
	// Digest covers what is done to it. Digest of the whole is made of those of the parts: see Prepared.Digest.
	Digest string
	// Shown is how many bytes of the diff show it.
	Shown int
	// Files are the absolute paths: of a move the old one and the new one. Risks say why it needs a second look.
	Files, Risks []string
}

// Do computes a change, or makes it if it is still exactly the one that was computed. A file that changed meanwhile is merged
// if what was shown of it is all still there: see Merge. dir is that of Apply, which is needed to make one; what the files are
// is kept there until then, for the merge. An error may come with the id of a change that was made all the same.
func Do(ctx context.Context, dir string, in Roots, w Wanted) (out Done, err error) {
	parsed, err := Parse([]byte(w.Text))
	if err != nil {
		return out, err
	}
	in.Modes = w.modes()
	whole, err := Read(ctx, in, parsed)
	ready := whole
	if err == nil && len(w.Only) > 0 {
		ready, err = whole.Only(w.Only...)
	}
	if w.Digest != "" && (err != nil || ready.Digest() != w.Digest) {
		if err == nil {
			err = fmt.Errorf("cannot change the files: one of them has changed since the plan was shown; propose it anew")
		}
		if ready, out.Merged, err = merged(ctx, dir, in, parsed, w, err); err == nil {
			out.Made = ready.Digest()
		}
	}
	if w.Digest != "" {
		defer forgetKept(dir, keptName(in, w))
	}
	if err != nil {
		return out, err
	}
	for _, f := range ready.Files() { // what undoes changes is not changed by one
		if isIn(dir, f.Place) || isIn(dir, f.ToPlace) {
			return out, fmt.Errorf("cannot change %s: it is where changes to files are kept", f.Path)
		}
	}
	if w.Digest == "" {
		if out, err = ready.Shown(); err == nil {
			whole.keep(dir, keptName(in, w))
		}
		return out, err
	}
	out.Digest = w.Digest
	out.ID, err = ready.Apply(ctx, dir)
	if err != nil && out.ID != "" { // the files are changed, and the cleaning up has failed
		if _, rerr := Recover(ctx, dir); rerr == nil {
			err = nil
		}
	}
	return out, err
}

// Shown is the change as a person is shown it. It is an error if it is more than a person reads.
func (p *Prepared) Shown() (out Done, err error) {
	out.Digest = p.Digest()
	if out.Diff, out.Parts = p.parts(); len(out.Diff) > maxDiff {
		return Done{}, fmt.Errorf("cannot show the change: it takes %d bytes, and at most %d are shown to a person; change less at once",
			len(out.Diff), maxDiff)
	}
	return out, nil
}

// isIn reports whether a place is in the directory of journals and backups.
func isIn(dir, place string) bool {
	rel, err := filepath.Rel(dir, place)
	return place != "" && err == nil && filepath.IsLocal(rel)
}

// parts are the diff and what is done to each file.
func (p *Prepared) parts() (diff string, all []Part) {
	d := &drawing{}
	for _, f := range p.files {
		before := d.b.Len()
		d.file(f)
		is := f.file()
		part := Part{Path: is.Path, Digest: f.digest(), Shown: d.b.Len() - before, Files: []string{is.Place}}
		if is.ToPlace != "" && is.ToPlace != is.Place {
			part.Files = append(part.Files, is.ToPlace)
		}
		for _, r := range is.Risks {
			part.Risks = append(part.Risks, is.Path+": "+r)
		}
		all = append(all, part)
	}
	return d.b.String(), all
}
