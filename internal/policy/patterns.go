package policy

import (
	"path"
	"slices"
	"strings"
)

// pathPattern is a pattern split at its slashes. A "**" stands for any number of parts,
// other parts are patterns of path.Match.
type pathPattern []string

// splitPattern splits a pattern. One below a home matches wherever a directory may be a
// home, since whose home it is does not change what the file is.
func splitPattern(p string) (pathPattern, bool) {
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		p = "**/" + rest
	}
	if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "**/") {
		return nil, false
	}
	parts := strings.Split(strings.TrimPrefix(p, "/"), "/")
	for _, part := range parts {
		if _, err := path.Match(part, ""); err != nil || part == "" {
			return nil, false
		}
	}
	return parts, true
}

// key is the part, or else the ending, that each path has which the pattern matches.
func (p pathPattern) key() (part, ending string) {
	for _, s := range p {
		if !strings.ContainsAny(s, `*?[\`) && (part == "" || len(s) > len(part)) {
			part = s
		}
	}
	if ext, ok := strings.CutPrefix(p[len(p)-1], "*."); ok && part == "" && len(p) == 2 && !strings.ContainsAny(ext, "*?[.") {
		ending = ext
	}
	return part, ending
}

// holds reports whether p is a directory with all below it, and all that parts may mean as
// a pattern of the shell is there.
func (p pathPattern) holds(parts []string) bool {
	n := len(p) - 1
	return n > 0 && p[n] == "**" && p[0] != "**" && len(parts) > n && slices.Equal(p[:n], parts[:n])
}

// match reports whether the parts of a path fit; with glob, whether some path that fits
// them, as a pattern of the shell, does.
func (p pathPattern) match(parts []string, glob bool) bool { return p.fits(parts, glob, false) }

// below is match for what may stand in any directory.
func (p pathPattern) below(parts []string, glob bool) bool { return p.fits(parts, glob, true) }

func (p pathPattern) fits(parts []string, glob, anywhere bool) bool {
	for len(p) > 0 {
		if p[0] == "**" {
			if len(p) == 1 {
				return len(parts) > 0
			}
			if !slices.Contains(p[1:], "**") { // what is behind it has one place to be at
				i := len(parts) - len(p) + 1
				return i >= 0 && p[1:].below(parts[i:], glob)
			}
			for i := range parts {
				if p[1:].below(parts[i:], glob) {
					return true
				}
			}
			return false
		}
		if len(parts) == 0 {
			return false
		}
		if parts[0] != p[0] {
			if glob && strings.ContainsAny(parts[0], "*?[") {
				if !overlap(parts[0], p[0], anywhere) {
					return false
				}
			} else if !mayMatch(p[0], parts[0]) {
				return false
			} else if ok, err := path.Match(p[0], parts[0]); err != nil || !ok {
				return false
			}
		}
		p, parts, anywhere = p[1:], parts[1:], false
	}
	return len(parts) == 0
}

// mayMatch is false where the first or the last byte of a pattern of path.Match tells that a
// name does not fit, which it does of most.
func mayMatch(pattern, name string) bool {
	if name == "" {
		return true
	}
	first, last := pattern[0], pattern[len(pattern)-1]
	return (first == name[0] || strings.IndexByte(`*?[\`, first) >= 0) && (last == name[len(name)-1] || strings.IndexByte("*?]", last) >= 0)
}

// mayOverlap is mayMatch for two patterns.
func mayOverlap(a, b string) bool {
	if a == "" || b == "" {
		return true
	}
	differ := func(x, y byte, wild string) bool {
		return x != y && strings.IndexByte(wild, x) < 0 && strings.IndexByte(wild, y) < 0
	}
	return !differ(a[0], b[0], `*?[\`) && !differ(a[len(a)-1], b[len(b)-1], "*?]")
}

// overlap reports whether some name fits both patterns. A leading wildcard of the shell's
// does not stand for a dot. Of what may be anywhere, all files or all with an ending are not
// meant by a glob that has no letter in common with it: else that would be said of each
// "*.txt" and each "syslog*".
func overlap(glob, pattern string, anywhere bool) bool {
	if anywhere && glob == "*" {
		return false
	}
	if ending, ok := strings.CutPrefix(glob, "*."); ok && !strings.ContainsAny(ending, "*?[") {
		return pattern == glob || strings.HasPrefix(pattern, "*.") && strings.HasSuffix(glob, pattern[1:]) || !anywhere && !strings.Contains(pattern, "*") && strings.HasSuffix(pattern, "."+ending)
	}
	if strings.HasPrefix(pattern, ".") && !strings.HasPrefix(glob, ".") || !mayOverlap(glob, pattern) {
		return false
	}
	// The steps are bounded: names are short, and a longer one is taken to fit.
	if len(glob)*len(pattern) > 1<<14 {
		return true
	}
	budget := 1 << 14
	return overlaps(glob, pattern, !anywhere || !strings.ContainsAny(pattern, "*?["), &budget)
}

// overlaps needs a character that stands in both if common is false.
func overlaps(a, b string, common bool, budget *int) bool {
	if *budget--; *budget < 0 {
		return true
	}
	switch {
	case a == "" && b == "":
		return common
	case strings.HasPrefix(a, "*"):
		return overlaps(a[1:], b, common, budget) || b != "" && overlaps(a, step(b), common, budget)
	case strings.HasPrefix(b, "*"):
		return overlaps(a, b[1:], common, budget) || a != "" && overlaps(step(a), b, common, budget)
	case a == "" || b == "":
		return false
	case a[0] == '?' || a[0] == '[' || b[0] == '?' || b[0] == '[':
		return overlaps(step(a), step(b), common, budget)
	default:
		return a[0] == b[0] && overlaps(a[1:], b[1:], true, budget)
	}
}

// step passes one character of a pattern, a bracket whole.
func step(p string) string {
	if p[0] == '[' {
		if i := strings.IndexByte(p[1:], ']'); i >= 0 {
			return p[i+2:]
		}
	}
	return p[1:]
}
