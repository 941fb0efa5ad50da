package staged

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// inGit reports whether a part of a path is, or may be taken for, a directory of Git's.
func inGit(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if isGit(name) {
			return true
		}
	}
	return false
}

// isGit reports whether a name is ".git", or one that some file system or some person takes for it: in another case, with
// characters that are not seen or that look the same, or in a form that Windows reads so ("git~1", ".git ", ".git::$DATA").
func isGit(name string) bool {
	// Most names are told by one look.
	if !strings.ContainsAny(name, "gG") && isASCII(name) {
		return false
	}
	plain, _, _ := strings.Cut(flat(name), ":")
	plain = strings.TrimRight(plain, " .")
	if plain == ".git" {
		return true
	}
	short, ok := strings.CutPrefix(plain, "git~")
	return ok && short != "" && strings.Trim(short, "0123456789") == ""
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// alike are characters that look like those of ".git".
var alike = map[rune]rune{
	'\u2024': '.', '\ufe52': '.', '\uff61': '.', '\u0261': 'g', '\u0581': 'g', '\u0131': 'i', '\u0130': 'i', '\u0456': 'i', '\u0406': 'i',
	'\u2170': 'i', '\u2139': 'i', '\u0442': 't', '\u0422': 't', '\u24d6': 'g', '\u24d8': 'i', '\u24e3': 't', '\u24bc': 'g', '\u24be': 'i',
	'\u24c9': 't', '\u210a': 'g', '\u2148': 'i',
}

// flat is a name in small letters, without what is not seen and without marks on letters.
func flat(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch a, ok := alike[r]; {
		case ok:
			r = a
		case r >= 0xff01 && r <= 0xff5e: // full width
			r -= 0xfee0
		case r >= 0x1d400 && r <= 0x1d6a3: // letters of mathematics: thirteen alphabets, both cases
			if r = (r - 0x1d400) % 52; r < 26 {
				r += 'A'
			} else {
				r += 'a' - 26
			}
		case patch.Odd(r) || unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r):
			continue
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// leadsOut reports whether a symbolic link of a path may lead out of the top directory, or leads to something of Git's. Only
// leading ".." are certain: behind another name they begin wherever a link of that name leads.
func leadsOut(path, target string) bool {
	if target == "" || target[0] == '/' || inGit(target) {
		return true
	}
	depth, named := strings.Count(path, "/"), false
	for name := range strings.SplitSeq(target, "/") {
		switch {
		case name == "" || name == ".":
		case name != "..":
			named = true
		case named || depth == 0:
			return true
		default:
			depth--
		}
	}
	return false
}

// escapes are those of C that Git writes in names.
var escapes = map[byte]byte{'\a': 'a', '\b': 'b', '\t': 't', '\n': 'n', '\v': 'v', '\f': 'f', '\r': 'r', '"': '"', '\\': '\\'}

// quote writes a name as Git does, between quotes if it has a quote, a backslash, or a character that a terminal acts on or
// that cannot be seen. Letters that can be seen stay as they are.
func quote(name string) string {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if e, ok := escapes[name[i]]; ok {
			quoted = true
			b.WriteByte('\\')
			b.WriteByte(e)
		} else if r == utf8.RuneError && n == 1 || patch.Odd(r) {
			quoted = true
			for _, c := range []byte(name[i : i+n]) {
				b.WriteByte('\\')
				b.Write([]byte{'0' + c>>6, '0' + c>>3&7, '0' + c&7})
			}
		} else {
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	if quoted {
		return `"` + b.String() + `"`
	}
	return name
}

// Quote writes a name as Git does, so that it can be shown.
func Quote(name string) string { return quote(name) }
