package rules

import (
	"path"
	"strings"
)

// pathPattern is a pattern split at its slashes. "**" matches any number of parts; other parts
// are patterns of path.Match.
type pathPattern struct {
	parts []partPattern
	// floating: it begins with "**". deep: there is another "**" in it.
	floating, deep bool
}

// partPattern is one part of a pattern with its shape. Most are names, or have a star at one end.
type partPattern struct {
	text  string
	shape shape
	fixed string // the text without its stars
}

type shape uint8

const (
	shapeName  shape = iota // abc
	shapeDeep               // **
	shapeBegin              // abc*
	shapeEnd                // *abc
	shapeHas                // *abc*
	shapeOther              // needs path.Match
)

func newPartPattern(text string) partPattern {
	p := partPattern{text: text, shape: shapeOther}
	inner := strings.Trim(text, "*")
	head, tail := strings.HasPrefix(text, "*"), strings.HasSuffix(text, "*")
	switch {
	case text == "**":
		p.shape = shapeDeep
	case strings.ContainsAny(inner, `*?[\`) || inner == "":
	case head && tail:
		p.shape = shapeHas
	case head:
		p.shape = shapeEnd
	case tail:
		p.shape = shapeBegin
	default:
		p.shape = shapeName
	}
	p.fixed = inner
	return p
}

// fits reports whether a name matches.
func (p *partPattern) fits(name string) bool {
	switch p.shape {
	case shapeName:
		return name == p.text
	case shapeBegin:
		return strings.HasPrefix(name, p.fixed)
	case shapeEnd:
		return strings.HasSuffix(name, p.fixed)
	case shapeHas:
		return strings.Contains(name, p.fixed)
	case shapeDeep, shapeOther:
	}
	if name == p.text {
		return true
	}
	ok, err := path.Match(p.text, name)
	return err == nil && ok
}

// splitPattern splits a pattern. A pattern below ~ matches in every directory that may be a home,
// since the owner does not change what the file is.
func splitPattern(p string) (pathPattern, bool) {
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		p = "**/" + rest
	}
	if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "**/") {
		return pathPattern{}, false
	}
	var split pathPattern
	for i, part := range strings.Split(strings.TrimPrefix(p, "/"), "/") {
		if _, err := path.Match(part, ""); err != nil || part == "" {
			return pathPattern{}, false
		}
		split.parts = append(split.parts, newPartPattern(part))
		if part == "**" && i == 0 {
			split.floating = true
		} else if part == "**" {
			split.deep = true
		}
	}
	return split, true
}

// key returns a part, or else an ending, that every matching path has.
func (p pathPattern) key() (part, ending string) {
	for i := range p.parts {
		if at := &p.parts[i]; at.shape == shapeName && (part == "" || len(at.text) > len(part)) {
			part = at.text
		}
	}
	if last := &p.parts[len(p.parts)-1]; part == "" && len(p.parts) == 2 && last.shape == shapeEnd {
		if ext, ok := strings.CutPrefix(last.fixed, "."); ok && !strings.Contains(ext, ".") {
			ending = ext
		}
	}
	return part, ending
}

// holds reports whether every path that the glob may mean matches: p is a directory with all
// below it, or all files with an ending.
func (p pathPattern) holds(parts []pathPart) bool {
	n := len(p.parts) - 1
	if n == 1 && p.floating && p.parts[n].shape == shapeEnd {
		// All files with an ending, if the glob has it after its last wildcard.
		base, ending := parts[len(parts)-1].text, p.parts[n].fixed
		return strings.HasSuffix(base, ending) && len(base) > len(ending) && !strings.ContainsAny(ending, "*?[]")
	}
	if n <= 0 || p.parts[n].shape != shapeDeep || p.floating || len(parts) <= n {
		return false
	}
	for i := range n {
		if p.parts[i].text != parts[i].text {
			return false
		}
	}
	return true
}

// mayEnd reports whether a path that ends in c may match.
func (p *pathPattern) mayEnd(c byte) bool {
	text := p.parts[len(p.parts)-1].text
	last := text[len(text)-1]
	return last == c || strings.IndexByte("*?]", last) >= 0
}

// pathPart is one part of a path, perhaps a glob.
type pathPart struct {
	text string
	wild bool
	// ending is set for a glob of all files with one, as *.txt.
	ending string
	// ends: only the end is fixed, by three bytes or more, as in *release.
	ends bool
}

func newPathPart(text string, glob bool) pathPart {
	p := pathPart{text: text, wild: glob && strings.ContainsAny(text, "*?[")}
	if ending, ok := strings.CutPrefix(text, "*."); ok && p.wild && !strings.ContainsAny(ending, "*?[") {
		p.ending = ending
	}
	if fixed, ok := strings.CutPrefix(text, "*"); ok && p.wild && len(fixed) > 2 {
		p.ends = !strings.ContainsAny(fixed, "*?[")
	}
	return p
}

// match reports whether the path matches; for a glob, whether a path that it may mean does.
func (p pathPattern) match(parts []pathPart) bool {
	if p.floating && !p.deep && len(p.parts) > 1 { // what follows ** has one position
		i := len(parts) - len(p.parts) + 1
		return i >= 0 && fit(p.parts[1:], parts[i:], true)
	}
	return fit(p.parts, parts, false)
}

// fit matches the rest of a pattern; anywhere says that any directory may precede it.
func fit(p []partPattern, parts []pathPart, anywhere bool) bool {
	for ; len(p) > 0; p, parts, anywhere = p[1:], parts[1:], false {
		if p[0].shape == shapeDeep {
			if len(p) == 1 {
				return len(parts) > 0
			}
			for i := range parts {
				if fit(p[1:], parts[i:], true) {
					return true
				}
			}
			return false
		}
		if len(parts) == 0 {
			return false
		}
		if parts[0].wild {
			if parts[0].text != p[0].text && !overlap(&parts[0], &p[0], anywhere) {
				return false
			}
		} else if !p[0].fits(parts[0].text) {
			return false
		}
	}
	return len(parts) == 0
}

// overlap reports whether some name matches both the glob and the pattern. A leading wildcard of
// a glob does not match a dot. For patterns that match in any directory, and globs of which only the end is fixed, the
// two must share two letters; otherwise "*.txt" and "syslog*" would always overlap a secret's pattern, and "*release" a
// "shadow.*".
func overlap(part *pathPart, p *partPattern, anywhere bool) bool {
	glob, pattern := part.text, p.text
	if anywhere && glob == "*" {
		return false
	}
	if end := part.ending; end != "" {
		if p.shape == shapeEnd || p.shape == shapeOther && strings.HasPrefix(pattern, "*.") {
			return pattern == glob || pattern[1] == '.' && strings.HasSuffix(glob, pattern[1:])
		}
		return !anywhere && !strings.Contains(pattern, "*") && strings.HasSuffix(pattern, "."+end)
	}
	if strings.HasPrefix(pattern, ".") && !strings.HasPrefix(glob, ".") {
		return false
	}
	// Bound the steps: names are short, so a longer one counts as an overlap.
	if len(glob)*len(pattern) > 1<<14 {
		return true
	}
	budget := 1 << 14
	common := 2
	if !anywhere && !part.ends || !strings.ContainsAny(pattern, "*?[") {
		common = 0
	} else if i := strings.LastIndexByte(pattern, '.'); i > 0 && !strings.ContainsAny(pattern[i:], "*?[") &&
		strings.Trim(pattern[:i], "*?") != "" && strings.HasSuffix(glob, pattern[i:]) {
		// An ending says how a file is encoded, not what it contains.
		glob, pattern = glob[:len(glob)-len(pattern)+i], pattern[:i]
	}
	return overlaps(glob, pattern, common, &budget)
}

// overlaps reports whether some name matches a and b with at least common letters or digits that
// are in both.
func overlaps(a, b string, common int, budget *int) bool {
	if *budget--; *budget < 0 {
		return true
	}
	switch {
	case a == "" && b == "":
		return common <= 0
	case strings.HasPrefix(a, "*"):
		return overlaps(a[1:], b, common, budget) || b != "" && overlaps(a, step(b), common, budget)
	case strings.HasPrefix(b, "*"):
		return overlaps(a, b[1:], common, budget) || a != "" && overlaps(step(a), b, common, budget)
	case a == "" || b == "":
		return false
	case a[0] == '?' || a[0] == '[' || b[0] == '?' || b[0] == '[':
		return overlaps(step(a), step(b), common, budget)
	default:
		if strings.IndexByte("-_.", a[0]) < 0 {
			common--
		}
		return a[0] == b[0] && overlaps(a[1:], b[1:], common, budget)
	}
}

// step skips one character of a pattern, or a whole bracket.
func step(p string) string {
	if p[0] == '[' {
		if i := strings.IndexByte(p[1:], ']'); i >= 0 {
			return p[i+2:]
		}
	}
	return p[1:]
}
