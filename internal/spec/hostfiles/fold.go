package hostfiles

import (
	"unicode"
	"unicode/utf8"
)

// fold appends one part of a path to dst in the form in which names are compared. Two parts that some file system takes for the
// same name, one of them ASCII, have the same form:
//
//   - Letter case is ignored (vfat, ext4 with casefold, APFS), with the letters beyond ASCII that fold to ASCII ones.
//   - Code points that are not shown are dropped. HFS+ drops those that git lists in utf8.c, next_hfs_char; ext4 with casefold
//     drops all that Unicode says may be ignored.
//   - Dots and spaces at the end, and what follows a colon, are dropped (NTFS).
func fold(dst []byte, part string) []byte {
	start := len(dst)
	for i := 0; i < len(part); i++ {
		c := part[i]
		if c >= utf8.RuneSelf {
			return foldRunes(dst[:start], part)
		}
		if c == ':' && i > 0 {
			break
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return trim(dst, start)
}

func foldRunes(dst []byte, part string) []byte {
	start := len(dst)
	for i, width := 0, 0; i < len(part); i += width {
		var r rune
		r, width = utf8.DecodeRuneInString(part[i:])
		switch {
		case r == ':' && len(dst) > start:
			return trim(dst, start)
		case 'A' <= r && r <= 'Z':
			dst = append(dst, byte(r)+'a'-'A')
		case r < utf8.RuneSelf || r == utf8.RuneError:
			dst = append(dst, part[i:i+width]...)
		case ignorable(r):
		default:
			dst = append(dst, foldRune(r, part[i:i+width])...)
		}
	}
	return trim(dst, start)
}

func trim(dst []byte, start int) []byte {
	end := len(dst)
	for end > start && (dst[end-1] == '.' || dst[end-1] == ' ') {
		end--
	}
	return dst[:end]
}

func ignorable(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// foldRune returns what a letter is in ASCII by Unicode's CaseFolding.txt, status C and F, or else the text that it is given.
func foldRune(r rune, text string) string {
	switch r {
	case '\u017f':
		return "s"
	case '\u212a':
		return "k"
	case '\u00df', '\u1e9e':
		return "ss"
	case '\ufb00':
		return "ff"
	case '\ufb01':
		return "fi"
	case '\ufb02':
		return "fl"
	case '\ufb03':
		return "ffi"
	case '\ufb04':
		return "ffl"
	case '\ufb05', '\ufb06':
		return "st"
	}
	return text
}
