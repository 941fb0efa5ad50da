package rules //nolint:testpackage // how a pattern is matched is internal

import (
	"path"
	"strings"
	"testing"
)

// textsOf are all of up to n of the letters.
func textsOf(letters string, n int) []string {
	all, last := []string{}, []string{""}
	for range n {
		var next []string
		for _, s := range last {
			for _, c := range letters {
				next = append(next, s+string(c))
			}
		}
		all, last = append(all, next...), next
	}
	return all
}

// A pattern's shape and its last byte decide as path.Match does.
func TestEarlyEnds(t *testing.T) {
	fits, overlapping := 0, 0
	patterns := textsOf(`ab.*?`, 4)
	for _, p := range append(patterns, "[ab]", "a[b]", "[a]b", `\*`, `a\*`, `\*a`) {
		part := newPartPattern(p)
		for _, name := range textsOf("ab.*", 3) {
			ok, err := path.Match(p, name)
			if got := part.fits(name); p != "**" && got != (err == nil && ok || p == name) {
				t.Fatalf("%q fits %q: %t", p, name, got)
			}
			if err == nil && ok {
				fits++
			}
		}
	}
	short := textsOf(`ab.*?`, 3)
	for _, a := range short {
		for _, b := range short {
			budget := 1 << 14
			pattern := pathPattern{parts: []partPattern{newPartPattern(b)}}
			glob := newPathPart(a, true)
			if last := a[len(a)-1]; strings.IndexByte("*?", last) < 0 && !pattern.mayEnd(last) &&
				(overlap(&glob, &pattern.parts[0], false) || overlap(&glob, &pattern.parts[0], true)) {
				t.Fatalf("%q and %q overlap but end in different bytes", a, b)
			}
			if overlaps(a, b, 0, &budget) {
				overlapping++
			}
		}
	}
	if fits < 1000 || overlapping < 1000 {
		t.Errorf("only %d and %d were seen to fit", fits, overlapping)
	}
}

// A pattern that may be anywhere is found at the one place where it can be, as if every
// place was tried.
func TestAnywhere(t *testing.T) {
	seen := 0
	for _, p := range []string{"**/a", "**/a/b", "**/a/*", "**/a/**", "**/a/**/b", "**/*.a", "/a/**/b", "**/**"} {
		pattern, ok := splitPattern(p)
		if !ok {
			t.Fatal(p)
		}
		for _, text := range textsOf("ab/", 5) {
			parts := strings.Split(strings.TrimPrefix(text, "/"), "/")
			want := everywhere(strings.Split(strings.TrimPrefix(p, "/"), "/"), parts)
			var m pathMatch
			m.of(text, false, accessRead)
			if got := pattern.match(m.parts); got != want {
				t.Fatalf("%s fits %s: %v, want %v", p, text, got, want)
			}
			if want {
				seen++
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d fit", seen)
	}
}

func everywhere(p, parts []string) bool {
	switch {
	case len(p) == 0:
		return len(parts) == 0
	case p[0] == "**" && len(p) == 1:
		return len(parts) > 0
	case p[0] == "**":
		return anyTail(p[1:], parts)
	case len(parts) == 0:
		return false
	}
	ok, err := path.Match(p[0], parts[0])
	return err == nil && ok && everywhere(p[1:], parts[1:])
}

func anyTail(p, parts []string) bool {
	for i := range parts {
		if everywhere(p, parts[i:]) {
			return true
		}
	}
	return false
}
