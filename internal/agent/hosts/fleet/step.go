package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Bounds and defaults of a step.
const (
	DefaultTimeout = 10 * time.Minute
	MaxTimeout     = 24 * time.Hour
	// DefaultOutput is how much of each stream is kept, in bytes.
	DefaultOutput = 256 << 10
	MaxOutput     = 16 << 20
	// MaxInput bounds Input, in bytes.
	MaxInput = 16 << 20
	// maxText bounds the text of the program that starts a step: it is one argument of a shell, which a kernel bounds to
	// 128 KiB.
	maxText = 120 << 10
)

// Step is one command.
type Step struct {
	// Argv is the program and its arguments. It arrives exactly as it is.
	Argv []string
	// ShellText is text for /bin/sh, in place of Argv. Shell must be set with it.
	ShellText string
	Shell     bool
	// Cwd is the absolute directory to start in, "" for that of the host.
	Cwd string
	// Env are variables beside those of the host, as "NAME=value". A later value replaces that of the host.
	Env []string
	// Timeout ends the step. 0 is DefaultTimeout.
	Timeout time.Duration
	// MaxOutput is how many bytes of each stream are kept. 0 is DefaultOutput.
	MaxOutput int
	// Sudo runs Argv by "sudo -n", if the host lists it.
	Sudo bool
	// Input is what it reads on its standard input; nil is nothing. It is sent once the step has begun, and is for Own alone.
	Input []byte
	// Own: Argv is a script of carrel's own. What it runs for somebody else was checked as a step of its own.
	Own bool
}

// Check says why a host would not be asked to run a step, nil if it would.
func (s *Step) Check(h *Host) error {
	if err := h.Validate(); err != nil {
		return err
	}
	refuse := func(err error) error { return fmt.Errorf("cannot run the step on %s: %w", h.Name, err) }
	switch {
	case s.Shell && (s.ShellText == "" || len(s.Argv) > 0):
		return refuse(invalid("Shell goes with ShellText, and not with Argv"))
	case !s.Shell && (s.ShellText != "" || len(s.Argv) == 0):
		return refuse(invalid("give Argv, or set Shell for ShellText"))
	case s.Shell && s.Sudo:
		return refuse(invalid("sudo takes an argument vector; write sudo -n in the text"))
	case s.Timeout < 0 || s.Timeout > MaxTimeout:
		return refuse(invalid("the timeout %v is not between 0 and %v", s.Timeout, MaxTimeout))
	case s.Input != nil && (!s.Own || len(s.Input) > MaxInput):
		return refuse(invalid("%d bytes of input are more than %d, or are for a command of somebody else's", len(s.Input), MaxInput))
	case s.MaxOutput < 0 || s.MaxOutput > MaxOutput:
		return refuse(invalid("%d bytes of output are not between 0 and %d", s.MaxOutput, MaxOutput))
	}
	if !s.Shell {
		if p := s.Argv[0]; p == "" || p[0] == '-' || strings.IndexByte(p, '=') >= 0 {
			return refuse(invalid("%.80q is no name of a program: it is empty, begins with - or has =", p))
		}
	}
	total := len(s.ShellText)
	for _, a := range append([]string{s.ShellText}, s.Argv...) {
		if total += len(a) + 1; strings.IndexByte(a, 0) >= 0 {
			return refuse(invalid("an argument has a NUL byte"))
		}
	}
	for _, v := range append(append([]string(nil), h.Env.Set...), s.Env...) {
		total += len(v) + 1
	}
	if total > MaxCommand {
		return refuse(invalid("the command and its environment have more than %d bytes; copy a file to the host and run that", MaxCommand))
	}
	if err := checkCwd(s.Cwd); err != nil {
		return refuse(err)
	}
	if err := checkVars(s.Env); err != nil {
		return refuse(err)
	}
	if !s.Own {
		if err := s.privileges(h); err != nil {
			return refuse(err)
		}
	}
	if n := len(Quote(s.program(h, ""))); n > maxText {
		return refuse(invalid("it has more than %d bytes when it is quoted; copy a file to the host and run that", maxText))
	}
	return nil
}

// pagers keep programs from waiting for a key: there is no terminal, and some would start a pager all the same.
var pagers = []string{
	"TERM=dumb", "PAGER=cat", "GIT_PAGER=cat", "MANPAGER=cat", "SYSTEMD_PAGER=", "AWS_PAGER=", "PSQL_PAGER=", "DELTA_PAGER=cat", "BAT_PAGER=",
}

// Variables of a clean environment.
var kept = []string{"HOME", "LOGNAME", "PATH", "SHELL", "USER"}

