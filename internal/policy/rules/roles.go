package rules

import (
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// role says what a word is to a program.
type role struct {
	name string
	// rest: it takes all remaining words.
	rest  bool
	apply func(j *judge, s *segment, words []shell.Word)
}

// roles is the table of roles; docs/policy/commands.md describes them.
var roles map[string]role

// special judges what tables cannot express. It runs after flags and operands.
type special func(j *judge, s *segment, p *parsed, rest []shell.Word)

func init() { //nolint:gochecknoinits // roles refer to functions that refer to them
	each := func(f func(j *judge, s *segment, w shell.Word)) func(*judge, *segment, []shell.Word) {
		return func(j *judge, s *segment, words []shell.Word) {
			for i := range words {
				f(j, s, words[i])
			}
		}
	}
	paths := func(a access, caps ...Capability) func(*judge, *segment, []shell.Word) {
		return each(func(j *judge, s *segment, w shell.Word) {
			for _, c := range caps {
				s.add(c, w.Text)
			}
			j.pathEffect(s, w, a)
		})
	}
	nothing := func(*judge, *segment, []shell.Word) {}
	table := []role{
		{name: "text", apply: each((*judge).mention)},
		// A value of digits that is attached to its option, as in perl -0777ne.
		{name: "digits", apply: nothing},
		// For a special function: options of the command that is run are not options of the
		// runner.
		{name: "rest", rest: true, apply: nothing},
		{name: "show", apply: each(func(_ *judge, s *segment, w shell.Word) {
			if w.Dynamic && secretName.MatchString(w.Text) {
				s.add(SecretRead, w.Text)
			}
		})},
		{name: "package", apply: each(func(_ *judge, s *segment, w shell.Word) {
			if strings.Contains(w.Text, "://") || strings.HasPrefix(w.Text, "git+") || strings.HasPrefix(w.Text, "github:") {
				s.add(NetworkIn, w.Text)
			}
		})},
		{name: "pgurl", apply: each(func(j *judge, s *segment, w shell.Word) {
			if strings.Contains(w.Text, "://") {
				j.out(s, w)
			}
		})},
		{name: "server", apply: each(func(j *judge, s *segment, w shell.Word) { j.out(s, w) })},
		{name: "stat", apply: paths(accessStat)},
		{name: "read", apply: paths(accessRead)},
		{name: "tree", apply: paths(accessTree)},
		{name: "write", apply: each((*judge).write)},
		{name: "delete", apply: paths(accessDelete, FilesystemDelete)},
		{name: "mode", apply: paths(accessMode, FilesystemPermission)},
		{name: "move", apply: func(j *judge, s *segment, words []shell.Word) {
			paths(accessRead)(j, s, words)
			paths(accessDelete)(j, s, words)
		}},
		// A directory that files are written into; judge a path below it too.
		{name: "into", apply: each(func(j *judge, s *segment, w shell.Word) {
			s.add(FilesystemWrite, w.Text)
			j.pathEffect(s, w, accessWrite)
			if w.Text == "/dev/null" && s.program == "mv" {
				s.add(FilesystemDelete, w.Text)
			}
			if w.Text == "/" {
				s.add(FilesystemSystemWrite, w.Text)
			}
			below := w
			below.Text = strings.TrimSuffix(w.Text, "/") + "/x"
			j.pathEffect(s, below, accessWrite)
		})},
		{name: "script", apply: each(func(j *judge, s *segment, w shell.Word) {
			if w.Text == "-" || isInput(w.Text) {
				s.caps |= 1 << interpretsInput
				return
			}
			s.add(CodeExecute, w.Text)
			if w.Dynamic && j.decoded(s.index) {
				s.add(RemoteCodeExecute, w.Source)
			}
			j.pathEffect(s, w, accessRead)
		})},
		{name: "code", apply: each(func(j *judge, s *segment, w shell.Word) {
			s.add(CodeExecute, w.Text)
			j.codeText(s, w.Text)
		})},
		{name: "program", apply: each(func(j *judge, s *segment, w shell.Word) {
			s.add(CommandExecute, w.Text)
			j.nested(s, []shell.Word{w})
		})},
		{name: "command", rest: true, apply: func(j *judge, s *segment, words []shell.Word) {
			s.add(CommandExecute, words[0].Text)
			j.nested(s, words)
		}},
		{name: "envcommand", rest: true, apply: func(j *judge, s *segment, words []shell.Word) {
			for len(words) > 0 {
				name, value, ok := strings.Cut(words[0].Text, "=")
				if !ok || name == "" || strings.HasPrefix(name, "-") {
					break
				}
				j.assign(s, name, part(words[0], value))
				words = words[1:]
			}
			if len(words) > 0 {
				s.add(CommandExecute, words[0].Text)
				j.nested(s, words)
			}
		}},
		{name: "shell", apply: each((*judge).shellText)},
		{name: "shellrest", rest: true, apply: func(j *judge, s *segment, words []shell.Word) {
			j.shellText(s, join(words))
		}},
		{name: "assign", apply: each(func(j *judge, s *segment, w shell.Word) {
			name, value, _ := strings.Cut(w.Text, "=")
			j.assign(s, name, part(w, value))
		})},
		{name: "searchpath", apply: each(func(_ *judge, s *segment, w shell.Word) {
			// An entry after the search path is used only if nothing else has the name.
			if rest, ok := strings.CutPrefix(w.Text, "$PATH:"); ok && strings.HasPrefix(rest, "/usr/") {
				return
			}
			own := w.Text != "$PATH" && w.Text != "${PATH}"
			for dir := range strings.SplitSeq(w.Text, ":") {
				own = own && (programDirs[dir] || dir == "$PATH" || dir == "${PATH}")
			}
			if !own {
				s.add(EnvironmentPoison, "PATH="+w.Text)
			}
		})},
		{name: "editor", apply: each(func(j *judge, s *segment, w shell.Word) {
			if isPager(w.Text) {
				return
			}
			s.add(EnvironmentPoison, w.Text)
			if !w.Dynamic {
				j.shellText(s, w)
			}
		})},
		{name: "url", apply: each((*judge).fetch)},
		{name: "host", apply: each(func(_ *judge, s *segment, w shell.Word) { s.add(NetworkOut, w.Text) })},
		// A server that is queried; this machine's own is like reading a file.
		{name: "service", apply: each(func(j *judge, s *segment, w shell.Word) {
			t := strings.TrimPrefix(strings.TrimPrefix(w.Text, "ldaps://"), "ldap://")
			if !w.Dynamic && !strings.ContainsAny(t, "@?") && loopback.MatchString(t) && !strings.HasPrefix(w.Text, "/") {
				s.add(NetworkQuery, w.Text)
				return
			}
			j.out(s, w)
		})},
		{name: "query", apply: each(func(j *judge, s *segment, w shell.Word) {
			s.add(NetworkQuery, w.Text)
			if w.Dynamic && strings.ContainsAny(w.Text, "(`") || j.carries(s, w) {
				s.add(NetworkOut, w.Text) // the name may carry data
			}
		})},
		{name: "from", apply: each(func(j *judge, s *segment, w shell.Word) {
			if remotePath(w.Text) {
				s.add(NetworkIn, w.Text)
				return
			}
			j.pathEffect(s, w, accessRead)
		})},
		// A profile for pprof; that of a program on this machine is like a file.
		{name: "profile", apply: each(func(j *judge, s *segment, w shell.Word) {
			if remotePath(w.Text) && !w.Dynamic && loopback.MatchString(w.Text) && !strings.HasPrefix(w.Text, "unix:") {
				s.add(NetworkQuery, w.Text)
				return
			}
			roles["from"].apply(j, s, []shell.Word{w})
		})},
		{name: "to", apply: each(func(j *judge, s *segment, w shell.Word) {
			if remotePath(w.Text) {
				s.add(NetworkOut, w.Text)
				return
			}
			j.write(s, w)
			if s.caps.Has(FilesystemDelete) {
				j.pathEffect(s, w, accessDelete)
			}
			if w.Text == "/" {
				s.add(FilesystemSystemWrite, w.Text)
			}
		})},
		{name: "device", apply: each(func(j *judge, s *segment, w shell.Word) {
			s.add(BlockDeviceMutate, w.Text)
			j.pathEffect(s, w, accessWrite)
		})},
		{name: "sql", apply: each((*judge).sql)},
		{name: "sed", apply: each((*judge).sed)},
		{name: "awk", apply: each((*judge).awk)},
		{name: "vim", apply: each((*judge).vim)},
		{name: "chmod", apply: each((*judge).modeWord)},
		{name: "volume", apply: each((*judge).volume)},
		{name: "gitconfig", apply: each((*judge).gitConfig)},
		{name: "option", apply: each((*judge).sshOption)},
		{name: "dd", apply: each((*judge).ddOperand)},
		{name: "aptoption", apply: each((*judge).aptOption)},
		{name: "socat", apply: each((*judge).socat)},
		{name: "giturl", apply: each((*judge).gitURL)},
		// A repository to fetch from: a path is local, a name stands for a remote.
		{name: "gitfrom", apply: each(func(j *judge, s *segment, w shell.Word) {
			j.gitURL(s, w)
			t := w.Text
			if strings.HasPrefix(t, "file://") || strings.HasPrefix(t, ".") || strings.HasPrefix(t, "/") || strings.HasPrefix(t, "~") {
				j.pathEffect(s, w, accessStat)
				return
			}
			s.add(NetworkIn, t)
		})},
		// A repository whose references are listed: by a configured name or by address.
		{name: "gitask", apply: each(func(j *judge, s *segment, w shell.Word) {
			j.gitURL(s, w)
			if strings.ContainsAny(w.Text, ":/") {
				s.add(NetworkIn, w.Text)
			}
			s.add(NetworkQuery, w.Text)
			if w.Dynamic && strings.ContainsAny(w.Text, "(`") {
				s.add(NetworkOut, w.Text) // the name may carry data
			}
		})},
		{name: "gitset", apply: each(func(j *judge, s *segment, w shell.Word) {
			if strings.EqualFold(w.Text, "http.sslVerify") {
				s.add(SecurityDisable, w.Text)
			}
			if gitCommands.MatchString(w.Text) {
				s.add(Persistence, w.Text)
				s.add(CodeExecute, w.Text)
			}
		})},
		{name: "refspec", apply: each(func(_ *judge, s *segment, w shell.Word) {
			if strings.HasPrefix(w.Text, "+") || strings.HasPrefix(w.Text, ":") {
				s.add(GitMutate, w.Text)
			}
		})},
		{name: "s3", apply: each((*judge).s3)},
		{name: "mongo", apply: each((*judge).mongo)},
		{name: "sysctl", apply: each(func(_ *judge, s *segment, w shell.Word) {
			if strings.Contains(w.Text, "=") {
				s.add(KernelMutate, w.Text)
				if strings.HasPrefix(w.Text, "net.") {
					s.add(NetworkConfigure, w.Text)
				}
				if protections.MatchString(w.Text) {
					s.add(SecurityDisable, w.Text)
				}
			}
		})},
		{name: "data", apply: each(func(j *judge, s *segment, w shell.Word) {
			if f, ok := strings.CutPrefix(w.Text, "@"); ok {
				j.pathEffect(s, part(w, f), accessRead)
			} else if _, f, ok := strings.Cut(w.Text, "=@"); ok {
				f, _, _ = strings.Cut(f, ";")
				j.pathEffect(s, part(w, f), accessRead)
			}
		})},
	}
	table = append(table, placeRoles()...)
	roles = make(map[string]role, len(table))
	for _, r := range table {
		roles[r.name] = r
	}
}

// join joins words into one, as ssh does.
func join(words []shell.Word) shell.Word {
	if len(words) == 1 {
		return words[0]
	}
	var all shell.Word
	texts := make([]string, len(words))
	for i := range words {
		texts[i] = words[i].Text
		all.Dynamic = all.Dynamic || words[i].Dynamic
	}
	all.Text = strings.Join(texts, " ")
	all.Source = all.Text
	return all
}

// nested judges a command in the words of another.
func (j *judge) nested(s *segment, words []shell.Word) {
	j.depth++
	defer func() { j.depth-- }()
	n := j.segment(words, join(words).Text, s.name())
	if n == nil {
		return
	}
	n.nested = true
	j.command(n)
	j.carrels(n)
	s.caps |= n.caps & (1 << interpretsInput) // it shares its runner's standard input
}

func (s *segment) name() string {
	if s.program != "" {
		return s.program
	}
	if len(s.words) > 0 {
		return s.words[0].Text
	}
	return ""
}

// shellText judges a word that a shell will read.
func (j *judge) shellText(s *segment, w shell.Word) {
	s.add(CommandExecute, w.Text)
	if w.Dynamic && j.decoded(s.index) {
		s.add(RemoteCodeExecute, w.Source)
	}
	if s.index >= 0 && s.spec != nil && shells[s.spec.name] && j.hasChildren(s.index) {
		return // the facts include it
	}
	if w.Dynamic {
		s.add(ShellDynamic, w.Source)
	}
	if len(j.facts.Troubles) > 0 && j.depth > maxNesting {
		return
	}
	facts := shell.Nested(w.Text, shell.Bash, j.depth+1, j.limits)
	inner := &judge{
		room: j.room, k: j.k, facts: &facts, dir: j.dir, depth: j.depth + 1, limits: j.limits, names: j.names, inside: j.inside,
		q: &Question{Home: j.q.Home, Dir: j.dir, Mounts: j.q.Mounts},
	}
	if inner.depth > maxNesting {
		s.add(InputInvalid, "commands within commands are too deep to judge")
		return
	}
	if len(facts.Functions) > 0 {
		names := map[string]bool{}
		for _, f := range facts.Functions {
			names[f] = true
		}
		inner.names = names
	}
	if facts.Empty && len(facts.Troubles) == 0 && len(facts.Oddities) == 0 {
		return
	}
	inner.all()
	for _, n := range inner.segs {
		if n.via == "" {
			n.via = s.name()
		}
	}
	if len(j.segs)+len(inner.segs) > maxSegments {
		s.add(InputInvalid, "commands within commands are too many to judge")
		return
	}
	j.segs = append(j.segs, inner.segs...)
}

var shells = set(`sh eval trap`)

func (j *judge) hasChildren(index int) bool {
	for i := range j.facts.Commands {
		if j.facts.Commands[i].Parent == index && j.facts.Commands[i].Context.Text {
			return true
		}
	}
	return false
}

// modeWord judges a mode of chmod: a setuid or setgid bit escalates privileges.
func (j *judge) modeWord(s *segment, w shell.Word) {
	t := w.Text
	if strings.ContainsAny(t, "s") && strings.ContainsAny(t, "+=") {
		s.add(PrivilegeEscalate, "mode "+t)
	}
	if d := strings.TrimLeft(t, "0"); len(d) == 4 && strings.Trim(d, "01234567") == "" && (d[0]-'0')&6 != 0 {
		s.add(PrivilegeEscalate, "mode "+t)
	}
}

// ddOperand judges an operand of dd.
func (j *judge) ddOperand(s *segment, w shell.Word) {
	name, value, _ := strings.Cut(w.Text, "=")
	v := part(w, value)
	switch name {
	case "if":
		j.pathEffect(s, v, accessRead)
	case "of":
		j.write(s, v)
	}
}

var gitCommands = lazy(`(?i)^(?:core\.(?:pager|editor|sshcommand|fsmonitor|hookspath|askpass|gitproxy|alternaterefscommand)|` +
	`alias\..*|pager\..*|diff\.(?:external|.*\.(?:command|textconv))|difftool\..*|mergetool\..*|` +
	`merge\..*\.driver|filter\..*\.(?:clean|smudge|process)|gpg\.program|gpg\..*\.program|credential\.helper|` +
	`credential\..*\.helper|sequence\.editor|uploadpack\..*|receive\..*|protocol\.ext\.allow|` +
	`sendemail\..*cmd|browser\..*|web\.browser|interactive\.difffilter|remote\..*\.(?:uploadpack|receivepack|` +
	`vcs|proxy)|url\..*|init\.templatedir|include\.path|includeif\..*|submodule\..*\.update)$`)

// gitConfig judges name=value for git; many settings are commands.
func (j *judge) gitConfig(s *segment, w shell.Word) {
	name, value, _ := strings.Cut(w.Text, "=")
	if strings.EqualFold(name, "core.pager") || strings.HasPrefix(strings.ToLower(name), "pager.") {
		switch value {
		case "cat", "less", "", "false", "true", "more":
			return
		}
	}
	if strings.EqualFold(name, "http.sslverify") && (strings.EqualFold(value, "false") || value == "0") {
		s.add(SecurityDisable, w.Text)
	}
	if w.Dynamic && strings.ContainsAny(name, "$`") {
		s.add(ShellDynamic, w.Text)
	}
	if gitCommands.MatchString(name) {
		s.add(CodeExecute, w.Text)
		if v, ok := strings.CutPrefix(value, "!"); ok {
			j.shellText(s, part(w, v))
		} else if strings.Contains(strings.ToLower(name), "command") || strings.Contains(strings.ToLower(name), "pager") ||
			strings.Contains(strings.ToLower(name), "editor") || strings.Contains(strings.ToLower(name), "fsmonitor") {
			j.shellText(s, part(w, value))
		}
	}
}

// cleanDir returns the directory after cd.
func cleanDir(dir, to string) string {
	if strings.HasPrefix(to, "/") {
		return cleanAbsolute(to, "")
	}
	if dir == "" {
		return ""
	}
	return path.Join(dir, to)
}

// protections matches kernel settings that protect the machine.
var protections = lazy(`randomize_va_space|kptr_restrict|dmesg_restrict|yama\.|unprivileged_|protected_|suid_dumpable|` +
	`perf_event_paranoid|kexec_load_disabled|modules_disabled|rp_filter|accept_redirects|accept_source_route|` +
	`tcp_syncookies|sysrq`)

// Dir and RootDir lead to another tree, with its own configuration and methods.
var aptHooks = lazy(`(?i)(?:(?:^|:)(?:root)?dir(?:::|$)|solver|invoke|post-run|pre-install|dpkg::|proxy-auto-detect|binary::|::run)`)

// aptOption judges Name=value for apt; hooks are commands.
func (j *judge) aptOption(s *segment, w shell.Word) {
	name, value, _ := strings.Cut(w.Text, "=")
	if strings.Contains(strings.ToLower(name), "options::") {
		return // how dpkg treats changed configuration
	}
	if aptHooks.MatchString(name) {
		s.add(CodeExecute, w.Text)
		j.shellText(s, part(w, value))
	}
	if strings.Contains(strings.ToLower(name), "verify-") && (value == "false" || value == "0") {
		s.add(SecurityDisable, w.Text)
	}
	if strings.Contains(strings.ToLower(name), "allow") && (value == "true" || value == "1") {
		s.add(SecurityDisable, w.Text)
	}
}
