package rules

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// specials holds the functions for what tables cannot express, by name.
var specials map[string]special

func init() { //nolint:gochecknoinits // they refer to functions that refer to them
	specials = map[string]special{
		"find":     (*judge).find,
		"cd":       (*judge).cd,
		"curl":     (*judge).curl,
		"xargs":    (*judge).xargs,
		"grep":     (*judge).grep,
		"tar":      (*judge).tar,
		"python":   (*judge).python,
		"sudo":     (*judge).sudo,
		"unset":    (*judge).unset,
		"history":  (*judge).history,
		"shell":    (*judge).shellProgram,
		"kubectl":  (*judge).kubectl,
		"wget":     (*judge).wget,
		"piped":    (*judge).piped,
		"make":     (*judge).makeArguments,
		"docker":   (*judge).docker,
		"source":   (*judge).source,
		"fd":       (*judge).fd,
		"dd":       (*judge).dd,
		"feed":     (*judge).feed,
		"mount":    (*judge).mount,
		"umount":   (*judge).umount,
		"yq":       (*judge).yq,
		"sqlite":   (*judge).sqlite,
		"calc":     (*judge).calculator,
		"tags":     (*judge).tags,
		"exported": (*judge).exported,
		// A package manager fetches the program and runs it.
		"package": (*judge).packaged,
	}
}

func (j *judge) cd(s *segment, p *parsed, _ []shell.Word) {
	if s.nested {
		return
	}
	if s.fact != nil && s.fact.Context.Subshell && j.outside == nil {
		dir := j.dir
		j.outside = &dir
	}
	if len(p.operands) == 0 {
		j.dir = "/~"
		return
	}
	to, glob := canonical(p.operands[0], j.q.Home, "")
	if glob || strings.Contains(to, unknownPart) {
		j.dir = ""
		return
	}
	j.dir = cleanDir(j.dir, to)
}

var (
	hunted = lazy(`(?i)pass|_auth|authtoken|secret|api[_-]?key|private.key|access[_-]?key|AKIA|token|credential|` +
		`BEGIN.*(?:KEY|RSA|DSA|EC|OPENSSH|PGP)`)
	// everything matches patterns that each line has, or nearly each.
	everything = lazy(`^[\^$.*+?|()\[\]\\swSW]*$`)
	wideTree   = lazy(`^/(?:var/www|var/backups|srv/[^/]+|~/[^/.]+|etc|home|root|~|var|opt|srv|usr|mnt|~/\.[a-z]+)?(?:/\*)?$`)
)

// dd without an end copies until the disk is full.
func (j *judge) dd(s *segment, p *parsed, _ []shell.Word) {
	endless, ends, out := false, false, false
	for _, w := range p.operands {
		endless = endless || w.Text == "if=/dev/zero" || w.Text == "if=/dev/urandom" || w.Text == "if=/dev/random"
		ends = ends || strings.HasPrefix(w.Text, "count=")
		out = out || strings.HasPrefix(w.Text, "of=") && w.Text != "of=/dev/null"
	}
	if endless && !ends && out {
		s.add(ResourceExhaust, "endless input")
	}
}

// feed judges parallel, which runs its words for each input line, or the lines themselves.
func (j *judge) feed(s *segment, p *parsed, rest []shell.Word) {
	words := append(append([]shell.Word{}, p.operands...), rest...)
	for i := range words {
		if t := words[i].Text; strings.HasPrefix(t, ":::") || strings.HasPrefix(t, "::::") {
			words = words[:i]
			break
		}
	}
	if len(words) == 0 {
		s.add(ShellDynamic, "it runs its input")
		s.add(CodeExecute, "its input")
		return
	}
	text := join(words)
	if !strings.Contains(text.Text, "{") {
		text.Text += ` "$input"`
	}
	text.Dynamic = false
	j.shellText(s, text)
}

func valueOf(p *parsed, names ...string) (shell.Word, bool) {
	for i := range p.flags {
		if slices.Contains(names, p.flags[i].flag.name) {
			return p.flags[i].value, true
		}
	}
	return shell.Word{}, false
}

func hasFlag(p *parsed, names ...string) bool { _, ok := valueOf(p, names...); return ok }

