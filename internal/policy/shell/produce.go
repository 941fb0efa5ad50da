package shell

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode/utf8"
)

// produce returns the output of a command if it is known.
func (w *walker) produce(args []Word, in stream) stream {
	switch args[0].Text {
	case "echo":
		return echo(args[1:], w.dialect)
	case "printf":
		if len(args) > 1 && strings.HasPrefix(args[1].Text, "-v") {
			return stream{state: known}
		}
		return printf(args[1:])
	case ":", "true", "false", "shift", "export", "readonly", "local", "declare", "typeset", "eval", "trap", "set":
		if args[0].Text == "eval" || len(args) == 1 && args[0].Text != ":" && args[0].Text != "true" && args[0].Text != "false" {
			return stream{}
		}
		return stream{state: known}
	case "cat", "tee":
		if len(args) == 1 || len(args) == 2 && args[1].Text == "-" && args[0].Text == "cat" {
			return in
		}
	case "base64", "base32", "xxd":
		if in.state == known && !in.guess {
			return decode(args, strings.Map(dropSpace, in.text))
		}
	case "rev":
		if in.state == known && !in.guess && len(args) == 1 && ascii(in.text) {
			return stream{state: known, text: reverseLines(in.text)}
		}
	}
	return stream{}
}

// decode returns the output of a decoder for its input.
func decode(args []Word, in string) stream {
	var options []string
	for _, x := range args[1:] {
		options = append(options, x.Text)
	}
	var b []byte
	var err error
	switch given := strings.Join(options, " "); {
	case args[0].Text == "xxd":
		switch given {
		case "-r -p", "-p -r", "-rp", "-r -ps", "-ps -r":
			b, err = hex.DecodeString(in)
		default:
			return stream{}
		}
	case given != "-d" && given != "--decode" && given != "-di" && given != "-D":
		return stream{}
	case args[0].Text == "base32":
		b, err = base32.StdEncoding.DecodeString(in)
	default:
		b, err = base64.StdEncoding.DecodeString(in)
	}
	if err != nil || !utf8.Valid(b) {
		return stream{}
	}
	return stream{state: known, text: string(b)}
}

func dropSpace(r rune) rune {
	if r == '\n' || r == ' ' {
		return -1
	}
	return r
}

func reverseLines(s string) string {
	lines := strings.SplitAfter(s, "\n")
	for i, l := range lines {
		l, nl, _ := strings.Cut(l, "\n")
		_ = nl
		b := []byte(l)
		for x, y := 0, len(b)-1; x < y; x, y = x+1, y-1 {
			b[x], b[y] = b[y], b[x]
		}
		if strings.HasSuffix(lines[i], "\n") {
			b = append(b, '\n')
		}
		lines[i] = string(b)
	}
	return strings.Join(lines, "")
}

// echo returns the output of echo.
func echo(args []Word, d Dialect) stream {
	newline, escapes := true, false
	for len(args) > 0 && !args[0].Dynamic && len(args[0].Text) > 1 && args[0].Text[0] == '-' &&
		strings.Trim(args[0].Text[1:], "neE") == "" {
		for _, c := range args[0].Text[1:] {
			switch c {
			case 'n':
				newline = false
			case 'e':
				escapes = true
			case 'E':
				escapes = false
			}
		}
		if d == POSIX && args[0].Text != "-n" {
			return stream{}
		}
		args = args[1:]
	}
	text, guess := joined(args)
	if strings.IndexByte(text, '\\') >= 0 {
		switch {
		case d == POSIX:
			return stream{}
		case escapes:
			var ok bool
			if text, ok = backslashes(text); !ok {
				return stream{}
			}
		}
	}
	if newline {
		text += "\n"
	}
	return stream{state: known, text: text, guess: guess}
}

// backslashes reads the escapes of echo -e and %b, which differ from those of $'…' in \0NNN;
// false for escapes that they read otherwise.
func backslashes(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch c := s[i+1]; c {
		case 'c', '\'', '"', '?', '1', '2', '3', '4', '5', '6', '7':
			return "", false
		case '0':
			d := digits(s[i+2:], 3, "01234567")
			n, _ := strconv.ParseUint("0"+d, 8, 32)
			b.WriteByte(byte(n))
			i += 1 + len(d)
		default:
			b.WriteString(s[i : i+2])
			i++
			// Where there are more digits of a code, they follow.
			continue
		}
	}
	if t := b.String(); strings.IndexByte(t, '\\') < 0 {
		return t, true
	} else if !strings.Contains(s, `\0`) {
		t, _ = ansiC(s)
		return t, true
	}
	// Both kinds, since the output of the first may look like an escape to the second.
	return "", false
}

// joined returns words with spaces between them and whether a part is unknown.
func joined(args []Word) (string, bool) {
	var b strings.Builder
	guess := false
	for i, x := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(x.Text)
		guess = guess || x.Dynamic || x.Glob || x.Many
	}
	return b.String(), guess
}

// printf returns the output of printf for formats of %s, %b without escapes, %c, %d and %%.
func printf(args []Word) stream {
	if len(args) > 0 && args[0].Text == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0].Dynamic || args[0].Glob || args[0].Many || strings.HasPrefix(args[0].Text, "-") {
		return stream{}
	}
	format := args[0].Text
	args = args[1:]
	var b strings.Builder
	guess := false
	for round := 0; ; round++ {
		used := false
		for i := 0; i < len(format); i++ {
			if format[i] == '\\' {
				end := i + 2
				for end < len(format) && end < i+4 && strings.IndexByte("0123456789abcdefABCDEF", format[end]) >= 0 {
					end++
				}
				if i+1 < len(format) && (format[i+1] == 'x' || format[i+1] >= '0' && format[i+1] <= '7') {
					if end > len(format) {
						return stream{}
					}
					s, _ := ansiC(format[i:end])
					b.WriteString(s)
					i = end - 1
					continue
				}
				if i+1 == len(format) || strings.IndexByte(`abfnrtv\"e`, format[i+1]) < 0 {
					return stream{}
				}
				s, _ := ansiC(format[i : i+2])
				b.WriteString(s)
				i++
				continue
			}
			if format[i] != '%' {
				b.WriteByte(format[i])
				continue
			}
			if i++; i == len(format) {
				return stream{}
			}
			if format[i] == '%' {
				b.WriteByte('%')
				continue
			}
			var x Word
			if len(args) > 0 {
				x, args = args[0], args[1:]
				used = true
			}
			if x.Many || x.Glob {
				return stream{}
			}
			guess = guess || x.Dynamic
			switch format[i] {
			case 's':
				b.WriteString(x.Text)
			case 'b':
				if strings.Contains(x.Text, `\`) {
					s, ok := backslashes(x.Text)
					if !ok {
						return stream{}
					}
					b.WriteString(s)
				} else {
					b.WriteString(x.Text)
				}
			case 'c':
				if x.Text != "" {
					if x.Text[0] >= 0x80 {
						return stream{}
					}
					b.WriteByte(x.Text[0])
				}
			case 'd', 'i':
				if x.Text == "" {
					x.Text = "0"
				}
				if !decimal(x.Text) {
					return stream{}
				}
				b.WriteString(x.Text)
			default:
				return stream{}
			}
		}
		if len(args) == 0 || !used || round > maxFields || b.Len() > defaultBytes {
			break
		}
	}
	if len(args) > 0 && b.Len() > defaultBytes {
		return stream{}
	}
	return stream{state: known, text: b.String(), guess: guess}
}

func decimal(s string) bool {
	s = strings.TrimPrefix(s, "-")
	if s == "" || len(s) > 18 || len(s) > 1 && s[0] == '0' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return s
}
