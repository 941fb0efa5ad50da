package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// sed judges a sed script: the commands e, w, W, r and R, and the flags e and w of s. A script
// that cannot be parsed is code.
func (j *judge) sed(s *segment, w shell.Word) {
	text := w.Text
	if w.Dynamic {
		text = known(text)
		if strings.Trim(text, unknownPart) == "" {
			s.add(ShellDynamic, w.Source)
		}
	}
	if !j.sedScript(s, w, text) {
		s.add(CodeExecute, w.Text)
	}
}

func (j *judge) sedScript(s *segment, w shell.Word, t string) bool {
	i := 0
	skip := func(set string) {
		for i < len(t) && strings.IndexByte(set, t[i]) >= 0 {
			i++
		}
	}
	line := func() string {
		end := strings.IndexByte(t[i:], '\n')
		if end < 0 {
			end = len(t) - i
		}
		text := t[i : i+end]
		i += end
		return strings.TrimSpace(text)
	}
	// until skips a delimited part and its end.
	until := func(delim byte) bool {
		bracket := false
		for ; i < len(t); i++ {
			switch {
			case t[i] == '\\':
				i++
			case t[i] == '[' && !bracket:
				bracket = i+1 < len(t) && strings.IndexByte(t[i+1:], ']') >= 0
			case t[i] == ']':
				bracket = false
			case t[i] == delim && (!bracket || delim == '/'):
				i++
				return true
			}
		}
		return false
	}
	for {
		skip(" \t\n;}")
		// Addresses.
		for i < len(t) {
			c := t[i]
			switch {
			case c >= '0' && c <= '9' || strings.IndexByte(" \t,$~+!", c) >= 0 || c == unknownPart[0]:
				i++
				continue
			case c == '/':
				i++
				if !until('/') {
					return false
				}
				skip("IM")
				continue
			case c == '\\' && i+1 < len(t):
				d := t[i+1]
				i += 2
				if !until(d) {
					return false
				}
				skip("IM")
				continue
			}
			break
		}
		if i >= len(t) {
			return true
		}
		c := t[i]
		i++
		switch c {
		case '{', '}', 'd', 'D', 'g', 'G', 'h', 'H', 'n', 'N', 'p', 'P', 'x', '=', 'F', 'z':
		case '#', ':', 'a', 'i', 'c':
			for {
				text := line()
				if !strings.HasSuffix(text, `\`) || i >= len(t) {
					break
				}
				i++
			}
		case 'b', 't', 'T':
			for i < len(t) && t[i] != ';' && t[i] != '\n' && t[i] != '}' {
				i++
			}
		case 'l', 'L', 'q', 'Q':
			skip(" \t0123456789")
		case 'v':
			line()
		case 'r', 'R':
			j.pathEffect(s, part(w, line()), accessRead)
		case 'w', 'W':
			j.write(s, part(w, line()))
		case 'e':
			s.add(CodeExecute, w.Text)
			if cmd := line(); cmd != "" {
				j.shellText(s, part(w, cmd))
			}
		case 's', 'y':
			if i >= len(t) {
				return false
			}
			d := t[i]
			i++
			for range 2 { // the pattern and its replacement
				if !until(d) {
					return false
				}
			}
			for c == 's' && i < len(t) && strings.IndexByte("gpiImM0123456789ew", t[i]) >= 0 {
				i++
				switch t[i-1] {
				case 'e':
					s.add(CodeExecute, w.Text)
				case 'w':
					j.write(s, part(w, line()))
				}
			}
		default:
			return false
		}
	}
}

// awk judges an awk program: system(), pipes from and to commands, output files and loaded
// libraries.
func (j *judge) awk(s *segment, w shell.Word) {
	t := w.Text
	if w.Dynamic {
		t = known(t)
		if strings.Trim(t, unknownPart) == "" {
			s.add(ShellDynamic, w.Source)
		}
	}
	var (
		printing bool
		parens   int
		last     byte // the last character that is not space
		str      string
		strAt    = -1 // where the last string ended
	)
	for i := 0; i < len(t); i++ {
		c := t[i]
		switch {
		case c == '#':
			for i < len(t) && t[i] != '\n' {
				i++
			}
			printing = false
			continue
		case c == '"':
			end := i + 1
			for end < len(t) && t[end] != '"' {
				if t[end] == '\\' {
					end++
				}
				end++
			}
			str, strAt = t[min(i+1, len(t)):min(end, len(t))], end
			i = end
			last = '"'
			continue
		case c == '/' && (last == 0 || strings.IndexByte("(,~!&|{;=\n}", last) >= 0):
			end := i + 1
			for end < len(t) && t[end] != '/' && t[end] != '\n' {
				switch t[end] {
				case '\\':
					end++
				case '[':
					if n := strings.IndexByte(t[end+1:], ']'); n > 0 {
						end += n
					}
				}
				end++
			}
			i = end
			last = '/'
			continue
		case c == '@' || inName(c) && (c < '0' || c > '9'):
			end := i + 1
			for end < len(t) && inName(t[end]) {
				end++
			}
			if c == '@' && end > i+1 && t[i:end] != "@load" && t[i:end] != "@include" {
				s.add(CodeExecute, w.Text) // a call by a computed name
			}
			if t[i:end] == "ENVIRON" && (last == 'i' || secretName.MatchString("$"+strings.Trim(firstIndex(t[end:]), `"`))) {
				s.add(SecretRead, w.Text)
			}
			switch t[i:end] {
			case "system", "@load", "@include":
				s.add(CodeExecute, w.Text)
				if rest := strings.TrimLeft(t[end:], " \t("); strings.HasPrefix(rest, `"`) {
					if n := strings.IndexByte(rest[1:], '"'); n >= 0 {
						j.shellText(s, part(w, rest[1:1+n]))
					}
				}
			case "print", "printf":
				printing, parens = true, 0
			}
			last = 'a'
			if t[i:end] == "in" {
				last = 'i'
			}
			i = end - 1
			continue
		case c == '(':
			parens++
		case c == ')':
			parens--
		case c == ';' || c == '}' || c == '\n':
			printing = false
		case c == '|':
			if i+1 < len(t) && t[i+1] == '|' {
				i++
				break
			}
			s.add(CodeExecute, w.Text)
			rest := strings.TrimLeft(t[i+1:], " \t&")
			if strings.HasPrefix(rest, `"`) {
				if n := strings.IndexByte(rest[1:], '"'); n >= 0 {
					j.shellText(s, part(w, rest[1:1+n]))
				}
			} else if strAt >= 0 && strings.HasPrefix(rest, "getline") {
				j.shellText(s, part(w, str))
			}
		case c == '<' && last == 'a':
			if rest := strings.TrimLeft(t[i+1:], " \t"); strings.HasPrefix(rest, `"`) && strings.Contains(t[:i], "getline") {
				if n := strings.IndexByte(rest[1:], '"'); n >= 0 {
					j.pathEffect(s, part(w, rest[1:1+n]), accessRead)
				}
			}
		case c == '>' && printing && parens <= 0:
			rest := strings.TrimLeft(t[i+1:], "> \t")
			target := "a file that the program names"
			if strings.HasPrefix(rest, `"`) {
				if n := strings.IndexByte(rest[1:], '"'); n >= 0 {
					target = rest[1 : 1+n]
				}
			}
			switch target {
			case "/dev/stderr", "/dev/stdout", "/dev/null":
			default:
				if strings.HasPrefix(target, "/inet") {
					s.add(NetworkOut, target)
				}
				j.write(s, part(w, target))
			}
		}
		if c != ' ' && c != '\t' {
			last = c
		}
	}
	if strings.Contains(t, "/inet/") {
		s.add(NetworkOut, "/inet")
	}
}

// firstIndex returns the content of the brackets that a text begins with.
func firstIndex(t string) string {
	rest, ok := strings.CutPrefix(strings.TrimLeft(t, " \t"), "[")
	if !ok {
		return ""
	}
	inner, _, _ := strings.Cut(rest, "]")
	return strings.TrimSpace(inner)
}
