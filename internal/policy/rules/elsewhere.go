package rules

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// elsewhere has classes of options, by their names without dashes, that lead a program which only looks to settings, code,
// hosts or files that its other words do not show. They are the same whatever the program, so the table knows none.
var elsewhere = []struct {
	names map[string]bool
	cap   Capability
}{
	// Settings and code: a configuration may name commands and libraries.
	{set(`config config-file configfile config_file configuration conf conf-file rcfile rc-file init-file defaults-file
		defaults-extra-file userconfig globalconfig kubeconfig plugin plugins plugin-dir plugin-path provider provider-path
		library library-path lib-path libdir load-module module-path engine git-dir root root-dir rootdir sysroot
		installroot chroot admindir dbpath homedir define work-tree inventory inventory-file python interpreter`), CodeExecute},
	// Other hosts, and who vouches for them.
	{set(`endpoint endpoint-url api-endpoint server api-server apiserver proxy http-proxy https-proxy preproxy registry
		index-url extra-index-url ca-bundle repo repo-url repository-url base-url mirror`), NetworkIn},
	// Files that are written.
	{set(`log log-file logfile log-path cursor-file cache-file index-file keylogfile sess_out sess-out trace-file
		session-file`), FilesystemWrite},
	// A file in place of the machine's own tables.
	{set(`tab-file`), ProgramUnknown},
}

// leadsElsewhere adds what such options of a command mean that does nothing else. A short option is judged by the long names that its
// row has for it too.
func (j *judge) leadsElsewhere(s *segment) {
	if s.caps&^harmless != 0 || takesNames[s.program] || takesText[s.program] {
		return
	}
	if j.k.base != nil && j.k.programs[s.program] != nil {
		return // whoever described the program in a file of rules said what its options do
	}
	for i := 1; i < len(s.words); i++ {
		w := &s.words[i]
		if w.Text == "--" || w.Text == "" {
			return
		}
		if s.program == "tmux" && strings.HasSuffix(w.Text, ";") {
			s.add(CodeExecute, w.Text) // another command of tmux follows
		}
		if at := strings.Index(w.Text, "file://"); at >= 0 {
			j.pathEffect(s, part(*w, w.Text[at+len("file://"):]), accessRead)
		}
		if w.Text[0] != '-' {
			continue
		}
		name, value, joined := strings.Cut(strings.TrimLeft(w.Text, "-"), "=")
		names, short := []string{name}, false
		if s.spec != nil && w.Text[1:] != "" && w.Text[1] != '-' && !s.spec.single {
			if long := s.spec.longNames(w.Text[1]); len(name) < 3 || strings.Contains(w.Text[2:], "://") {
				names, value, short = long, w.Text[2:], true
				joined = value != ""
			}
		}
		if !short && len(name) < 3 {
			continue
		}
		switch {
		case value == "/dev/null":
			continue
		case joined:
		case i+1 == len(s.words) || strings.HasPrefix(s.words[i+1].Text, "-"):
			continue // a switch
		default:
			value = s.words[i+1].Text
		}
		for c := range elsewhere {
			// A letter often has several meanings: that it leads to another host its value has to say too.
			if slices.ContainsFunc(names, func(n string) bool { return elsewhere[c].names[n] }) &&
				(!short || elsewhere[c].cap == NetworkIn && strings.Contains(value, "://")) {
				s.add(elsewhere[c].cap, w.Text)
			}
		}
		switch {
		case slices.Contains(names, "pager") && !isPager(value) && !isSwitch(value) && value != "disable" && value != "off":
			s.add(CodeExecute, w.Text) // what displays the output runs, whether or not its words are a look
		case strings.Contains(value, "unixexec:"):
			s.add(CodeExecute, w.Text) // an address of D-Bus that is a program
		case strings.HasSuffix(name, "address") && !short && strings.Contains(value, ":"):
			s.add(NetworkIn, w.Text)
		}
	}
}

// longNames are the names without dashes of an option by its letter.
func (s *spec) longNames(letter byte) (names []string) {
	f := s.lookupShort(letter)
	if f == nil {
		return nil
	}
	for n, other := range s.long {
		if other == f && strings.HasPrefix(n, "--") {
			names = append(names, n[2:])
		}
	}
	return names
}

// takesText are programs whose words are texts to find or print.
var takesText = set(`echo true false : grep egrep fgrep zgrep rg ag ack printf test [ [[ expr seq find fd git-grep`)

// mostWords is how many words braces may make before they use up the machine.
const mostWords = 1 << 16

// manyWords reports whether the braces of a word make more words than a machine holds: {a,b} forty times.
func manyWords(w *shell.Word) bool {
	n, depth, alternatives := 1, 0, 0
	for i := range len(w.Source) {
		switch w.Source[i] {
		case '{':
			if depth++; depth == 1 {
				alternatives = 1
			}
		case ',':
			if depth > 0 {
				alternatives++
			}
		case '}':
			if depth == 0 {
				continue
			}
			if depth--; depth == 0 {
				if n *= max(alternatives, 1); n > mostWords {
					return true
				}
			}
		}
	}
	return false
}

// fetched adds remote_code.execute to a command whose program, or text, is what the text fetched: $(curl …), c=$(curl …); $c
// and curl … | while read l; do eval "$l"; done.
func (j *judge) fetched() {
	var dynamic []*segment
	fetches := false
	for _, s := range j.segs {
		if s.caps.Has(ShellDynamic) {
			dynamic = append(dynamic, s)
		}
		fetches = fetches || s.caps&SetOf(NetworkIn, NetworkOut) != 0
	}
	if !fetches || len(dynamic) == 0 {
		return
	}
	filled := map[string]bool{} // variables that hold what a command printed or was read
	for i := range j.facts.Commands {
		c := &j.facts.Commands[i]
		for _, a := range c.Assigns {
			if a.Value.Dynamic && strings.ContainsAny(a.Value.Source, "(`") {
				filled[a.Name] = true
			}
		}
		if len(c.Argv) > 0 && splits[c.Argv[0].Text] {
			for _, w := range c.Argv[1:] {
				filled[w.Text] = true
			}
		}
	}
	for _, s := range dynamic {
		for i := range s.words {
			w := &s.words[i]
			if !w.Dynamic {
				continue
			}
			name := strings.Trim(w.Source, `"${}`)
			if i == 0 && strings.ContainsAny(w.Source, "(`") || filled[name] && (i == 0 || readsText[s.program]) {
				s.add(RemoteCodeExecute, w.Source)
				break
			}
		}
	}
}

// readsText are programs that run their words as shell text.
var readsText = set(`eval sh source . bash`)