// curl judges URLs by method and data.
func (j *judge) curl(s *segment, p *parsed, _ []shell.Word) {
	method, given := valueOf(p, "-X")
	reads := !given
	switch strings.ToUpper(method.Text) {
	case "GET", "HEAD", "OPTIONS":
		reads = true
	}
	out, toFile := valueOf(p, "-o")
	sends := hasFlag(p, "-d", "-F", "-T", "--url-query")
	if !given && hasFlag(p, "-G") && !hasFlag(p, "-F", "-T") && j.asksHere(p) {
		sends = false // the data is part of a query
	}
	for i := range p.flags {
		v := p.flags[i].value
		switch p.flags[i].flag.name {
		case "-b", "-A", "-e", "-u", "--oauth2-bearer":
			sends = sends || v.Dynamic && strings.ContainsAny(v.Text, "(`")
		}
		sends = sends || p.flags[i].flag.name == "-H" && (v.Dynamic || strings.HasPrefix(strings.ToLower(v.Text), "authorization"))
	}
	if hasFlag(p, "-k") {
		for _, w := range p.operands {
			if !loopback.MatchString(w.Text) {
				s.add(SecurityDisable, "-k")
			}
		}
	}
	quiet := hasFlag(p, "-I") || toFile && out.Text == "/dev/null"
	urls := append([]shell.Word{}, p.operands...)
	for i := range p.flags {
		if p.flags[i].flag.name == "--url" {
			urls = append(urls, p.flags[i].value)
		}
	}
	for _, w := range urls {
		t := strings.ToLower(w.Text)
		switch {
		case beginsWith(t, "telnet:", "gopher:", "dict:", "smtp", "tftp:"):
			s.add(NetworkOut, w.Text)
		case !reads || sends:
			j.out(s, w)
			if !reads && databases.MatchString(w.Text) || sends && databaseWrites.MatchString(w.Text) {
				s.add(DatabaseMutate, w.Text)
			}
		case quiet && w.Dynamic && ownPort.MatchString(w.Text) && s.caps&SetOf(NetworkOut) == 0:
			s.add(NetworkQuery, w.Text)
		case quiet && !w.Dynamic && !strings.Contains(w.Text, "?") && !metadata.MatchString(w.Text) && s.caps&SetOf(NetworkOut) == 0:
			s.add(NetworkQuery, w.Text)
		default:
			j.fetch(s, w)
		}
		if w.Dynamic && strings.ContainsAny(w.Text, "(`") {
			s.add(NetworkOut, w.Text)
		}
	}
	if socket, ok := valueOf(p, "--unix-socket"); ok && strings.Contains(socket.Text, "docker") && (!reads || s.caps.Has(NetworkOut)) {
		s.add(ContainerMutate, socket.Text)
		s.add(PrivilegeEscalate, socket.Text)
	}
}

// ownPort matches an address of this machine with a variable port.
var ownPort = lazy(`^(?:https?://)?(?:localhost|127\.0\.0\.1):\$(?:\w+|\{\w+\})(?:/[\w./-]*)?$`)

// asksHere reports whether curl gets only addresses of this machine and literal data.
func (j *judge) asksHere(p *parsed) bool {
	for i := range p.flags {
		switch u := &p.flags[i]; u.flag.name {
		case "--url":
			return false
		case "-d", "--url-query":
			if u.value.Dynamic || strings.Contains(u.value.Text, "@") {
				return false
			}
		}
	}
	for _, w := range p.operands {
		if w.Dynamic || !loopback.MatchString(w.Text) {
			return false
		}
	}
	return len(p.operands) > 0
}

// databases matches ports of databases with an HTTP interface; databaseWrites matches paths that
// change them.
var (
	databases = lazy(`:(?:9200|9201|5984|6984|8123|8086|7474|8529|8983|2379|8529|28017|19530|6333|7700|8108)(?:[/?]|$)|` +
		`supabase\.co/rest|firebaseio\.com|documents\.azure\.com`)
	databaseWrites = lazy(`/(?:_bulk|_delete_by_query|_update_by_query|_update|_doc)\b|/write\?|[?&]query=(?i:drop|delete|insert|` +
		`alter|truncate)|/v3/kv/(?:put|deleterange)`)
)

func (j *judge) wget(s *segment, p *parsed, _ []shell.Word) {
	if hasFlag(p, "--spider") {
		for _, w := range p.operands {
			s.add(NetworkQuery, w.Text)
			if w.Dynamic && strings.ContainsAny(w.Text, "(`") {
				s.add(NetworkOut, w.Text)
			}
		}
		return
	}
	out, given := valueOf(p, "-O")
	for _, w := range p.operands {
		j.fetch(s, w)
	}
	switch {
	case !given:
		s.add(FilesystemWrite, "a file here")
	case out.Text != "-":
		j.write(s, out)
	}
}

// saysItself are programs whose output is their words, or nothing.
var saysItself = set(`echo printf true : sleep`)

// piped judges a program that sends what a pipe brings: a text that is there to be read is no data.
func (j *judge) piped(s *segment, _ *parsed, _ []shell.Word) {
	if s.fact == nil || s.fact.From < 0 {
		return
	}
	before := j.facts.Commands[s.fact.From].Argv
	if len(before) > 0 && saysItself[before[0].Text] &&
		!slices.ContainsFunc(before, func(w shell.Word) bool { return w.Dynamic || w.Glob }) {
		return
	}
	s.add(NetworkOut, "what the pipe brings")
}

