package fleet

import "strings"

// Quote returns s as one word of shell text, for /bin/sh of POSIX in any locale. Every byte but NUL arrives as it is;
// for a string with a NUL byte, which no argument can have, it panics.
func Quote(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		panic("fleet: a word with a NUL byte was not refused before it was quoted")
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// QuoteAll returns the words of an argument vector as shell text.
func QuoteAll(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = Quote(a)
	}
	return strings.Join(words, " ")
}
