package policy

import (
	"path"
	"strings"
)

// programDirs are directories whose programs are those of their names.
var programDirs = set(`
	/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /snap/bin /usr/games /usr/libexec
	/usr/lib/nagios/plugins /usr/lib64/nagios/plugins /usr/lib/monitoring-plugins /usr/local/go/bin /lib /lib64
	/usr/lib /usr/lib64 /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /lib/aarch64-linux-gnu`)

// initDirs are those of scripts that take what service does.
var initDirs = set(`/etc/init.d /etc/rc.d /etc/rc.d/init.d /usr/local/etc/rc.d`)

// projectCopies are programs that projects bring under a name that says what they are.
var projectCopies = set(`gradlew mvnw rails rake bundle manage.py artisan`)

// programName returns what a program is known by, "" if nobody can know.
func (j *judge) programName(s *segment, text string) string {
	if !strings.Contains(text, "/") {
		return text
	}
	p := text
	if strings.HasPrefix(p, "/") {
		p = cleanAbsolute(p, "")
		if p != text {
			s.add(ShellObfuscated, text)
		}
	}
	dir, base := path.Split(p)
	if programDirs[strings.TrimSuffix(dir, "/")] {
		return base
	}
	if initDirs[strings.TrimSuffix(dir, "/")] {
		return "service"
	}
	dir = strings.TrimSuffix(dir, "/")
	if projectCopies[base] || path.Base(dir) == ".bin" || strings.HasSuffix(dir, "venv/bin") || strings.HasSuffix(dir, "vendor/bin") {
		s.add(CodeExecute, text) // a project's own copy of a known program
		return base
	}
	return ""
}

// programName is the last part of a path, whatever its directory.
func programName(text string) string { return text[strings.LastIndexByte(text, '/')+1:] }

// lookup finds what is known about a program, also by the beginning of its name or without
// its version (python3.11).
func (j *judge) lookup(name string) *spec {
	if p := j.k.program(name); p != nil {
		return p
	}
	if f := j.k.family(name); f != nil {
		return f
	}
	for _, prefix := range [...]string{"x86_64-linux-gnu-", "aarch64-linux-gnu-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return j.lookup(rest)
		}
	}
	for _, suffix := range [...]string{"-bpfcc", ".bt"} { // as distributions name tools of the kernel's
		if rest, ok := strings.CutSuffix(name, suffix); ok && rest != "" {
			return j.lookup(rest)
		}
	}
	short := strings.TrimRight(name, "0123456789.")
	short = strings.TrimSuffix(short, "-")
	if short != name && short != "" {
		return j.k.program(short)
	}
	return nil
}

// set makes a set of words with blanks between them.
func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// beginsWith reports whether a text has one of these prefixes.
func beginsWith(text string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(text, p) {
			return true
		}
	}
	return false
}

// inName reports whether a byte may stand in the name of a variable.
func inName(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
