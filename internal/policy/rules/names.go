package rules

import (
	"path"
	"strings"
)

// programDirs are directories whose programs are trusted to be what their names say.
var programDirs = set(`
	/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /snap/bin /usr/games /usr/libexec
	/usr/lib/nagios/plugins /usr/lib64/nagios/plugins /usr/lib/monitoring-plugins /usr/local/go/bin /lib /lib64
	/usr/lib /usr/lib64 /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /lib/aarch64-linux-gnu`)

// initDirs are directories of init scripts, which take the words of service.
var initDirs = set(`/etc/init.d /etc/rc.d /etc/rc.d/init.d /usr/local/etc/rc.d`)

// projectCopies are programs that projects ship under well-known names.
var projectCopies = set(`gradlew mvnw rails rake bundle manage.py artisan`)

// programName returns the name that a program is known by, "" if it is unknown.
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
		s.add(CodeExecute, text) // a project's copy of a known program
		return base
	}
	return ""
}

// programName returns the last part of a path.
func programName(text string) string { return text[strings.LastIndexByte(text, '/')+1:] }

// lookup finds the spec of a program by its name, a prefix of it, or its name without a version
// (python3.11).
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
	for _, suffix := range [...]string{"-bpfcc", ".bt"} { // suffixes that distributions give to kernel tools
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

// set returns the words of a text as a set.
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

// inName reports whether a byte may be in a variable's name.
func inName(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
