package rules

import (
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// sends adds network.out to an unknown program, or to code, whose words say that it sends
// something.
func (j *judge) sends(s *segment) {
	if s.caps&SetOf(CodeExecute, ProgramUnknown) == 0 || s.caps.Has(NetworkOut) {
		return
	}
	for i := 1; i < len(s.words); i++ {
		t := s.words[i].Text
		if t == staysHere[s.program] || t == "release" && strings.HasPrefix(s.words[i-1].Text, "-") {
			continue // the build is called so: -c release
		}
		if goesOut[t] || strings.HasPrefix(t, "deploy:") || strings.HasPrefix(t, "publish") {
			s.add(NetworkOut, t)
		}
	}
}

// endsReading are programs that stop before the end of their input, or whose input is a single
// answer.
var endsReading = set(`head dd sed awk grep read timeout od hexdump xxd cut`)

// multiplies are programs that start a program for each line they read.
var multiplies = set(`xargs parallel sh`)

// endless adds what never ends by itself: reading endless devices to their end, processes that
// start processes, more data than a disk holds.
func (j *judge) endless(s *segment, c *shell.Command) {
	if c.Context.Endless && c.Context.Background && !j.pauses(s.index) {
		s.add(ResourceExhaust, "starts processes without end: "+c.Text)
	}
	if len(s.words) > 0 && s.words[0].Text == "$0" && (c.Context.Background || c.From >= 0 || c.Into >= 0) {
		s.add(ResourceExhaust, c.Text)
	}
	for i := range s.words {
		if w := &s.words[i]; strings.IndexByte(w.Source, '{') >= 0 && manyWords(w) {
			s.add(ResourceExhaust, "braces that make more words than a machine holds")
		}
		if w := &s.words[i]; strings.Contains(w.Source, "..") {
			if m := ranges.compiled().FindStringSubmatch(w.Source); m != nil && wide(m) {
				s.add(ResourceExhaust, w.Source)
			}
		}
	}
	if s.program == "yes" && c.Into >= 0 {
		if argv := j.facts.Commands[c.Into].Argv; len(argv) > 0 && multiplies[programName(argv[0].Text)] {
			s.add(ResourceExhaust, c.Text+" | "+argv[0].Text)
		}
	}
	if c.Into < 0 || !endlessReaders[s.program] {
		return
	}
	for i := 1; i < len(s.words); i++ {
		switch s.words[i].Text {
		case "/dev/zero", "/dev/urandom", "/dev/random":
			if !j.limited(c.Into) {
				s.add(ResourceExhaust, s.words[i].Text)
			}
		}
	}
}

// limited reports whether a command of the pipe from i on stops before its input ends.
func (j *judge) limited(i int) bool {
	for n := 0; i >= 0 && n < 64; n++ {
		c := &j.facts.Commands[i]
		if len(c.Argv) == 0 || c.Argv[0].Dynamic || endsReading[programName(c.Argv[0].Text)] {
			return true
		}
		if !endlessReaders[programName(c.Argv[0].Text)] && programName(c.Argv[0].Text) != "tr" && programName(c.Argv[0].Text) != "fold" {
			return true // it may stop at any time
		}
		i = c.Into
	}
	return false
}

// pauses reports whether the loop around a command waits somewhere or ends.
func (j *judge) pauses(index int) bool {
	around := func(step int) bool {
		for i := index + step; i >= 0 && i < len(j.facts.Commands) && j.facts.Commands[i].Context.Endless; i += step {
			c := &j.facts.Commands[i]
			if len(c.Argv) == 0 || c.Context.Background {
				continue
			}
			switch c.Argv[0].Text {
			case ":", "true", "false", "((", "[", "[[", "test", "echo", "printf":
			default:
				return true
			}
		}
		return false
	}
	return around(-1) || around(1)
}

// ranges matches {N..M}.
var ranges = lazy(`\{(-?[0-9]+)\.\.(-?[0-9]+)\}`)

// wide reports whether a range has a million names or more.
func wide(m []string) bool {
	from, err1 := strconv.ParseInt(m[1], 10, 64)
	to, err2 := strconv.ParseInt(m[2], 10, 64)
	return err1 != nil || err2 != nil || to-from >= 1e6 || from-to >= 1e6
}

// decoded reports whether a command gets the output of a substitution that decodes or fetches.
func (j *judge) decoded(index int) bool {
	for i := index + 1; i < len(j.facts.Commands) && index >= 0; i++ {
		c := &j.facts.Commands[i]
		if c.Parent != index {
			continue
		}
		if !c.Context.Substitution || c.Context.Text || len(c.Argv) == 0 {
			continue
		}
		if name := programName(c.Argv[0].Text); decodes[name] || fetchers.MatchString(name) && !strings.Contains(name, "-") {
			return true
		}
	}
	return false
}

// decodes are programs whose purpose is to transform their input.
var decodes = set(`
	base64 base32 basenc xxd uudecode rev tr gunzip zcat bunzip2 bzcat xz xzcat zstd rot13 gpg openssl`)

// indexed matches a variable's name with an index that runs a command when the name is evaluated.
var indexed = lazy("^[A-Za-z_][A-Za-z_0-9]*\\[.*(?:\\$\\(|`)")

// takesVariables are builtins whose words are names of variables.
var takesVariables = set(`
	read mapfile readarray unset export declare typeset local readonly let printf test [ [[ (( wait getopts nameref`)

// variableNames adds the commands in indices of variables' names, which the shell evaluates.
func (j *judge) variableNames(s *segment) {
	if !takesVariables[s.program] {
		return
	}
	for i := 1; i < len(s.words); i++ {
		w := &s.words[i]
		text := strings.TrimLeft(w.Text, `'"`)
		if strings.IndexByte(text, '[') < 1 || !indexed.MatchString(text) {
			continue
		}
		s.add(ShellObfuscated, w.Source)
		inner := w.Text[strings.IndexByte(w.Text, '['):]
		j.shellText(s, shell.Word{Text: ": " + strings.TrimRight(inner, "=]0123456789"), Source: w.Source})
	}
}

// echoed returns the known input of a command from the command before it, empty if unknown.
func (j *judge) echoed(from int) string {
	c := &j.facts.Commands[from]
	if len(c.Argv) == 0 {
		return ""
	}
	var b strings.Builder
	switch c.Argv[0].Text {
	case "echo", "printf":
		for _, w := range c.Argv[1:] {
			b.WriteString(w.Text)
			b.WriteByte('\n')
		}
	case "cat":
		for _, r := range c.Redirects {
			if r.Mode == shell.Heredoc || r.Mode == shell.String {
				b.WriteString(r.Target.Text)
			}
		}
	}
	return b.String()
}

// maxLooped limits the words of a loop that are judged for each word in it.
const maxLooped = 16

// looped returns the values of a word that is a variable of the loops around its command.
func (j *judge) looped(s *segment, w shell.Word) []shell.Word {
	var out []shell.Word
	for i := range j.facts.Loops {
		l := &j.facts.Loops[i]
		if s.fact != nil && (s.fact.Start < l.Start || s.fact.End > l.End) {
			continue
		}
		for _, name := range [...]string{"${" + l.Name + "}", "$" + l.Name} {
			at := strings.Index(w.Text, name)
			if at < 0 || name[1] != '{' && at+len(name) < len(w.Text) && inName(w.Text[at+len(name)]) {
				continue
			}
			for _, item := range l.Items[:min(len(l.Items), maxLooped)] {
				v := w
				v.Text = w.Text[:at] + item.Text + w.Text[at+len(name):]
				if strings.Contains(v.Text, name) {
					continue // the name is in it twice
				}
				v.Dynamic = strings.ContainsAny(v.Text, "$`")
				v.Glob = w.Glob || item.Glob
				out = append(out, v)
			}
		}
	}
	return out
}

// loopedProgram judges a program whose name is the variable of a loop over known words, once for
// each word. It reports whether all of them are known.
func (j *judge) loopedProgram(s *segment) bool {
	w := s.words[0]
	if s.nested || len(w.Text) < 2 || w.Text[0] != '$' {
		return false
	}
	inner, total := 0, 0
	for i := range j.facts.Loops {
		l := &j.facts.Loops[i]
		if s.fact == nil || s.fact.Start < l.Start || s.fact.End > l.End {
			continue
		}
		if w.Text == "$"+l.Name || w.Text == "${"+l.Name+"}" {
			inner, total = inner+1, len(l.Items)
		}
	}
	items := j.looped(s, w)
	if inner != 1 || len(items) != total || total == 0 {
		return false
	}
	for i := range items {
		if items[i].Dynamic || items[i].Glob || items[i].Text == "" || strings.ContainsAny(items[i].Text, " \t\n") {
			return false
		}
	}
	// An assignment in the loop overrides the loop's variable.
	for i := range j.facts.Commands {
		c := &j.facts.Commands[i]
		for k := range c.Assigns {
			if strings.Contains(w.Text, c.Assigns[k].Name) {
				return false
			}
		}
		if len(c.Argv) > 0 && takesVariables[c.Argv[0].Text] && !asksOnly[c.Argv[0].Text] {
			return false
		}
	}
	for i := range items {
		j.nested(s, append([]shell.Word{items[i]}, s.words[1:]...))
	}
	return true
}

// asksOnly are the takesVariables that set no variable.
var asksOnly = set(`test [ [[ printf wait export`)

// carried matches a host name with a variable part.
var carried = lazy(`^(?:\$\w+|\$\{\w+\})\.[A-Za-z0-9._-]+$`)

// carries reports whether a queried host name carries data: a value that a loop reads, before a
// fixed domain.
func (j *judge) carries(s *segment, w shell.Word) bool {
	if !w.Dynamic || s.fact == nil || !s.fact.Context.Loop || !carried.MatchString(w.Text) {
		return false
	}
	for _, item := range j.looped(s, w) {
		if !item.Dynamic {
			return false // the loop has literal words
		}
	}
	return true
}