// tar also takes its options as a first word without a dash.
func (j *judge) tar(s *segment, p *parsed, _ []shell.Word) {
	mode := ""
	operands := p.operands
	var file shell.Word
	hasFile := false
	if len(s.words) > 1 {
		if t := s.words[1].Text; t != "" && t[0] != '-' && strings.Trim(t, "ABCcdfhijJkmMoOpPrRtTuUvwxXzZ") == "" {
			mode = t
			if len(operands) > 0 {
				operands = operands[1:]
			}
			if strings.Contains(t, "f") && len(operands) > 0 {
				file, hasFile = operands[0], true
				operands = operands[1:]
			}
		}
	}
	for _, letter := range "cxtrud" {
		if hasFlag(p, "-"+string(letter)) {
			mode += string(letter)
		}
	}
	if hasFlag(p, "--delete") {
		mode += "D"
	}
	if f, ok := valueOf(p, "-f"); ok {
		file, hasFile = f, true
	}
	dir, inDir := valueOf(p, "-C")
	switch {
	case strings.ContainsAny(mode, "cruDA"):
		if hasFile && file.Text != "-" {
			roles["to"].apply(j, s, []shell.Word{file})
		}
		for _, w := range operands {
			if inDir && !strings.HasPrefix(w.Text, "/") {
				w.Text = strings.TrimSuffix(dir.Text, "/") + "/" + w.Text
			}
			j.pathEffect(s, w, accessTree)
			if hasFlag(p, "--remove-files") {
				j.pathEffect(s, w, accessDelete)
			}
		}
		if hasFlag(p, "--remove-files") {
			s.add(FilesystemDelete, "--remove-files")
		}
	case strings.Contains(mode, "x"):
		if hasFile {
			roles["from"].apply(j, s, []shell.Word{file})
		}
		if strings.Contains(mode, "O") || hasFlag(p, "-O") {
			break
		}
		s.add(FilesystemWrite, "what is unpacked")
		if inDir {
			roles["into"].apply(j, s, []shell.Word{dir})
		}
		if strings.Contains(mode, "P") || hasFlag(p, "-P") {
			s.add(FilesystemSystemWrite, "-P")
		}
	default:
		if hasFile {
			roles["from"].apply(j, s, []shell.Word{file})
		}
	}
	if v, ok := valueOf(p, "--checkpoint-action"); ok {
		if cmd, ok := strings.CutPrefix(v.Text, "exec="); ok {
			s.add(CodeExecute, v.Text)
			j.shellText(s, part(v, cmd))
		}
	}
}

// python judges a module that is run by name.
func (j *judge) python(s *segment, p *parsed, _ []shell.Word) {
	m, ok := valueOf(p, "-m")
	if !ok {
		if len(p.operands) > 1 && programName(p.operands[0].Text) == "manage.py" {
			switch p.operands[1].Text {
			case "flush", "migrate", "loaddata", "sqlflush", "dbshell", "reset_db":
				s.add(DatabaseMutate, p.operands[1].Text)
			}
		}
		return
	}
	args := p.operands
	if len(args) == 1 && !m.Dynamic && helpful[m.Text] {
		switch args[0].Text {
		case "--help", "-h", "--version":
			return
		}
	}
	switch m.Text {
	case "tarfile", "zipfile":
		if len(args) == 2 && listsArchive[args[0].Text] {
			j.pathEffect(s, args[1], accessRead)
			return
		}
	case "json.tool", "ast", "dis", "tokenize", "pydoc", "calendar":
		args = slices.DeleteFunc(slices.Clone(args), func(w shell.Word) bool { return strings.HasPrefix(w.Text, "-") && w.Text != "-" })
		if m.Text == "pydoc" && len(args) < len(p.operands) && !(len(p.operands) == 2 && p.operands[0].Text == "-k") {
			s.add(CodeExecute, "-m pydoc") // -b and -p serve, -w writes
			s.add(NetworkListen, "-m pydoc")
			return
		}
	}
	switch m.Text {
	case "json.tool", "this", "calendar", "platform", "site", "sysconfig", "tokenize", "dis", "ast", "pydoc", "tabnanny":
		for _, w := range args {
			j.pathEffect(s, w, accessRead)
		}
		if m.Text == "json.tool" && len(args) > 1 {
			j.write(s, args[1])
		}
		return
	case "http.server", "SimpleHTTPServer", "smtpd", "aiosmtpd", "pyftpdlib":
		s.add(NetworkListen, m.Text)
	case "venv", "virtualenv", "compileall", "py_compile", "zipfile", "tarfile":
		s.add(FilesystemWrite, m.Text)
	case "ensurepip":
		s.add(PackageMutate, m.Text)
	default:
		if sp := j.lookup(m.Text); sp != nil && !m.Dynamic {
			j.nested(s, append([]shell.Word{m}, args...))
			return
		}
	}
	s.add(CodeExecute, "-m "+m.Text)
}

