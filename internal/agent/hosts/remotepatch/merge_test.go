package remotepatch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/hosts/remotepatch"
	"github.com/carrel-dev/carrel/internal/files/patch"
)

// twoFiles changes line 10 of f, and line 10 of g.
const twoFiles = "--- a/f\n+++ b/f\n@@ -9,3 +9,3 @@\n line 9\n-line 10\n+LINE 10\n line 11\n" +
	"--- a/g\n+++ b/g\n@@ -9,3 +9,3 @@\n line 9\n-line 10\n+LINE 10\n line 11\n"

func twentyLines() string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}

// A file that changed elsewhere since the change was shown is merged as on this machine: the same lines, further down, and all of it can be
// undone. A line that was shown, another mode, another host, or what is not known any more refuses the change of all files.
func TestMerge(t *testing.T) {
	text := twentyLines()
	changed := func(old, now string) string { return strings.Replace(text, old, now, 1) }
	const top = "# a new head\n"
	for name, x := range map[string]struct {
		// f is what the file is by then, "" for gone. others is what else happens.
		f      string
		others func(h *host)
		only   []string
		want   string // of f; "" if nothing is changed
		g      bool   // that g is changed
	}{
		"as it was":             {text, nil, nil, changed("line 10", "LINE 10"), true},
		"further down":          {top + text, nil, nil, top + changed("line 10", "LINE 10"), true},
		"further down, in part": {top + text, nil, []string{"f"}, top + changed("line 10", "LINE 10"), false},
		"a line behind": {
			changed("line 20", "LAST"), nil, nil, strings.Replace(changed("line 10", "LINE 10"), "line 20", "LAST", 1), true,
		},
		"a line that was shown": {changed("line 8\n", "if debug {\n"), nil, nil, "", false},
		"the line itself":       {changed("line 10", "line ten"), nil, nil, "", false},
		"twice there":           {text + text, nil, nil, "", false},
		"gone":                  {"", nil, nil, "", false},
		"nothing is kept":       {top + text, func(h *host) { h.seen = nil }, nil, "", false},
		"too much was kept since": {top + text, func(h *host) {
			for i := range 16 {
				h.put("other", fmt.Sprint("a\n", i), 0o644)
				_, err := h.do(fmt.Sprintf("--- a/other\n+++ b/other\n@@ -1 +1 @@\n-a\n+b%d\n", i), "")
				must(h.t, err)
			}
		}, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, shells(t)[0])
			h.seen = &remotepatch.Seen{}
			h.put("f", text, 0o640)
			h.put("g", text, 0o644)
			h.put("run", "x", 0o644) // whose mode changes too
			shown, err := h.do(twoFiles, "")
			must(t, err)
			digest := shown.Digest
			if x.only != nil {
				part, err := h.do(twoFiles, "", x.only...)
				must(t, err)
				digest = part.Digest
			}
			if x.f != "" {
				h.put("f", x.f, 0o640)
			} else {
				h.rm("f")
			}
			if x.others != nil {
				x.others(h)
			}
			before := h.files()
			made, err := h.do(twoFiles, digest, x.only...)
			if x.want == "" {
				if err == nil || !strings.Contains(err.Error(), "changed since the plan was shown") || h.files() != before {
					t.Errorf("%v: %s", err, h.files())
				}
				return
			}
			must(t, err)
			after := h.files()
			if !strings.Contains(after, fmt.Sprintf("f -rw-r----- %q", x.want)) ||
				strings.Contains(after, fmt.Sprintf("g -rw-r--r-- %q", text)) == x.g {
				t.Error(after)
			}
			if merged := x.f != text; merged != (len(made.Merged) == 1 && made.Merged[0] == "f") ||
				merged != (made.Made != "" && made.Made != digest) || made.Digest != digest {
				t.Errorf("%+v", made)
			}
			if _, err := remotepatch.Undo(t.Context(), h.run, made.ID); err != nil || h.files() != before {
				t.Errorf("undone: %v: %s", err, h.files())
			}
			// What was made is kept no longer.
			if _, err := h.do(twoFiles, strings.Replace(digest, "sha256:", "sha256:0", 1), x.only...); err == nil {
				t.Error("another digest is taken")
			}
		})
	}
}

// What a host's files were is no base for those of another host.
func TestMergeOfAnotherHost(t *testing.T) {
	h := newHost(t, shells(t)[0])
	h.seen = &remotepatch.Seen{}
	for _, f := range []string{"f", "g"} {
		h.put(f, twentyLines(), 0o644)
	}
	w := patch.Wanted{Text: twoFiles}
	shown, err := remotepatch.Do(t.Context(), h.run, h.seen, "a", w)
	must(t, err)
	h.put("f", "# a new head\n"+twentyLines(), 0o644)
	before := h.files()
	w.Digest = "sha256:" + strings.Repeat("0", 64)
	if _, err := remotepatch.Do(t.Context(), h.run, h.seen, "a", w); err == nil || h.files() != before {
		t.Errorf("made by another digest: %v", err)
	}
	h.put("f", twentyLines(), 0o644)
	w.Digest = ""
	_, err = remotepatch.Do(t.Context(), h.run, h.seen, "a", w)
	must(t, err)
	h.put("f", "# a new head\n"+twentyLines(), 0o644)
	w.Digest = shown.Digest
	if _, err := remotepatch.Do(t.Context(), h.run, h.seen, "b", w); err == nil || h.files() != before {
		t.Errorf("made on another host: %v", err)
	}
	if _, err := remotepatch.Do(t.Context(), h.run, h.seen, "a", w); err != nil || h.files() == before {
		t.Errorf("not made: %v", err)
	}
}
