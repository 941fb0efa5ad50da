package fleet

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

func checkSudo(all [][]string) error {
	if len(all) > maxListed {
		return invalid("there are more than %d prefixes of sudo", maxListed)
	}
	for _, words := range all {
		if len(words) == 0 || words[0] == "" || words[0][0] == '-' {
			return invalid("a prefix of sudo needs a program: give its words, as [systemctl, restart, nginx]")
		}
		if len(words) > maxListed {
			return invalid("a prefix of sudo has more than %d words", maxListed)
		}
	}
	return nil
}

// raisers give a program the rights of another user. Only sudo is honoured.
var raisers = []string{
	"sudo", "su", "doas", "pkexec", "runuser", "run0", "sudoedit", "gosu", "su-exec", "setpriv", "capsh", "machinectl", "systemd-run", "dzdo",
}

// wrapper is a program that runs the one named after its own options. Options that are not listed are not understood.
type wrapper struct {
	flags  string   // letters of options without a value
	values string   // letters of options with one
	long   []string // long options; "=" at the end is with a value, joined by =
	skip   int      // words between the options and the program
	assign bool     // NAME=value may come before the program
}

var wrappers = map[string]wrapper{
	"env":    {flags: "i0v", values: "uC", long: []string{"--ignore-environment", "--null", "--debug", "--unset=", "--chdir="}, assign: true},
	"nice":   {values: "n", long: []string{"--adjustment="}},
	"nohup":  {},
	"setsid": {flags: "cfw", long: []string{"--ctty", "--fork", "--wait"}},
	"stdbuf": {values: "ioe", long: []string{"--input=", "--output=", "--error="}},
	"ionice": {flags: "t", values: "cn", long: []string{"--ignore", "--class=", "--classdata="}},
	"timeout": {
		flags: "v", values: "ks", skip: 1,
		long: []string{"--foreground", "--preserve-status", "--verbose", "--kill-after=", "--signal="},
	},
	"time":    {flags: "p"},
	"command": {flags: "pvV"},
	"exec":    {flags: "cl", values: "a"},
	"builtin": {},
}

// runners run programs in ways that are not looked into: what they would raise is refused.
var runners = strings.Fields(`xargs find fd parallel strace ltrace gdb watch script flock chroot unshare nsenter ssh busybox toybox
	taskset chrt numactl unbuffer expect entr tmux screen at batch crontab perl python python3 ruby awk gawk mawk make git socat trap
	systemd-inhibit dbus-run-session start-stop-daemon chpst softlimit faketime fakeroot proot`)

const maxTexts = 8 // of shells within each other

// privileges refuses what raises rights other than by the host's list. It looks at the program that runs in the end, behind
// env and the like, and into the text of shells. It is no boundary: a script on the host is not read, and what a user may do
// there is for the host's own sudoers to say.
func (s *Step) privileges(h *Host) error {
	j := &raising{host: h, env: s.Env}
	if s.Sudo {
		return j.allowed(words(s.Argv))
	}
	if s.Shell {
		return j.text(s.ShellText, 1)
	}
	return j.command(words(s.Argv), 1)
}

func words(argv []string) []shell.Word {
	list := make([]shell.Word, len(argv))
	for i, a := range argv {
		list[i] = shell.Word{Text: a, Source: a}
	}
	return list
}

func open(w shell.Word) bool { return w.Dynamic || w.Glob || w.Many }

type raising struct {
	host *Host
	env  []string
}

func denied(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrPermissionDenied)
}

// text judges the text of a shell.
func (j *raising) text(text string, depth int) error {
	if depth > maxTexts {
		return denied("shells are nested more than %d deep", maxTexts)
	}
	f := shell.Nested(text, shell.POSIX, depth, shell.Limits{})
	if len(f.Troubles) > 0 {
		return denied("the shell text cannot be read: %s", f.Troubles[0].Why)
	}
	for name, value := range f.Aliases {
		if mentions(words([]string{value})) {
			return denied("the alias %.40q raises rights; write the command out", name)
		}
	}
	for i := range f.Commands {
		for _, a := range f.Commands[i].Assigns {
			j.env = append(j.env, a.Name+"=")
		}
	}
	for i := range f.Commands {
		if err := j.command(f.Commands[i].Argv, depth); err != nil {
			return err
		}
	}
	return nil
}

// command judges one command.
func (j *raising) command(argv []shell.Word, depth int) error {
	for range 32 {
		if len(argv) == 0 {
			return nil
		}
		if open(argv[0]) {
			return denied("which program %.80q is cannot be seen, so neither whether it raises rights; write its name", argv[0].Source)
		}
		name := path.Base(argv[0].Text)
		if name == "sudo" {
			return j.sudo(argv)
		}
		if slices.Contains(raisers, name) {
			return denied("%s raises rights in a way that is not honoured; use sudo -n with what the inventory lists", name)
		}
		if sh, ok := shell.Shell(argv); ok {
			if sh.Text < 0 || sh.Text >= len(argv) {
				return nil // a script or standard input, which is empty
			}
			if open(argv[sh.Text]) {
				return denied("the text that %s runs cannot be seen; write it out", name)
			}
			return j.text(argv[sh.Text].Text, depth+1)
		}
		w, ok := wrappers[name]
		if !ok {
			if slices.Contains(runners, name) && mentions(argv[1:]) {
				return denied("what %s runs with raised rights cannot be seen; run it by itself", name)
			}
			return nil
		}
		rest, err := w.unwrap(name, argv[1:], j)
		if err != nil {
			return err
		}
		argv = rest
	}
	return denied("there are too many programs that run another")
}

