package shell

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// oddities appends the odd characters of a text whose first byte has the given offset.
func oddities(dst []Oddity, s string, offset int) []Oddity {
	plain := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 && c != '\t' && c != '\n' || c >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		return dst
	}
	// A word of look-alikes alone is genuine if the text has other letters of its script: a
	// language, not a disguise.
	foreign := hasOwnLetters(s)
	run := -1 // where the current run of letters and digits begins
	mixed, first := false, len(dst)
	endRun := func(end int) {
		if run >= 0 && !mixed && foreign {
			dst = dropLookAlikes(dst, first, run+offset, end+offset)
		}
		run, mixed = -1, false
	}
	for i, r := range s {
		if r == utf8.RuneError {
			continue
		}
		if r < 0x80 {
			switch {
			case alnum(byte(r)):
				if run < 0 {
					run, first = i, len(dst)
				}
				mixed = mixed || letter(byte(r))
			case r == '_':
			default:
				endRun(i)
				if r < 0x20 && r != '\t' && r != '\n' || r == 0x7f {
					dst = append(dst, Oddity{Control, r, i + offset})
				}
			}
			continue
		}
		kind := oddKind(r)
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			if run < 0 {
				run, first = i, len(dst)
			}
			if kind == "" || !letterLike[r] {
				// It has another letter of its script, so it is no disguise of ASCII.
				if kind == LookAlike {
					mixed = true
				}
			}
		} else if kind != Invisible {
			endRun(i)
		}
		if kind != "" {
			dst = append(dst, Oddity{kind, r, i + offset})
		}
	}
	endRun(len(s))
	return dst
}

// dropLookAlikes removes the look-alike letters between two offsets.
func dropLookAlikes(dst []Oddity, first, from, to int) []Oddity {
	kept := dst[:first]
	for _, o := range dst[first:] {
		if o.Kind == LookAlike && o.Start >= from && o.Start < to && letterLike[o.Rune] {
			continue
		}
		kept = append(kept, o)
	}
	return kept
}

// hasOwnLetters reports whether a text has letters of these scripts that look like no ASCII
// letter.
func hasOwnLetters(s string) bool {
	for _, r := range s {
		if r >= 0x80 && !letterLike[r] && unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee) {
			return true
		}
	}
	return false
}

func oddKind(r rune) OddityKind {
	switch {
	case r >= 0x80 && r < 0xa0:
		return Control
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return Bidi
	case r == 0x00ad, r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r >= 0x180b && r <= 0x180f,
		r >= 0x200b && r <= 0x200d, r >= 0x2060 && r <= 0x2065, r >= 0x206a && r <= 0x206f, r == 0x3164,
		r >= 0xfe00 && r <= 0xfe0e, r == 0xfeff, r == 0xffa0, r >= 0xfff0 && r <= 0xfffb, r >= 0x1bca0 && r <= 0x1bca3,
		r >= 0x1d173 && r <= 0x1d17a, r >= 0xe0000 && r <= 0xe0fff:
		return Invisible
	case r == 0x00a0, r == 0x1680, r >= 0x2000 && r <= 0x200a, r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f,
		r == 0x3000, r == 0x2800:
		return OddSpace
	case letterLike[r], markLike[r], r >= 0xff01 && r <= 0xff5e, r >= 0x1d400 && r <= 0x1d7ff:
		return LookAlike
	}
	return ""
}

// letterLike holds letters of Cyrillic, Greek, Armenian, Cherokee and Latin that look like ASCII
// letters in common fonts (Unicode Technical Standard 39, confusables).
var letterLike = table("" +
	"АВЕЅІЈКМНОРСТУХԌԚԜҮаеѕіјорсухһԁԛԝѵӏв" + "ԍ" +
	"ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϳοονρυιαϲγ" +
	"օոսցհԼՍՏ" + "զ" +
	"ᎪᎢᎬᎠᎡᎳᎻᏀᏂᏃᏚᏞᏟᏢᏦᏴᏙᏔᏒᏌ" +
	"ıɑɡɩʏƅǀℓⅰⅴⅹⅼⅽⅾⅿⅠⅤⅩⅬⅭⅮⅯꓐꓑꓒꓓꓔꓖꓗꓙꓚꓜꓝꓠꓡꓢꓣꓤꓪꓫꓬꓮꓰꓲꓳ")

// markLike holds marks that look like marks with a meaning to the shell.
var markLike = table("‐‑‒−﹣⁃˗⁄∕⧸╱∣❘ǀ｜﹨∖⧵⧹․‚ʹʼˈˋ՝｀˜∼∗⁎٭ːˑ׃∶꞉；՟﹔﹕﹖﹗﹠﹡﹤﹥＜＞‹›﹩₴﹛﹜❴❵﹙﹚❨❩⦅⦆ǃ‟′″＂＇")

func table(s string) map[rune]bool {
	m := map[rune]bool{}
	for _, r := range s {
		m[r] = true
	}
	return m
}

// unquotedOdd records typographic marks that look like quotes or an option's dash where the shell
// would see the real ones.
func (f *field) unquotedOdd(s string, at int, first bool) {
	r, size := utf8.DecodeRuneInString(s)
	switch r {
	case '‘', '’', '‛', '“', '”':
	case '–', '—', '―':
		next, _ := utf8.DecodeRuneInString(s[size:])
		if !first || !unicode.IsLetter(next) && next != r {
			return
		}
	default:
		return
	}
	if f.fixed {
		// Somewhere in the word that the text is of.
		i := -1
		if f.end <= len(f.root) {
			i = strings.IndexRune(f.root[f.start:f.end], r)
		}
		if i < 0 {
			return
		}
		at = f.start + i
	}
	o := Oddity{LookAlike, r, at}
	if !slices.Contains(f.facts.Oddities, o) {
		f.facts.Oddities = append(f.facts.Oddities, o)
	}
}