// environment returns the settings for env(1): of the host, then of the step, each name once.
func (s *Step) environment(h *Host) []string {
	var list []string
	at := map[string]int{}
	for _, from := range [][]string{pagers, h.Env.Set, s.Env} {
		for _, v := range from {
			name, _, _ := strings.Cut(v, "=")
			if i, ok := at[name]; ok {
				list[i] = v
				continue
			}
			at[name] = len(list)
			list = append(list, v)
		}
	}
	return list
}

// program returns the text by which /bin/sh becomes the step. It first tells its process group, or that the directory cannot
// be entered, in a line that begins with the mark, on both streams. Then it waits for a line, so that a step has run if and
// only if that line was sent:
//
//	host → MARK run PGID START	PGID is 0 if it leads no process group; START is field 22 of /proc/PID/stat, or nothing
//	     ← go
//	or → MARK cwd
//
// That PGID is its own process is known from there being a group of that number: a number in use as a group is given to no
// other process.
func (s *Step) program(h *Host, mark string) string {
	var b strings.Builder
	b.WriteString("t=; if [ -r /proc/$$/stat ]; then read -r t </proc/$$/stat; set -- ${t##*) }; t=${20}; fi\n" +
		"g=0; kill -s 0 -- -$$ 2>/dev/null && g=$$\n")
	if cwd := first(s.Cwd, h.Cwd); cwd != "" {
		fmt.Fprintf(&b, "cd -- %s || { echo %s cwd; exit 1; }\n", Quote(cwd), Quote(mark))
	}
	fmt.Fprintf(&b, "echo %s run $g $t\necho %s >&2\nread -r t && [ \"$t\" = go ] || exit 1\nexec env", Quote(mark), Quote(mark))
	if !h.Env.Inherit {
		b.WriteString(" -i")
		for _, name := range append(append([]string(nil), kept...), h.Env.Keep...) {
			fmt.Fprintf(&b, ` ${%s+"%s=$%s"}`, name, name, name)
		}
	}
	for _, v := range s.environment(h) {
		b.WriteString(" " + Quote(v))
	}
	argv := s.Argv
	switch {
	case s.Shell:
		argv = []string{"/bin/sh", "-c", s.ShellText}
	case s.Sudo:
		argv = append([]string{"sudo", "-n", "--"}, s.Argv...)
	}
	b.WriteString(" " + QuoteAll(argv))
	if s.Input == nil {
		b.WriteString(" </dev/null")
	}
	b.WriteString("\n")
	return b.String()
}

// script returns what a shell on the host reads from its standard input to run the step. It is one compound command, so
// that half of it does nothing. It needs a process group of its own to be killed by: sshd gives one to every session, and
// where a server does not, setsid(1) does.
func (s *Step) script(h *Host, mark string) []byte {
	return []byte("{ c=" + Quote(s.program(h, mark)) + `
kill -s 0 -- -$$ 2>/dev/null || { command -v setsid >/dev/null 2>&1 && exec setsid /bin/sh -c "$c"; }
exec /bin/sh -c "$c"
}
`)
}

// killScript returns the text that ends a process group: TERM, after the grace KILL, and then one line:
//
//	MARK gone	no process is in the group any more
//	MARK left WHY	there may be
//
// A group whose number is another process's by now, which started at another time, is gone. A killed process counts until its
// parent, or init, has taken notice: that is what the wait after KILL is for, up to 8 s.
func killScript(mark string, group int, started string, grace time.Duration) []byte {
	return fmt.Appendf(nil, `{ LC_ALL=C; export LC_ALL; g=%d; s=%s
said() { echo %s "$@"; exit 0; }
gone() { case $(kill -s 0 -- -$g 2>&1) in *'o such process'*) return 0; esac; return 1; }
if [ -n "$s" ] && [ -r /proc/$g/stat ]; then
 t=$(cat /proc/$g/stat 2>/dev/null); set -- ${t##*) }
 [ -z "${20}" ] || [ "${20}" = "$s" ] || said gone
fi
z=1; n=%d; m=8; if sleep 0.01 2>/dev/null; then z=0.1; n=%d; m=80; fi
gone && said gone
kill -s TERM -- -$g 2>/dev/null
i=0; while [ $i -lt $n ]; do sleep $z; gone && said gone; i=$((i+1)); done
kill -s KILL -- -$g 2>/dev/null
i=0; while [ $i -lt $m ]; do gone && said gone; sleep $z; i=$((i+1)); done
gone && said gone
said left $(kill -s 0 -- -$g 2>&1)
}
`, group, Quote(started), Quote(mark), max(1, int(grace/time.Second)), max(1, int(grace/(100*time.Millisecond))))
}

// unavailable is the error of a host that does not do its part.
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrUnavailable)
}
