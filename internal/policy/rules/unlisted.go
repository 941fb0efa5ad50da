package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// optionNamed returns what an option does by its name, given with its dashes.
func optionNamed(name string) option {
	name = strings.ToLower(strings.TrimLeft(name, "-"))
	if o := vocabulary()[name].option; o != (option{}) {
		return o
	}
	name = strings.TrimPrefix(name, "only-")
	first, rest, parts := strings.Cut(name, "-")
	if !parts {
		return option{}
	}
	last := rest[strings.LastIndexByte(rest, '-')+1:]
	switch last {
	case "file", "dir", "directory", "path", "folder", "to", "outfile":
		for p := range strings.SplitSeq(name, "-") {
			switch p {
			case "out", "output", "outfile", "log", "report", "save", "export", "dump", "write", "results", "extract", "record":
				return option{file: namedOutput}
			}
		}
	case "out", "output", "logfile":
		return option{file: pathOutput}
	case "command", "cmd", "program", "hook":
		return option{caps: SetOf(CodeExecute), runs: true}
	case "fix", "correct", "place":
		if first == "auto" || first == "in" {
			return vocabulary()["fix"].option
		}
	}
	switch first {
	case "delete", "remove", "set", "write", "exec", "clear", "reset", "purge", "install", "kill", "uninstall", "flush", "erase",
		"wipe", "drop", "grant", "revoke", "upload":
		d := vocabulary()[first].option
		d.runs = false // --exec-prefix
		return d
	case "save", "report", "export":
		return option{file: attachedOutput}
	}
	return option{}
}

// unlisted judges an option that no table lists. words starts with the option; value is attached
// to it.
func (j *judge) unlisted(s *segment, sp *spec, p *parsed, name string, words []shell.Word, value string, attached bool) {
	p.unknown = name
	p.led = p.led || attached && strings.Contains(value, "/") && value != "/dev/null"
	d := optionNamed(name)
	w := words[0]
	given := attached
	switch {
	case attached:
		w = part(w, value)
	case len(words) > 1 && !strings.HasPrefix(words[1].Text, "-"):
		w, given = words[1], true
	}
	if d.does {
		p.doing = name
		p.does |= d.caps
	}
	if short := name[:max(strings.LastIndexByte(name, '-'), 0)]; !d.does && d.file == noOutput && len(short) > 2 {
		// --add-this may be a kind of a listed --add.
		if f := sp.lookup(short); f != nil && f.caps != 0 {
			p.doing = name
			p.does |= f.caps
		}
	}
	if !given {
		return
	}
	if d.runs && (!d.does || strings.ContainsAny(w.Text, " /")) && !isPager(w.Text) {
		p.doing = name
		p.does |= d.caps
	}
	if d.file == namedOutput && !isSwitch(w.Text) ||
		d.file == pathOutput && (w.Dynamic || pathLike(w.Text)) ||
		d.file == attachedOutput && attached && pathLike(w.Text) {
		j.write(s, w)
		return
	}
	if attached {
		j.mention(s, w)
	}
}

// isPager reports whether a command only displays its input.
func isPager(text string) bool {
	switch text {
	case "", "cat", "less", "more", "true", "false", ":", "less -R", "less -F", "less -FRX":
		return true
	}
	return false
}

func isSwitch(text string) bool {
	return text == "" || text == "true" || text == "false" || text == "no" || text == "yes" || text == "none"
}

// pathLike reports whether a word looks like a file rather than a format or a list.
func pathLike(text string) bool {
	if text == "" || text == "-" || strings.ContainsAny(text, "=,{}%:;|() \t\n") {
		return false
	}
	if strings.ContainsAny(text, "/~") {
		return true
	}
	dot := strings.LastIndexByte(text, '.')
	return dot > 0 && len(text)-dot > 1 && len(text)-dot <= 6 && strings.Trim(text, "0123456789.") != ""
}

// tags judges a program whose options show tags, and set them when a value is attached
// (exiftool).
func (j *judge) tags(s *segment, _ *parsed, _ []shell.Word) {
	for _, w := range s.words[min(1, len(s.words)):] {
		t := w.Text
		if len(t) > 2 && t[0] == '-' && t[1] != '-' && strings.Contains(t, "=") || strings.HasPrefix(strings.ToLower(t), "-tagsfromfile") {
			s.add(FilesystemWrite, t)
		}
	}
}

// exported judges export -f of a function with the name of a program.
func (j *judge) exported(s *segment, p *parsed, _ []shell.Word) {
	for i := range p.flags {
		if p.flags[i].flag.name != "-f" {
			continue
		}
		for _, w := range p.operands {
			if j.lookup(w.Text) != nil {
				s.add(EnvironmentPoison, "a function named as the program "+w.Text)
			}
		}
	}
}
