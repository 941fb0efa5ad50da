package rules

import (
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// redirects judges files of redirects.
func (j *judge) redirects(s *segment, rs []shell.Redirect) {
	for i := range rs {
		r := &rs[i]
		switch r.Mode {
		case shell.Read:
			j.pathEffect(s, r.Target, accessRead)
		case shell.Write, shell.Append, shell.ReadWrite:
			j.write(s, r.Target)
		case shell.Duplicate:
			if t := r.Target.Text; strings.Trim(t, "0123456789-") != "" && !r.Target.Dynamic {
				j.write(s, r.Target) // >&file
			}
		case shell.Heredoc, shell.String:
		default:
			s.add(ShellDynamic, "a redirect of an unknown kind")
		}
	}
}

// takesNames are programs whose operands may be any word.
var takesNames = set(`
	man which whereis type help info whatis apropos tldr pgrep pidof id groups finger getent printenv expr locale
	dpkg-query apt-cache apt-file export declare local typeset readonly set read alias unalias tr users last locate
	plocate cowsay figlet cal gcloud compgen complete return shift jq perldoc pydoc pydoc3 logger history`)

// harmlessTargets discard output or print it.
var harmlessTargets = set(`
	/dev/null /dev/stdout /dev/stderr /dev/tty /dev/zero /dev/fd/1 /dev/fd/2 /proc/self/fd/1 /proc/self/fd/2 -
	/dev/full`)

// write judges a file that is written.
func (j *judge) write(s *segment, w shell.Word) {
	if harmlessTargets[w.Text] {
		return
	}
	s.add(FilesystemWrite, w.Text)
	j.pathEffect(s, w, accessWrite)
}

// defaults matches the value that a variable has by default.
var defaults = lazy(`\$\{[A-Za-z0-9_]+:?[-=+]([^{}]*)\}`)

// mayMean adds what a path means if ".." climbs to the root or its variables are unset.
func (j *judge) mayMean(s *segment, w shell.Word, p string, a access) {
	try := func(text string) {
		set, class := j.pathCaps(cleanAbsolute(text, j.q.Home), false, a)
		s.addSet(set&SetOf(SecretRead, CarrelTamper, Persistence, BlockDeviceMutate), w.Text+" ("+class+")")
	}
	if rest := strings.TrimLeft(p, "./"); strings.HasPrefix(p, "../") {
		try("/" + rest)
	}
	if i := strings.LastIndex(w.Text, "../"); i >= 0 && strings.HasPrefix(w.Text, "/proc/") {
		try("/" + w.Text[i+3:])
	}
	if w.Dynamic && strings.Contains(w.Text, "${") {
		if t := defaults.compiled().ReplaceAllString(w.Text, "$1"); t != w.Text && !strings.ContainsAny(t, "$`") {
			try("/" + strings.TrimPrefix(strings.Replace(t, "~", "/~", 1), "/"))
		}
	}
}

// endlessReaders read to the end of their input; some devices have none.
var endlessReaders = set(`
	cat tail tac sort gzip xz bzip2 zstd wc cp md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum shasum
	cksum sum xxd od hexdump strings sed awk uniq tr openssl grep tee base64 rev`)

// goesOut are operands by which an unknown program, or code, says that it sends something.
var goesOut = set(`publish deploy upload push release announce`)

// staysHere has the word of each program that says the same of what it writes into a directory.
var staysHere = map[string]string{"dotnet": "publish", "mix": "release"}

// mention judges a word that is not known to be a file: a path of a secret counts as read.
func (j *judge) mention(s *segment, w shell.Word) {
	if s.spec != nil && s.spec.plain || strings.IndexByte(w.Text, '/') < 0 {
		return
	}
	if strings.ContainsAny(w.Text, `"'`) {
		for _, m := range namedPath.compiled().FindAllStringSubmatch(w.Text, 8) {
			j.mentioned(s, part(w, m[1]))
		}
		return
	}
	if i := strings.IndexAny(w.Text, "=@"); i >= 0 {
		w.Text = w.Text[i+1:]
	}
	if beginsWith(w.Text, "/", "~", "$HOME/", "./", "../") {
		j.mentioned(s, w)
	}
}

// namedPath matches a quoted path within a word.
var namedPath = lazy(`["']([/~][^"']*)["']`)

func (j *judge) mentioned(s *segment, w shell.Word) {
	p, glob := canonical(w, j.q.Home, j.dir)
	if strings.HasPrefix(p, "/dev/") { // devices have capabilities of their own
		return
	}
	if set, class := j.pathCaps(p, glob, accessRead); set&^harmless != 0 {
		s.addSet(set&SetOf(SecretRead, CarrelTamper), w.Text+" ("+class+")")
	}
}

// pathEffect adds what the table of paths says about a word.
func (j *judge) pathEffect(s *segment, w shell.Word, a access) {
	if w.Text == "" || w.Text == "-" && a != accessDelete {
		return
	}
	if a == accessStat || a == accessRead || a == accessTree {
		s.caps |= 1 << FilesystemRead
	}
	if w.Dynamic && len(j.facts.Loops) > 0 {
		for _, item := range j.looped(s, w) {
			j.pathEffect(s, item, a)
		}
	}
	p, glob := canonical(w, j.q.Home, j.dir)
	if len(s.paths) < 64 {
		s.paths = append(s.paths, p)
	}
	if set, class := j.pathCaps(p, glob, a); set != 0 {
		s.addSet(set, w.Text+" ("+class+")")
	}
	if a == accessTree || a == accessRead && (s.recursive() || j.below) {
		if secretTrees[p] && !searches[programName(s.words[0].Text)] {
			s.add(SecretRead, "all of "+w.Text)
		}
		set, class := j.pathCaps(strings.TrimSuffix(p, "/")+"/x", false, accessRead)
		s.addSet(set&SetOf(SecretRead), w.Text+" ("+class+")")
	}
	j.mayMean(s, w, p, a)
	if w.Dynamic && strings.Contains(p, unknownPart) {
		// An unknown part may be empty or a slash.
		for _, by := range [...]string{"", "/"} {
			v := path.Clean(strings.ReplaceAll(p, unknownPart, by))
			if v != "/" && v != "." && !strings.HasPrefix(p, unknownPart+"/") {
				set, class := j.pathCaps(v, false, a)
				s.addSet(set&SetOf(SecretRead), w.Text+" ("+class+")")
			}
		}
	}
	if a == accessDelete || a == accessMode {
		j.destroys(s, w, p, a)
	}
}

// roots are directories that hold everything of a user or machine.
var roots = set(`/ /* /~ /~/* /. /home /home/* /~/.* ~ /~/.[!.]* /root`)

// secretTrees are directories below which the secrets of users or of the machine are.
var secretTrees = set(`/ /* /. /home /home/* /~ /~/* /~/. /~/.* /~/.[!.]* /root /root/* /etc /etc/* /var /var/lib /opt /srv`)

// searches print of what they read only what was looked for, which grep judges, a sum or a kind.
var searches = set(`
	grep egrep fgrep zgrep bzgrep xzgrep pcregrep pcre2grep rg ag ack ugrep
	wc file md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum shasum cksum sum du stat`)

// systemTrees are directories that a machine cannot run without.
var systemTrees = set(`
	/etc /usr /var /bin /sbin /lib /lib64 /boot /dev /proc /sys /opt /srv /run /usr/bin /usr/lib /usr/sbin
	/usr/local /var/lib /usr/share /mnt /media`)

// destroys adds filesystem.destroy for the removal or change of a whole tree.
func (j *judge) destroys(s *segment, w shell.Word, p string, a access) {
	base := strings.TrimSuffix(p, "/*")
	if base == "" {
		base = "/"
	}
	// It is unknown what is above an unknown directory.
	above := strings.Trim(base, "./") == "" && strings.HasPrefix(base, "..")
	if !roots[p] && !roots[base] && !systemTrees[base] && !above && !(a == accessDelete && j.mounted(p)) {
		// "rm -rf $DIR/" with an unset variable is rm -rf /.
		if !(w.Dynamic && a == accessDelete && (p == unknownPart+"/*" || p == "/"+unknownPart)) {
			return
		}
	}
	if a == accessMode && !s.recursive() {
		return
	}
	s.add(FilesystemDestroy, w.Text)
}

// mounted reports whether a path is all of a mounted directory, or has one below it.
func (j *judge) mounted(p string) bool {
	if len(j.q.Mounts) == 0 {
		return false
	}
	if dir, last := path.Split(p); strings.HasPrefix(last, "*") || strings.HasPrefix(last, ".") && strings.HasSuffix(last, "*") {
		p = path.Clean(dir)
	}
	for _, m := range j.q.Mounts {
		if m = cleanAbsolute(m, j.q.Home); m == p || strings.HasPrefix(m, p+"/") {
			return true
		}
	}
	return false
}

// recursive reports whether a command has -r, -R or an equivalent option.
func (s *segment) recursive() bool {
	letters := "rR"
	if s.program == "cp" || s.program == "rsync" {
		letters = "rRa"
	}
	for _, w := range s.words[min(1, len(s.words)):] {
		t := w.Text
		short := len(t) > 1 && t[0] == '-' && t[1] != '-'
		if strings.HasPrefix(t, "--recursive") || t == "--archive" || short && strings.ContainsAny(t, letters) {
			return true
		}
	}
	return false
}
