package hostfiles_test

import (
	"path"
	"strings"
	"testing"
	"unicode"

	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// FuzzMatch compares Match with slowMatch.
func FuzzMatch(f *testing.F) {
	for _, e := range hostfiles.All() {
		f.Add("a/"+strings.ToUpper(e.Pattern), true)
		f.Add(strings.ReplaceAll(e.Pattern, "*", "x\u200c")+"/b", false)
	}
	for _, p := range ordinary {
		f.Add(p, false)
	}
	for _, p := range []string{
		"git~1/x", ".git. ", ":.git", ".git:x", "/", "a//.git", "\xff.git", ".con\ufb01g", strings.Repeat("a", 300) + ".iml",
	} {
		f.Add(p, true)
	}
	all := hostfiles.All()
	f.Fuzz(func(t *testing.T, p string, home bool) {
		if strings.Count(p, "/") > 40 {
			return // slowMatch would be too slow
		}
		got, ok := hostfiles.Match(p, home)
		want, found := slowMatch(all, p, home)
		if ok != found || got != want {
			t.Errorf("%+q (home %v) is named by %q %v, and not by %q %v", p, home, got.Pattern, ok, want.Pattern, found)
		}
	})
}

// slowMatch asks each entry about each directory of a path.
func slowMatch(all []hostfiles.Entry, p string, home bool) (best hostfiles.Entry, found bool) {
	parts := strings.Split(p, "/")
	plain := make([]string, len(parts))
	for i := range parts {
		plain[i] = slowFold(parts[i])
	}
	for at := range parts {
		for _, e := range all {
			if at > 0 && !e.Any || e.Home && !home || e.Exact && parts[at] != e.Pattern {
				continue
			}
			if namedBy(plain[at:], e.Pattern) && (!found || !stronger(best, e)) {
				best, found = e, true
			}
		}
	}
	return best, found
}

func namedBy(parts []string, pattern string) bool {
	want := strings.Split(pattern, "/")
	if len(parts) < len(want) {
		return false
	}
	for i, w := range want {
		plain := parts[i]
		short := strings.EqualFold(w, ".git") && plain == "git~1" ||
			w == ".gitmodules" && len(plain) == 8 && strings.HasPrefix(plain, "gitmod~") && plain[7] >= '1' && plain[7] <= '4'
		if ok, _ := path.Match(strings.ToLower(w), plain); !ok && !short {
			return false
		}
	}
	return true
}

var ligatures = strings.NewReplacer("\u017f", "s", "\u212a", "k", "\u00df", "ss", "\u1e9e", "ss", "\ufb00", "ff", "\ufb01", "fi",
	"\ufb02", "fl", "\ufb03", "ffi", "\ufb04", "ffl", "\ufb05", "st", "\ufb06", "st")

func slowFold(part string) string {
	part = ligatures.Replace(part)
	var b strings.Builder
	for i, r := range part {
		switch {
		case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r), unicode.Is(unicode.Variation_Selector, r):
		case r == unicode.ReplacementChar:
			b.WriteByte(part[i])
		case r < unicode.MaxASCII:
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteRune(r)
		}
	}
	plain := b.String()
	if plain != "" {
		if first, rest := plain[:1], plain[1:]; strings.Contains(rest, ":") {
			plain = first + rest[:strings.IndexByte(rest, ':')]
		}
	}
	return strings.TrimRight(plain, ". ")
}
