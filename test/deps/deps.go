// Package deps says what is linked into what. It is for the tests beside it, which hold
// the tiers and the import lists of the privileged binaries; the linter sees direct
// imports only.
package deps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/carrel-dev/carrel"

// Package is what the go command tells of one.
type Package struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	GoFiles    []string
}

// Graph is packages by import path.
type Graph map[string]Package

// Load lists the packages that patterns name and all they link, as for the
// product's build: Linux, without cgo.
func Load(ctx context.Context, patterns ...string) (Graph, error) {
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,Standard,Imports,GoFiles"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list packages: %w: %s", err, stderr.String())
	}
	g := Graph{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read the list of packages: %w", err)
		}
		g[p.ImportPath] = p
	}
}

// Linked returns what is linked into root, and for each package the shortest way from
// root to it.
func (g Graph) Linked(root string) map[string][]string {
	way := map[string][]string{root: {root}}
	for queue := []string{root}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, imp := range g[at].Imports {
			if _, seen := way[imp]; !seen {
				way[imp] = append(slices.Clone(way[at]), imp)
				queue = append(queue, imp)
			}
		}
	}
	return way
}

// Rule is a package, or with a trailing slash that and all below it, and the reason why it is
// allowed or forbidden.
type Rule struct{ Path, Reason string }

// Matches reports whether the rule is about path.
func (r Rule) Matches(path string) bool {
	return path == strings.TrimSuffix(r.Path, "/") || strings.HasSuffix(r.Path, "/") && strings.HasPrefix(path, r.Path)
}

// Match returns the first rule about path.
func Match(rules []Rule, path string) (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Matches(path) })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// Outside returns what is linked into root and may not be, one line each: packages of
// this module and others that no rule of allowed names, and those of the standard
// library that forbidden names.
func (g Graph) Outside(root string, allowed, forbidden []Rule) []string {
	var bad []string
	for path, way := range g.Linked(root) {
		if path == root {
			continue
		}
		via := " (" + strings.Join(way, " → ") + ")"
		if g[path].Standard {
			if r, hit := Match(forbidden, path); hit {
				bad = append(bad, path+": "+r.Reason+via)
			}
			continue
		}
		if _, ok := Match(allowed, path); !ok {
			bad = append(bad, path+": not on the list"+via)
		}
	}
	slices.Sort(bad)
	return bad
}

// Unused returns the rules that nothing linked into root matches: a list that allows
// more than is used hides what comes next.
func (g Graph) Unused(root string, allowed []Rule) []string {
	linked := g.Linked(root)
	var idle []string
	for _, r := range allowed {
		used := false
		for path := range linked {
			used = used || r.Matches(path)
		}
		if !used {
			idle = append(idle, r.Path)
		}
	}
	return idle
}

// Importers returns the packages that import path directly.
func (g Graph) Importers(path string) []string {
	var by []string
	for p, pkg := range g {
		if slices.Contains(pkg.Imports, path) {
			by = append(by, p)
		}
	}
	slices.Sort(by)
	return by
}

// Row is a rule about what a room, a package with those below it, or sdk and cmd may import directly. All rows that
// are about a package hold for it.
type Row struct {
	// Path is below the module.
	Path string
	// Level is above 0 for a room: it imports itself and rooms of a lower level. A package of no room is a breach.
	Level int
	// Only, if there are any, are the rooms and packages of this module that it may import beside itself.
	Only []string
	// Not are packages that it may not import, of this module (internal/…) or not. With a slash at the end all below
	// are meant too.
	Not []string
	Why string
}

func within(path, of string) bool { return path == of || strings.HasPrefix(path, of+"/") }

// Breaches returns the imports within this module that a row forbids, and packages below internal that stand in no room.
func (g Graph) Breaches(rows []Row) []string {
	var bad []string
	for path, pkg := range g {
		name, ours := strings.CutPrefix(path, Module+"/")
		if !ours {
			continue
		}
		if _, ok := room(rows, name); !ok && within(name, "internal") {
			bad = append(bad, name+" stands in no room")
		}
		for _, r := range rows {
			if !within(name, r.Path) {
				continue
			}
			for _, imp := range pkg.Imports {
				if !r.allows(rows, imp) {
					bad = append(bad, fmt.Sprintf("%s imports %s: %s: %s", name, strings.TrimPrefix(imp, Module+"/"), r.Path, r.Why))
				}
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// Idle returns the rows that are about no package.
func (g Graph) Idle(rows []Row) []string {
	var idle []string
	for _, r := range rows {
		used := false
		for path := range g {
			used = used || within(path, Module+"/"+r.Path)
		}
		if !used {
			idle = append(idle, r.Path)
		}
	}
	return idle
}

// room returns the row of the room in which a package stands.
func room(rows []Row, name string) (Row, bool) {
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Level > 0 && within(name, r.Path) })
	if i < 0 {
		return Row{}, false
	}
	return rows[i], true
}

func (r Row) allows(rows []Row, imp string) bool {
	name, ours := strings.CutPrefix(imp, Module+"/")
	for _, n := range r.Not {
		if (Rule{Path: n}).Matches(name) {
			return false
		}
	}
	if !ours || within(name, r.Path) {
		return true
	}
	if to, ok := room(rows, name); ok && r.Level > 0 && to.Level >= r.Level {
		return false
	}
	return r.Only == nil || slices.ContainsFunc(r.Only, func(o string) bool { return within(name, o) })
}