// helpful are modules whose --help does nothing else.
var helpful = set(`
	venv py_compile compileall ensurepip zipfile tarfile http.server unittest timeit cProfile pdb trace zipapp
	json.tool doctest profile pip virtualenv`)

// listsArchive are options of tarfile and zipfile that list or test.
var listsArchive = set(`-l --list -t --test`)

// sudo without a command lists rights or starts a shell.
func (j *judge) sudo(s *segment, p *parsed, rest []shell.Word) {
	if (hasFlag(p, "-s") || hasFlag(p, "-i")) && len(rest) > 0 {
		return
	}
	if len(rest) == 0 && (hasFlag(p, "-s") || hasFlag(p, "-i")) {
		s.add(TerminalInteractive, "a shell of root")
	}
	if len(rest) == 0 && (hasFlag(p, "-l") || hasFlag(p, "-k", "-K", "-V")) && !hasFlag(p, "-e") {
		s.drop(SetOf(PrivilegeEscalate))
	}
	if hasFlag(p, "-e") {
		for _, w := range p.operands {
			j.write(s, w)
		}
	}
}

// unset of some variables hides later commands.
func (j *judge) unset(s *segment, p *parsed, _ []shell.Word) {
	for _, w := range p.operands {
		if strings.HasPrefix(w.Text, "HIST") || w.Text == "PROMPT_COMMAND" {
			s.add(LogTamper, "unset "+w.Text)
		}
	}
}

// history without a word, as all that is run, prints what whoever asks typed. In a longer text it may print what the text had
// read, and as an argument vector it is no builtin.
func (j *judge) history(s *segment, _ *parsed, _ []shell.Word) {
	if j.q.Command == "" || j.depth > 0 || s.fact == nil || len(j.facts.Commands) != 1 || len(s.words) != 1 || !j.facts.Plain() ||
		len(j.facts.Loops) > 0 || len(s.fact.Assigns)+len(s.fact.Redirects)+len(j.q.Env) > 0 || s.fact.Context != (shell.Context{}) {
		return
	}
	s.drop(SetOf(SecretRead))
}

// kubectl judges the kinds of resources that are read.
func (j *judge) kubectl(s *segment, p *parsed, _ []shell.Word) {
	for i, w := range p.operands {
		if i > 1 {
			break
		}
		for kind := range strings.SplitSeq(strings.ToLower(w.Text), ",") {
			kind, _, _ = strings.Cut(kind, "/")
			kind, _, _ = strings.Cut(kind, ".")
			if kind == "secret" || kind == "secrets" {
				o, ok := valueOf(p, "-o")
				if ok && o.Text != "name" && o.Text != "wide" || strings.Contains(w.Text, "/") || len(p.operands) > i+1 ||
					s.caps.Has(SecretRead) {
					s.add(SecretRead, w.Text)
				}
			}
		}
		if i == 0 && strings.Contains(w.Text, "/") {
			break
		}
	}
	if raw, ok := valueOf(p, "--raw"); ok && strings.Contains(raw.Text, "secrets") {
		s.add(SecretRead, raw.Text)
	}
}

// makeArguments judges variables for make; some are commands.
func (j *judge) makeArguments(s *segment, p *parsed, _ []shell.Word) {
	for _, w := range p.operands {
		name, value, ok := strings.Cut(w.Text, "=")
		if !ok {
			continue
		}
		switch name {
		case "SHELL", "CC", "CXX", "LD", "AR", "MAKE", "RM", ".SHELLFLAGS":
			j.shellText(s, part(w, value))
		}
	}
}

// docker judges privileges that a container gets.
func (j *judge) docker(s *segment, p *parsed, _ []shell.Word) {
	for i := range p.flags {
		u := &p.flags[i]
		switch u.flag.name {
		case "--privileged":
			if v := u.value.Text; v != "false" {
				s.add(PrivilegeEscalate, "--privileged")
			}
		case "--pid", "--network", "--ipc", "--uts", "--userns", "--cgroupns":
			if u.value.Text == "host" && u.flag.name != "--network" {
				s.add(PrivilegeEscalate, u.flag.name+"="+u.value.Text)
			}
		case "--security-opt":
			if v := u.value.Text; strings.Contains(v, "unconfined") || strings.Contains(v, "disable") ||
				strings.HasSuffix(v, "no-new-privileges=false") {
				s.add(PrivilegeEscalate, v)
				s.add(SecurityDisable, v)
			}
		case "--cap-add", "--device":
			s.add(PrivilegeEscalate, u.flag.name+"="+u.value.Text)
		}
	}
}
