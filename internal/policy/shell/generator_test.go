package shell_test

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// generator composes lines.
type generator struct {
	*rapid.T
	// repeats says that something may run more often than it is written.
	repeats bool
	// called says that it is for a body that calls no function: two calls of itself, and
	// there would be no end of processes.
	called bool
}

func (g *generator) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(g.T, label)
}

func (g *generator) upTo(n int) int { return rapid.IntRange(0, n).Draw(g.T, "n") }

func (g *generator) script(depth int) string {
	var lines []string
	for range 1 + g.upTo(3) {
		lines = append(lines, g.stmt(depth))
	}
	return g.seq(lines)
}

func (g *generator) seq(list []string) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			switch {
			case strings.Contains(list[i-1], "\n") || strings.HasSuffix(list[i-1], "&"):
				b.WriteString("\n")
			default:
				b.WriteString(g.pick("sep", "; ", "\n", " ;"))
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

// group makes one command of what may have several lines.
func (g *generator) group(s string) string {
	if strings.Contains(s, "\n") || strings.HasSuffix(s, "&") {
		return "{ " + s + "\n}"
	}
	return s
}

func (g *generator) block(depth int) string {
	var lines []string
	for range 1 + g.upTo(1) {
		lines = append(lines, g.stmt(depth))
	}
	return g.seq(lines) + "\n"
}

func (g *generator) name() string { return fmt.Sprintf("c%d", g.upTo(9)) }

func (g *generator) variable() string { return g.pick("variable", "a", "b", "v", "x") }

func (g *generator) function() string { return g.pick("function", "f", "g") }

// stmt is one statement, which ends without a separator.
func (g *generator) stmt(depth int) string {
	kind := g.upTo(35)
	if depth <= 0 {
		kind %= 9
	}
	d := depth - 1
	switch kind {
	default:
		return g.simple(depth)
	case 4, 5:
		return g.assignment(depth)
	case 6:
		return g.pick("builtin", "read a <<< ", "printf -v a %s ", "read -r x y <<< ", "printf -v x '%s%s' c ", "export a=",
			"readonly b=", "declare x=", "typeset v=",
			"declare -i a=", "declare -u b=") + g.word(0)
	case 7:
		return g.pick("set", "IFS=,", "IFS=1", "IFS=:", "unset a", "set -f", "set +B", "unset IFS", "set -- c1 c2", "shift",
			": ${a:=c1}", ": $((a=1))", "shopt -s lastpipe",
			"((x=2))", "let b=3", "mapfile v <<< c1", "declare -n a=b", "getopts ab x -a")
	case 8:
		if !g.called && g.upTo(3) == 0 {
			return g.pick("calls", "f", "g c1")
		}
		return g.pick("uses", "$a", "\"$x\" c2", "$a$b", "${a}1 c3", "$v $b", "${x:-c7}", "c$b", "\"${a[@]}\"", "${v[0]} c4",
			"${a:1}", "${a#c}c5", "${b/c/c}", "${b^^}")
	case 9:
		return g.group(g.stmt(d)) + g.pick("op", " && ", " || ") + g.group(g.stmt(d))
	case 10, 11:
		return g.group(g.stmt(d)) + g.pick("pipe", " | ", " |& ") + g.group(g.stmt(d))
	case 12:
		return "( " + g.block(d) + ")" + g.redirect()
	case 13:
		return "{ " + g.block(d) + "}" + g.redirect()
	case 14:
		return "if " + g.block(d) + "then " + g.block(d) + g.pick("else", "", "else "+g.block(d), "elif "+g.block(d)+"then "+g.block(d)) + "fi"
	case 15:
		g.repeats = true
		return "for " + g.variable() + " in " + g.words(depth) + "; do " + g.block(d) + "done" + g.redirect()
	case 16:
		g.repeats = true
		return g.pick("while", "while ", "until ") + g.group(g.stmt(d)) + "; do " + g.block(d) + "break; done"
	case 17:
		return "case " + g.word(d) + " in " + g.pick("pattern", "c1", "*", "c*", "$a") + ") " + g.block(d) + g.pick("end", ";;",
			";&", ";;&") + " *) " + g.block(d) + ";; esac"
	case 18:
		g.repeats = true
		inner := generator{T: g.T, called: true}
		body := inner.block(d)
		return g.function() + "() " + g.pick("body", "{ "+body+"}", "( "+body+")")
	case 19:
		return g.simple(d) + " &"
	case 20, 21:
		g.repeats = true
		return "eval " + g.text(d)
	case 22:
		g.repeats = true
		return "trap " + g.text(d) + g.pick("signal", " EXIT", " ERR", " USR1", " 0")
	case 23, 24:
		return g.pick("shell", "bash -c ", "sh -c ", "bash -ec ", "bash -s <<< ", "bash <<< ", "sh -e -c ", "exec bash -c ",
			"command bash -c ") + g.text(d)
	case 25:
		return g.pick("writer", "echo ", "printf '%s\\n' ", "echo -e ", "echo -n ", "printf ") + g.text(d) + g.pick("reader",
			" | bash", " | sh -s", " | cat | bash", " | while read -r x; do $x; done", " | { bash; }")
	case 26:
		return g.pick("reader", "bash", "sh -s", "source /dev/stdin", "c1") + " <<E\n" + g.body(d, false) + "\nE"
	case 27:
		return g.pick("reader", "bash", "sh", ". /dev/stdin", "c1", "read a") + " <<-'E'\n" + g.body(d, true) + "\nE"
	case 28:
		return "source <(echo " + g.text(d) + ")"
	case 29:
		return "[[ " + g.word(d) + g.pick("test", " == ", " != ", " < ", " -eq ") + g.word(0) + " ]]"
	case 30:
		return "shopt -s expand_aliases\nalias " + g.pick("alias", "c1", "k", "k") + "=" + g.text(d) + "\n" + g.pick("use", "c1", "k", "k c2")
	case 31:
		// Of a simple one within $(…) bash makes another: it writes a name before it.
		return "coproc { " + g.block(d) + "}"
	case 32:
		return g.variable() + "=(" + g.words(d) + ")"
	case 33:
		return "! " + g.group(g.stmt(d))
	case 34:
		return "time " + g.group(g.stmt(d))
	case 35:
		g.repeats = true
		return "for ((i=0; i<2; i++)); do " + g.block(d) + "done"
	}
}

func (g *generator) assignment(depth int) string {
	return g.variable() + g.pick("assign", "=", "=", "=", "+=") + g.word(depth-1)
}

func (g *generator) redirect() string {
	return g.pick("redirect", "", "", "", " > f1", " 2>&1", " < /dev/null", " >> f2", " <<< c1", " &> f1", " {v}> f1")
}

// simple is a simple command.
func (g *generator) simple(depth int) string {
	s := g.pick("prefix", "", "", "", "", "a=c1 ", "command ", "IFS=: ", "exec ", "> f3 ")
	if g.upTo(2) > 0 {
		s += g.name()
	} else {
		s += g.word(depth - 1)
	}
	for range g.upTo(2) {
		s += " " + g.word(depth-1)
	}
	return s + g.redirect()
}

func (g *generator) words(depth int) string {
	s := g.word(depth - 1)
	for range g.upTo(2) {
		s += " " + g.word(depth-1)
	}
	return s
}

// word is one word.
func (g *generator) word(depth int) string {
	kind := g.upTo(29)
	if depth <= 0 {
		kind %= 20
	}
	n := g.name()
	switch kind {
	default:
		return n
	case 5:
		return n[:1] + g.pick("quotes", "''", `""`, `\`) + n[1:]
	case 6:
		return `$'\x63'` + n[1:]
	case 7:
		return `"` + n + `"`
	case 8:
		return "$" + g.variable()
	case 9:
		return `"$` + g.variable() + `"`
	case 10:
		return "${" + g.variable() + g.pick("operator", "}", ":-"+n+"}", ":+"+n+"}", "#c}", "%1}", ":1}", "/c/k}", "^^}", "[0]}",
			"[@]}", "[*]}", ":0:2}", "-}", "@Q}", ",}")
	case 11:
		return g.pick("brace", "{c1,c2}", "c{1,2}", "{c1,c2", "c{1..3}", "{a,b}{1,2}", "{c1,}", "c{1..3..2}", "{01..03}", "{c..a}",
			"{}", "c{1,{2,3}}")
	case 12:
		return g.pick("glob", "*", "c?", "[a-c]1", "~", "~/c1", "f*", "c1=~", "[", "a\\*", "'*'")
	case 13:
		return g.pick("quoted", `'c1 c2'`, `"c1  c2"`, `c1\ c2`, `$'c1\tc2'`, `'a"b'`, `"a'b"`, `a\$b`, `"\$a"`, `'$a'`, "''", `$'c\0x'1`, `"c1\
c2"`, `c\
1`)
	case 14:
		return g.pick("special", `"$@"`, "$@", "$#", "$?", "$0", "$1", "$*", "\"${a[@]}\"", "${#a}", "$((1+1))", "$[2]", "\"${v[*]}\"")
	case 15:
		return n + "$" + g.variable()
	case 16:
		return "$" + g.variable() + n
	case 17:
		return g.pick("list", "c1,c2", "c1:c2", "--opt=c1", "-x", "--", "x1y")
	case 20, 21:
		return "$(" + g.inner(depth-1) + ")"
	case 22:
		return `"$(` + g.inner(depth-1) + `)"`
	case 23:
		return "$(echo " + g.word(0) + ")"
	case 24:
		return "`" + g.name() + " " + g.name() + "`"
	case 25:
		return "<(" + g.inner(depth-1) + ")"
	case 26:
		return "${" + g.variable() + ":-$(" + g.inner(depth-1) + ")}"
	case 27:
		return "$(( $(" + g.name() + ") + 1 ))"
	case 28:
		return "$(printf '%s%s' c " + g.pick("digit", "1", "2") + ")"
	case 29:
		return `"` + g.word(0)[:1] + "$(" + g.name() + ")`" + g.name() + "`\""
	}
}

// inner is what stands in a substitution.
func (g *generator) inner(depth int) string {
	s := g.stmt(depth)
	if strings.Contains(s, "\n") {
		return s + "\n"
	}
	return s
}

// text is a word that is read as shell text.
func (g *generator) text(depth int) string {
	s := g.script(min(depth, 1))
	switch g.upTo(9) {
	case 0:
		return `"$` + g.variable() + `"`
	case 1, 4:
		return "$'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(s) + "'"
	case 2, 3:
		if !strings.ContainsAny(s, "\"`!") {
			return `"` + s + `"` // what expands does so before
		}
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (g *generator) body(depth int, quoted bool) string {
	s := g.script(min(depth, 1))
	if strings.Contains(s, "\nE\n") || strings.HasPrefix(s, "E\n") || strings.Contains(s, "<<") {
		return g.name()
	}
	_ = quoted
	return s
}
