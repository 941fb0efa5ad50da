package hostfiles

import (
	"slices"
	"strings"
)

// index finds the entries whose first part is a given one. Parts are folded.
type index struct {
	rules []rule
	// lengths has bit n of byte c where some first part begins with c and has n bytes: most parts of paths need no more.
	lengths [256]uint64
	plain   map[string][]int32
	// Patterns with a * by the first two bytes of what stands before it, or else the last two of what stands after it.
	starts, ends [256][]int32
}

// rule is an entry taken apart. before and after are of the last part: all of it, or what the * stands between.
type rule struct {
	Entry
	dirs          []string
	before, after string
	star          bool
}

// shortNames are those under which NTFS shows a listed name, as git refuses them (path.c, is_ntfs_dotgit).
var shortNames = []struct{ short, long string }{
	{"git~1", ".git"},
	{"gitmod~1", ".gitmodules"},
	{"gitmod~2", ".gitmodules"},
	{"gitmod~3", ".gitmodules"},
	{"gitmod~4", ".gitmodules"},
}

func newIndex(entries []Entry) *index {
	x := &index{plain: map[string][]int32{}}
	for _, e := range entries {
		x.add(newRule(e, e.Pattern))
		for _, s := range shortNames {
			if e.Pattern == s.long {
				x.add(newRule(e, s.short))
			}
		}
	}
	return x
}

func newRule(e Entry, pattern string) rule {
	dir, last := split(strings.ToLower(pattern))
	r := rule{Entry: e}
	if dir != "" {
		r.dirs = strings.Split(dir, "/")
	}
	r.before, r.after, r.star = strings.Cut(last, "*")
	return r
}

func (x *index) add(r rule) {
	n := int32(len(x.rules))
	x.rules = append(x.rules, r)
	switch {
	case len(r.dirs) > 0 || !r.star:
		first := slices.Concat(r.dirs, []string{r.before})[0]
		x.plain[first] = append(x.plain[first], n)
		x.lengths[first[0]] |= 1 << (len(first) & 63)
	case len(r.before) > 1:
		at := pair(r.before[0], r.before[1])
		x.starts[at] = append(x.starts[at], n)
	default:
		at := pair(r.after[len(r.after)-2], r.after[len(r.after)-1])
		x.ends[at] = append(x.ends[at], n)
	}
}

// pair is where index.starts and index.ends have what begins or ends with two bytes. Parse sees to it that there are two.
func pair(a, b byte) byte { return a<<3 ^ b }

// partBytes is room for a part of a path without an allocation: Linux has no longer names.
const partBytes = 256

// Match finds the entry that names a path or a directory above it. The path is relative to the top of a mount, clean, and has
// slashes. Where several do, it is the one about which carrel does most, and of those the uppermost. home says that the mount is a
// person's home directory.
func Match(path string, home bool) (Entry, bool) {
	table.Do(load)
	if r := table.index.match(path, home); r != nil {
		return r.Entry, true
	}
	return Entry{}, false
}

// Reads says which program of the host acts on a path, and when. What lies among installed packages is read by nobody.
func Reads(path string, home bool) (reader, trigger string, ok bool) {
	e, ok := Match(path, home)
	return e.Reader, e.Trigger, ok && !Within(path)
}

// Passed reports whether a directory is not looked through for listed names: git's own, and installed packages that are too many.
func Passed(dir string) bool {
	name := dir[strings.LastIndexByte(dir, '/')+1:]
	return name == "node_modules" || name == gitName
}

// installed reports whether a directory has what package clients install.
func installed(dir string) bool {
	switch dir[strings.LastIndexByte(dir, '/')+1:] {
	case ".venv", "venv", "site-packages":
		return true
	}
	return false
}

// Within reports whether a path lies among installed packages, whose names nobody reads there. Repositories are found by editors
// and prompts at any place but node_modules, which is too large to be looked through before each run.
func Within(p string) bool {
	for at := strings.LastIndexByte(p, '/'); at > 0; at = strings.LastIndexByte(p[:at], '/') {
		if dir := p[:at]; Passed(dir) || installed(dir) && p[strings.LastIndexByte(p, '/')+1:] != gitName {
			return true
		}
	}
	return false
}

const gitName = ".git"

func (x *index) match(path string, home bool) (best *rule) {
	room := [partBytes]byte{}
	for at := 0; at < len(path); {
		end := len(path)
		if i := strings.IndexByte(path[at:], '/'); i >= 0 {
			end = at + i
		}
		if name := fold(room[:0], path[at:end]); len(name) > 0 {
			best = x.better(best, name, path, at, end, home)
		}
		at = end + 1
	}
	return best
}

// better looks for a rule that names the part path[at:end], whose form is name, and is better than best.
func (x *index) better(best *rule, name []byte, path string, at, end int, home bool) *rule {
	if x.lengths[name[0]]&(1<<(len(name)&63)) != 0 {
		best = x.pick(best, x.plain[string(name)], name, path, at, end, home)
	}
	if len(name) > 1 {
		best = x.pick(best, x.starts[pair(name[0], name[1])], name, path, at, end, home)
		best = x.pick(best, x.ends[pair(name[len(name)-2], name[len(name)-1])], name, path, at, end, home)
	}
	return best
}

func (x *index) pick(best *rule, among []int32, name []byte, path string, at, end int, home bool) *rule {
	for _, i := range among {
		r := &x.rules[i]
		if at > 0 && !r.Any || r.Home && !home || r.Exact && path[at:end] != r.Pattern {
			continue
		}
		if best != nil && best.weight() >= r.weight() {
			continue
		}
		if len(r.dirs) == 0 && r.ends(name) || len(r.dirs) > 0 && r.follows(path[min(end+1, len(path)):]) {
			best = r
		}
	}
	return best
}

// follows reports whether a path continues, after the first part of the rule, as the rule does.
func (r *rule) follows(rest string) bool {
	room := [partBytes]byte{}
	for _, dir := range r.dirs[1:] {
		part, after, more := strings.Cut(rest, "/")
		if !more || string(fold(room[:0], part)) != dir {
			return false
		}
		rest = after
	}
	part, _, _ := strings.Cut(rest, "/")
	return r.ends(fold(room[:0], part))
}

// ends reports whether the last part of the rule is name.
func (r *rule) ends(name []byte) bool {
	if !r.star {
		return string(name) == r.before
	}
	return len(name) >= len(r.before)+len(r.after) && string(name[:len(r.before)]) == r.before &&
		string(name[len(name)-len(r.after):]) == r.after
}