// unwrap returns the words after a wrapper and its options.
func (w wrapper) unwrap(name string, argv []shell.Word, j *raising) ([]shell.Word, error) {
	unclear := func(a shell.Word) error {
		return denied("the option %.80q of %s before the program is not understood", a.Source, name)
	}
	for len(argv) > 0 {
		a := argv[0]
		if open(a) {
			return nil, unclear(a)
		}
		s := a.Text
		if s == "--" {
			argv = argv[1:]
			break
		}
		if s == "-" && name == "env" {
			argv = argv[1:]
			continue
		}
		if !strings.HasPrefix(s, "-") {
			break
		}
		argv = argv[1:]
		if strings.HasPrefix(s, "--") {
			head, _, joined := strings.Cut(s, "=")
			if joined {
				head += "="
			}
			if !slices.Contains(w.long, head) {
				return nil, unclear(a)
			}
			continue
		}
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] == '=':
				return nil, unclear(a)
			case strings.IndexByte(w.flags, s[i]) >= 0:
				if name == "command" && (s[i] == 'v' || s[i] == 'V') {
					return nil, nil // it only says what there is
				}
				continue
			case strings.IndexByte(w.values, s[i]) < 0:
				return nil, unclear(a)
			case i == len(s)-1: // the value is the next word
				if len(argv) == 0 || argv[0].Many {
					return nil, unclear(a)
				}
				argv = argv[1:]
			}
			break // the rest is its value
		}
	}
	for w.assign && len(argv) > 0 && !argv[0].Many && strings.Contains(argv[0].Text, "=") {
		if eq := strings.IndexByte(argv[0].Text, '='); argv[0].Dynamic && !letters(argv[0].Text[:eq], "_") {
			return nil, unclear(argv[0])
		}
		j.env = append(j.env, argv[0].Text)
		argv = argv[1:]
	}
	for range w.skip {
		if len(argv) > 0 {
			if argv[0].Many {
				return nil, unclear(argv[0])
			}
			argv = argv[1:]
		}
	}
	return argv, nil
}

// sudo judges a command of sudo: -n and nothing else before what is listed.
func (j *raising) sudo(argv []shell.Word) error {
	asks := true
	for argv = argv[1:]; len(argv) > 0 && strings.HasPrefix(argv[0].Text, "-"); {
		a := argv[0]
		argv = argv[1:]
		switch {
		case open(a):
			return denied("the option %.80q of sudo is not understood", a.Source)
		case a.Text == "-n" || a.Text == "--non-interactive":
			asks = false
			continue
		case a.Text == "--":
		default:
			return denied("the option %.80q of sudo is not honoured; only -n is", a.Source)
		}
		break
	}
	if asks {
		return denied("sudo would ask for a password, and there is no terminal; write sudo -n")
	}
	if len(argv) == 0 {
		return denied("sudo has no program")
	}
	return j.allowed(argv)
}

// allowed reports whether the host lists what sudo would run.
func (j *raising) allowed(argv []shell.Word) error {
	var shown []string
	for _, w := range argv {
		shown = append(shown, w.Source)
	}
	text := strings.Join(shown, " ")
	if open(argv[0]) || strings.Contains(argv[0].Text, "=") {
		return denied("what sudo would run cannot be seen: %.120q", text)
	}
	listed := slices.ContainsFunc(j.host.Sudo, func(prefix []string) bool {
		if len(argv) < len(prefix) {
			return false
		}
		for i, p := range prefix {
			if open(argv[i]) || argv[i].Text != p {
				return false
			}
		}
		return true
	})
	if !listed {
		return denied("the inventory does not list %.120q for sudo on %s; add its first words to sudo there, or run it without",
			text, j.host.Name)
	}
	if !strings.HasPrefix(argv[0].Text, "/") && slices.ContainsFunc(j.env, func(v string) bool { return strings.HasPrefix(v, "PATH=") }) {
		return denied("PATH is set, so which %.80q sudo would run cannot be seen; list its whole path", argv[0].Text)
	}
	return nil
}

// mentions reports whether one of the words names a program that raises rights.
func mentions(list []shell.Word) bool {
	return slices.ContainsFunc(list, func(w shell.Word) bool {
		parts := strings.FieldsFunc(w.Text, func(r rune) bool { return r > 127 || !letters(string(r), "_-") })
		return slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(raisers, p) })
	})
}
