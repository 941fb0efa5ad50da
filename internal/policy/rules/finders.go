package rules

import (
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// findTakes are tests of find with a value, which is never an action.
var findTakes = set(`
	-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -xtype -user -group -uid
	-gid -size -perm -mtime -atime -ctime -mmin -amin -cmin -newer -anewer -cnewer -samefile -maxdepth -mindepth
	-fstype -links -inum -printf -regextype -used -context -D -newermt -newerct -newerat`)

// findNarrows are tests that select some of the files.
var findNarrows = set(`-name -iname -path -ipath -wholename -regex -iregex -empty -inum -lname -samefile -xtype`)

// find reads find's expression: starting points, tests and actions.
func (j *judge) find(s *segment, _ *parsed, _ []shell.Word) {
	words := s.words[1:]
	found, narrowed := j.found(words)
	starts := true
	for i := 0; i < len(words); i++ {
		w := words[i]
		if starts && !strings.HasPrefix(w.Text, "-") && w.Text != "(" && w.Text != "!" && w.Text != ")" {
			j.pathEffect(s, w, accessStat)
			if w.Many && w.Dynamic {
				s.add(ShellDynamic, w.Source)
			}
			continue
		}
		if w.Text != "-H" && w.Text != "-L" && w.Text != "-P" && !strings.HasPrefix(w.Text, "-O") && w.Text != "-D" {
			starts = false
		}
		switch w.Text {
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(words) && words[end].Text != ";" && !(words[end].Text == "+" && words[end-1].Text == "{}") {
				end++
			}
			if end > i+1 {
				cmd := append([]shell.Word{}, words[i+1:end]...)
				for n := range cmd {
					if cmd[n].Text == "{}" {
						cmd[n] = found
					} else if strings.Contains(cmd[n].Text, "{}") && n > 0 {
						cmd[n].Text = strings.ReplaceAll(cmd[n].Text, "{}", found.Text)
					}
				}
				s.add(CommandExecute, w.Text)
				j.nestedBelow(s, cmd, !narrowed)
			}
			i = end
		case "-delete":
			s.add(FilesystemDelete, w.Text)
			j.pathEffect(s, found, accessDelete)
			if narrowed {
				s.drop(SetOf(FilesystemDestroy))
			}
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i++; i < len(words) {
				j.write(s, words[i])
			}
		case "-files0-from":
			if i++; i < len(words) {
				j.pathEffect(s, words[i], accessRead)
			}
		default:
			if findTakes[w.Text] {
				i++
			}
		}
	}
}

// found returns a word for what find finds, a starting point joined with a name, and whether a
// test narrows it.
func (j *judge) found(words []shell.Word) (shell.Word, bool) {
	start, name, narrowed := shell.Word{Text: "."}, shell.Word{}, false
	first := true
	for i := range words {
		t := words[i].Text
		if first && !strings.HasPrefix(t, "-") && t != "(" && t != "!" {
			start, first = words[i], false
		}
		narrowed = narrowed || findNarrows[t]
		if (t == "-name" || t == "-iname") && i+1 < len(words) && name.Text == "" {
			name = words[i+1]
		}
	}
	if name.Text != "" {
		if c := path.Clean(start.Text); c == "/home" { // a user's directory is between
			start.Text = c + "/_"
		}
		start.Text = strings.TrimSuffix(start.Text, "/") + "/" + name.Text
		start.Glob = strings.ContainsAny(start.Text, "*?[")
	}
	return start, narrowed
}

// nestedBelow judges a command that gets the names of files; all says that these are all files below the
// directory which stands for them in words.
func (j *judge) nestedBelow(s *segment, words []shell.Word, all bool) {
	before := j.below
	j.below = all
	j.nested(s, words)
	j.below = before
}

// heard judges a loop that reads names that a command before it lists. What the loop does with
// them is unknown, so secrets among them count as read.
func (j *judge) heard(s *segment, from int) {
	before := j.facts.Commands[from].Argv
	if len(before) < 2 {
		return
	}
	listed := func(w shell.Word) {
		p, glob := canonical(w, j.q.Home, j.dir)
		if set, class := j.pathCaps(p, glob, accessRead); set.Has(SecretRead) {
			s.add(SecretRead, w.Text+" ("+class+")")
		}
	}
	switch programName(before[0].Text) {
	case "find":
		w, _ := j.found(before[1:])
		listed(w)
	case "ls", "echo", "printf", "locate", "plocate", "fd", "realpath", "readlink":
		for _, w := range before[1:] {
			listed(w)
		}
	}
}

// xargs judges its command with the words that the pipe is known to bring.
func (j *judge) xargs(s *segment, p *parsed, rest []shell.Word) {
	words := append(append([]shell.Word{}, p.operands...), rest...)
	if len(words) == 0 {
		return
	}
	s.add(CommandExecute, words[0].Text)
	all := false
	if s.fact != nil && s.fact.From >= 0 {
		before := j.facts.Commands[s.fact.From].Argv
		if len(before) > 0 {
			switch programName(before[0].Text) {
			case "find":
				w, narrowed := j.found(before[1:])
				all = !narrowed
				if !narrowed || w.Text != "." && !roots[w.Text] {
					words = append(words, w)
				}
			case "echo", "printf", "ls", "locate", "plocate", "which", "realpath", "readlink":
				if len(before) > 2 && before[0].Text == "printf" {
					// printf builds paths from a format.
					text := before[1].Text
					for _, w := range before[2:] {
						text = strings.Replace(text, "%s", w.Text, 1)
					}
					before = []shell.Word{before[0], part(before[1], text)}
				}
				for _, w := range before[1:] {
					if !strings.HasPrefix(w.Text, "-") {
						for f := range strings.FieldsSeq(strings.NewReplacer(`\n`, " ", `\0`, " ").Replace(w.Text)) {
							words = append(words, part(w, f))
						}
					}
				}
			}
		}
	}
	braces, mark := false, "{}"
	if v, ok := valueOf(p, "-I"); ok && v.Text != "" {
		mark = v.Text
	}
	for i := range words {
		if strings.Contains(words[i].Text, mark) {
			words[i].Dynamic, braces = true, true
		}
	}
	if s.fact != nil {
		for _, r := range s.fact.Redirects {
			if r.Mode == shell.String || r.Mode == shell.Heredoc {
				for f := range strings.FieldsSeq(r.Target.Text) {
					words = append(words, part(r.Target, f))
				}
			}
		}
	}
	if !braces {
		words = append(words, shell.Word{Text: "$input", Source: "its input", Dynamic: true})
	}
	at := len(j.segs)
	j.nestedBelow(s, words, all)
	if len(j.segs) == at {
		return
	}
	if n := j.segs[at]; n.nested && n.spec != nil && (shells[n.spec.name] || n.spec.caps.Has(CodeExecute)) {
		n.add(ShellDynamic, "xargs runs its input")
		if s.fact != nil && s.fact.From >= 0 && j.sourceOf(s.fact.From) != NoCapability {
			n.add(RemoteCodeExecute, "xargs runs its input")
		}
	}
}

// grep judges a search for secrets in a whole tree.
func (j *judge) grep(s *segment, p *parsed, _ []shell.Word) {
	pattern := ""
	for i := range p.flags {
		pattern += p.flags[i].value.Text + " "
	}
	if s.fact != nil && s.fact.From >= 0 && len(p.operands) > 0 && hunted.MatchString(pattern+p.operands[0].Text) {
		if before := j.facts.Commands[s.fact.From].Argv; len(before) > 0 {
			switch before[0].Text {
			case "git", "npm", "php", "pip", "docker", "podman", "systemctl", "kubectl":
				if len(before) > 1 && shows[before[1].Text] {
					s.add(SecretRead, "looks for "+p.operands[0].Text+" in "+before[0].Text+" "+before[1].Text)
				}
			case "env", "printenv", "set", "declare", "export", "typeset", "history", "compgen":
				s.add(SecretRead, "looks for "+p.operands[0].Text+" in the environment")
			}
		}
	}
	if !s.recursive() && programName(s.words[0].Text) != "rg" {
		return
	}
	for i, w := range p.operands {
		if i == 0 && !hasFlag(p, "-e") && !hasFlag(p, "-f") {
			pattern += w.Text
			continue
		}
		at, _ := canonical(w, j.q.Home, j.dir)
		if secretTrees[at] && (everything.MatchString(strings.TrimSpace(pattern)) || hasFlag(p, "-v")) {
			s.add(SecretRead, "all of "+w.Text)
		}
		if wideTree.MatchString(at) && hunted.MatchString(pattern) {
			s.add(SecretRead, "looks for "+pattern+" in all of "+w.Text)
		}
	}
}

// shows are subcommands that print settings, which may include secrets.
var shows = set(`config -i inspect history show cat get describe`)

// fd runs a command for each file; all words after -x are that command.
func (j *judge) fd(s *segment, _ *parsed, _ []shell.Word) {
	words := s.words[1:]
	for i := range words {
		switch words[i].Text {
		case "-x", "--exec", "-X", "--exec-batch":
			if cmd := words[i+1:]; len(cmd) > 0 {
				s.add(CommandExecute, cmd[0].Text)
				j.nested(s, append(append([]shell.Word{}, cmd...), shell.Word{Text: "$found", Source: "what it finds", Dynamic: true}))
			}
			return
		}
	}
}
