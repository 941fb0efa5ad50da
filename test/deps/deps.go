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

// Upward returns the imports within this module that go to a higher tier, or to a
// package of the same tier that is not in the same family, and packages that stand in no tier. A
// family is a package and those below it, and what its entry names beside.
func (g Graph) Upward(tiers []Tier) []string {
	var bad []string
	for path, pkg := range g {
		name, ours := strings.CutPrefix(path, Module+"/")
		if !ours || !strings.HasPrefix(name, "internal/") {
			continue
		}
		own, ok := place(tiers, name)
		if !ok {
			bad = append(bad, path+": stands in no tier")
			continue
		}
		for _, imp := range pkg.Imports {
			other, ours := strings.CutPrefix(imp, Module+"/")
			if !ours || !strings.HasPrefix(other, "internal/") {
				continue
			}
			to, ok := place(tiers, other)
			if !ok {
				continue // reported as itself
			}
			switch {
			case to.Level < own.Level, to.Name == own.Name, slices.Contains(own.With, to.Name):
			default:
				bad = append(bad, fmt.Sprintf("%s (tier %d) imports %s (tier %d)", name, own.Level, other, to.Level))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// Tier places a package, and what is below it, on a level.
type Tier struct {
	Name  string
	Level int
	// With names packages of the same level that it may import.
	With []string
}

func place(tiers []Tier, name string) (Tier, bool) {
	best := -1
	for i, t := range tiers {
		if (name == t.Name || strings.HasPrefix(name, t.Name+"/")) && (best < 0 || len(t.Name) > len(tiers[best].Name)) {
			best = i
		}
	}
	if best < 0 {
		return Tier{}, false
	}
	return tiers[best], true
}
