package compose_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// parts are changes to files with these names, as a client says them.
func parts(names ...string) (d runtime.HostPatched) {
	var digests []string
	for _, n := range names {
		text := "update " + n + "  +1 −1\n-a\n+b\n"
		p := runtime.PatchPart{Path: n, Digest: "sha256:of-" + n, Shown: len(text), Files: []string{"/home/alice/" + n}}
		d.Diff += text
		d.Files = append(d.Files, p.Files...)
		d.Parts = append(d.Parts, p)
		digests = append(digests, p.Digest)
	}
	d.Digest = operation.PatchDigest(digests)
	return d
}

// choose answers a question for some files.
func (h *house) choose(a approval.View, files ...string) error {
	h.t.Helper()
	_, err := h.Answer(h.t.Context(), alice, a.ID, approval.Files, "", true, files...)
	return err
}

// Of a change to several files a person lets some through. What is made, covered and recorded is that smaller change with its
// own digest, and the agent is told what was left out. The answer is for nothing else.
func TestSomeFiles(t *testing.T) {
	h, told := proposing(t, judged, patchText("host"), patchText("host"))
	var made []runtime.HostPatch
	d := &hostsDouble{local: true, patch: func(p runtime.HostPatch) (runtime.HostPatched, error) {
		if p.Digest == "" {
			return parts("f", "g", "h"), nil
		}
		made = append(made, p)
		return runtime.HostPatched{Digest: p.Digest, ID: "u1"}, nil
	}}
	at := len(h.records())
	a := h.pendingOf(func() { h.turn(d) })
	if !slices.Equal(a.Files, []string{"f", "g", "h"}) {
		t.Errorf("one may choose from %q", a.Files)
	}
	for _, bad := range [][]string{nil, {"x"}, {"f", "x"}, {"f", "f"}, {"/home/alice/f"}} {
		if err := h.choose(a, bad...); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := h.Answer(t.Context(), bob, a.ID, approval.Files, "", true, "f"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob chose: %v", err)
	}
	if len(made) > 0 {
		t.Fatalf("made %+v", made)
	}
	if err := h.choose(a, "h", "f"); err != nil {
		t.Fatal(err)
	}
	r := next(t, told)
	want := operation.PatchDigest([]string{"sha256:of-f", "sha256:of-h"})
	if r.Outcome != "done" || !slices.Equal(r.LeftOut, []string{"g"}) {
		t.Errorf("told %+v", r)
	}
	if len(made) != 1 || made[0].Digest != want || !slices.Equal(made[0].Only, []string{"f", "h"}) {
		t.Errorf("made %+v", made)
	}
	var asked, answered, run, applied string
	for _, rec := range h.records()[at:] {
		action := string(rec.Action)
		switch {
		case rec.Type == audit.Request:
			asked = rec.ActionDigest
		case rec.Type == audit.Approval && strings.Contains(string(rec.Data), `"kind":"files"`):
			if answered = rec.ActionDigest; !strings.Contains(string(rec.Data), `"files":["h","f"],"whole":"`+asked) {
				t.Errorf("answered %s", rec.Data)
			}
		case rec.Type == audit.Intent && strings.Contains(action, "plan.run"):
			run = rec.ActionDigest
			if !strings.Contains(rec.Approval, string(a.ID)+" files by uid:") || !strings.Contains(action, "change 2 of 3 files") {
				t.Errorf("ran %s by %q", action, rec.Approval)
			}
		case rec.Type == audit.Intent && strings.Contains(action, "patch.apply"):
			if applied = action; !strings.HasPrefix(rec.Approval, string(a.ID)) {
				t.Errorf("made by %q", rec.Approval)
			}
		}
		if rec.Type == audit.Request && answered != "" {
			break
		}
	}
	if answered == "" || answered == asked || run != answered {
		t.Errorf("asked about %s, answered %s, ran %s", asked, answered, run)
	}
	if !strings.Contains(applied, want) || strings.Contains(applied, "/home/alice/g") {
		t.Errorf("made %s", applied)
	}
	// The next plan is the same and was not approved.
	b := h.pendingOf(func() {})
	if len(made) != 1 || b.ID == a.ID {
		t.Errorf("made %+v by the answer to another plan", made)
	}
	if _, err := h.StopTask(t.Context(), alice, "demo", id.Command(b.Subject.Thread)); err != nil {
		t.Fatal(err)
	}
	if err := h.choose(b, "f"); err == nil || len(made) != 1 {
		t.Errorf("a question is answered that nobody waits for: %v", err)
	}
}

// Nothing can be chosen of one file, of what does not add up to the whole, and of a client that says no parts.
func TestNothingToChoose(t *testing.T) {
	for name, spoil := range map[string]func(d *runtime.HostPatched){
		"one file":               func(d *runtime.HostPatched) { *d = parts("f") },
		"no parts":               func(d *runtime.HostPatched) { d.Parts = nil },
		"another digest":         func(d *runtime.HostPatched) { d.Parts[1].Digest = "sha256:other" },
		"a part that is missing": func(d *runtime.HostPatched) { d.Parts = d.Parts[:2] },
		"more than is shown":     func(d *runtime.HostPatched) { d.Parts[0].Shown++ },
		"nothing shown":          func(d *runtime.HostPatched) { d.Parts[0].Shown, d.Parts[1].Shown = 0, 2*d.Parts[1].Shown },
		"a file of another part": func(d *runtime.HostPatched) { d.Parts[0].Files, d.Parts[1].Files = d.Parts[1].Files, d.Parts[0].Files },
		"a name that is twice":   func(d *runtime.HostPatched) { d.Parts[1].Path = d.Parts[0].Path },
		"risks that are hidden":  func(d *runtime.HostPatched) { d.Risks = []string{"f: says what runs"} },
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := proposing(t, judged, patchText("host"))
			d := &hostsDouble{local: true, patch: func(p runtime.HostPatch) (runtime.HostPatched, error) {
				if p.Digest != "" {
					return runtime.HostPatched{}, errors.New("nothing was approved")
				}
				done := parts("f", "g", "h")
				spoil(&done)
				return done, nil
			}}
			a := h.pendingOf(func() { h.turn(d) })
			if len(a.Files) > 0 {
				t.Errorf("one may choose from %q", a.Files)
			}
			if err := h.choose(a, "f"); !errdefs.IsInvalidArgument(err) {
				t.Errorf("chosen: %v", err)
			}
			if err := h.answerAt(alice, a, approval.Deny, ""); err != nil {
				t.Error(err)
			}
			if got := fmt.Sprint(d.all()); got != "[patch]" {
				t.Errorf("ran %s", got)
			}
		})
	}
}
