package changed

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind says why a person should look at a change.
type Kind string

// The kinds, in the order in which they are shown.
const (
	// Acted is a file that a program of the host acts on.
	Acted Kind = "acted"
	// Leads is a link that leads out of the tree.
	Leads Kind = "leads"
	// Special is a FIFO, a socket or a device, at which a program that reads it waits.
	Special Kind = "special"
	// Shared is a file with other names, which may be outside of the tree.
	Shared Kind = "shared"
	// Runs is a program or library that is run without a look, where git shows nothing: node_modules, a virtual environment.
	Runs Kind = "runs"
	// Built is another file where git usually shows nothing.
	Built Kind = "built"
	// Source is every other file.
	Source Kind = "source"
)

// Finding is one change with its kind.
type Finding struct {
	Entry

	Kind Kind
	// Reader and Trigger are those of Acted: which program acts, and when.
	Reader, Trigger string
}

// Reader says which program of the host acts on a path, and when.
type Reader func(path string) (reader, trigger string, ok bool)

// Classify sorts changes by what they may do on the host, and within a kind by path.
func Classify(list []Entry, reads Reader) []Finding {
	out := make([]Finding, 0, len(list))
	for _, e := range list {
		f := Finding{Entry: e}
		f.Reader, f.Trigger, f.Kind = classify(e, reads)
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(rank[a.Kind], rank[b.Kind]) })
	return out
}

var rank = map[Kind]int{Acted: 0, Leads: 1, Special: 2, Shared: 3, Runs: 4, Built: 5, Source: 6}

func classify(e Entry, reads Reader) (reader, trigger string, kind Kind) {
	if reader, trigger, ok := reads(e.Path); ok {
		return reader, trigger, Acted
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if leadsOut(e) {
			return "", "", Leads
		}
	case unix.S_IFREG:
		if e.Links > 1 {
			return "", "", Shared
		}
	default:
		return "", "", Special
	}
	at, ok := artefact(e.Path)
	switch {
	case !ok:
		return "", "", Source
	case at == "bin" || e.Mode&0o111 != 0 || strings.HasSuffix(e.Path, ".pth") || strings.HasSuffix(e.Path, ".so"):
		return "", "", Runs
	}
	return "", "", Built
}

// leadsOut reports whether a link leads out of the tree by its own text.
func leadsOut(e Entry) bool {
	return path.IsAbs(e.Target) || strings.HasPrefix(path.Join(path.Dir(e.Path), e.Target), "..")
}

// artefacts are directories of installed packages and of what is built, which projects have git ignore.
var artefacts = map[string]bool{
	"node_modules": true, ".venv": true, "venv": true, "site-packages": true, "__pycache__": true, ".tox": true, ".nox": true,
	"target": true, "build": true, "dist": true, "out": true, ".next": true, ".nuxt": true, ".gradle": true, ".terraform": true,
	".eggs": true, ".pytest_cache": true, ".mypy_cache": true, ".ruff_cache": true, ".turbo": true, ".cache": true, "vendor": true,
}

// artefact reports whether a path lies in one of those, and the name of the directory that it is in.
func artefact(p string) (in string, ok bool) {
	parts := strings.Split(p, "/")
	dirs := parts[:len(parts)-1]
	if !slices.ContainsFunc(dirs, func(d string) bool { return artefacts[d] }) {
		return "", false
	}
	return strings.TrimPrefix(dirs[len(dirs)-1], "."), true
}

// Bounds of the text.
const (
	lines = 8
	named = 3
)

// Text says in a few lines what a person should look at. visible makes a name safe to show. Source is not shown: git does.
func Text(all []Finding, visible func(string) string) (out []string) {
	say := func(f Finding, format string, a ...any) {
		out = append(out, visible(f.Path)+" "+fmt.Sprintf(format, a...))
	}
	rest := map[Kind][]string{}
	for _, f := range all {
		switch {
		case f.Kind == Source:
		case f.Kind == Acted && len(out) < lines/2:
			say(f, "is acted on by %s: %s", f.Reader, f.Trigger)
		default:
			rest[f.Kind] = append(rest[f.Kind], visible(f.Path))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(rest), func(a, b Kind) int { return cmp.Compare(rank[a], rank[b]) }) {
		out = append(out, fmt.Sprintf(texts[k], count(rest[k])))
	}
	return out
}

var texts = map[Kind]string{
	Acted:   "more that programs of the host act on: %s",
	Leads:   "links that lead out of the directory: %s",
	Special: "no files, so that a program that reads them may wait for ever: %s",
	Shared:  "files with other names, which were changed with them: %s",
	Runs:    "programs that git may not show: %s",
	Built:   "installed or built, and git may not show it: %s",
}

// count names the first few.
func count(paths []string) string {
	if n := len(paths) - named; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(paths[:named], ", "), n)
	}
	return strings.Join(paths, ", ")
}
