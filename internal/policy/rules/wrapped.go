package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// easedRisk is the score of a wrapper around a command that only looks: above a model's first run, below all that changes.
const easedRisk = 35

// wrapper is a program that runs a command with other rights or elsewhere. Only the options in this table are known to
// leave that command what its words say; with any other the wrapper has its usual score. It does not use what
// commands/*.yaml say about options: a wrong row there must not ease anything.
type wrapper struct {
	cap Capability
	// words are the subcommands before the operand, such as exec.
	words string
	// switches and values are the options without and with a value; tty are switches that give the command a terminal.
	switches, tty, values map[string]bool
	// operand is what must match before the command, nil if it has none.
	operand *lazyRegexp
	// dashes says that -- must stand before the command, and that options may stand between it and the operand.
	dashes bool
	// root says that the command gets rights that whoever asks does not have.
	root bool
}

var wrappers = map[string]*wrapper{
	"sudo": {
		cap: PrivilegeEscalate, switches: set(`-n -H --non-interactive --set-home`), values: set(`-u --user`), root: true,
	},
	"ssh": {
		cap: NetworkOut, switches: set(`-q -T -n -a -x -4 -6 -v`), values: set(`-p -l -i`), operand: hostName,
	},
	"docker": inContainer, "podman": inContainer, "nerdctl": inContainer,
	"kubectl": {
		cap: ClusterMutate, words: "exec", switches: set(`-i --stdin -q --quiet`), tty: set(`-t --tty -it -ti`),
		values: set(`-n --namespace -c --container --context`), operand: hostName, dashes: true,
	},
}

var inContainer = &wrapper{
	cap: ContainerMutate, words: "exec", switches: set(`-i --interactive`), tty: set(`-t --tty -it -ti`),
	values: set(`-w --workdir`), operand: hostName,
}

// hostName matches what wrappers take for a host, a container or a pod.
var hostName = lazy(`^(?:[\w][\w.-]*@)?\w[\w./:-]*$`)

// command returns the words that the wrapper runs, and whether on a terminal; none if an option is not known.
func (w *wrapper) command(words []shell.Word) (inner []shell.Word, tty bool) {
	named, ran := w.operand == nil, w.words == ""
	for i := 1; i < len(words); i++ {
		t := words[i].Text
		name, _, joined := strings.Cut(t, "=")
		switch {
		case t == "--" && ran && (named || !w.dashes):
			if !named {
				return nil, false
			}
			return words[i+1:], tty
		case w.tty[t]:
			tty = true
		case w.switches[t]:
		case joined && strings.HasPrefix(name, "--") && w.values[name]:
		case w.values[t]:
			i++
		case strings.HasPrefix(t, "-") || t == "":
			return nil, false
		case !ran:
			if t != w.words {
				return nil, false
			}
			ran = true
		case !named:
			if !w.operand.MatchString(t) {
				return nil, false
			}
			if named = true; !w.dashes {
				return words[i+1:], tty
			}
		case w.dashes:
			return nil, false
		default:
			return words[i:], tty
		}
	}
	return nil, false
}

// wraps returns the capability of a command that only runs another one, as its words say; NoCapability of any other.
// Whether the other one is SAFE is for the rules to say.
func (j *judge) wraps(s *segment) Capability {
	w := wrappers[s.program]
	if w == nil || !s.top || len(j.q.Env) > 0 || len(s.words) == 0 || s.words[0].Text != s.program || !j.leavesWords(s) {
		return NoCapability
	}
	inner, tty := w.command(s.words)
	if len(inner) == 0 || strings.HasPrefix(inner[0].Text, "-") {
		return NoCapability
	}
	if (w.root || tty) && !showsOnly(inner, s.fact.Into >= 0) {
		return NoCapability
	}
	return w.cap
}

// besides are programs that may stand in a text with a wrapper: none changes what a later word of the shell means.
var besides = set(`cat head tail grep egrep fgrep wc sort uniq cut tr column jq echo true date sleep`)

// leavesWords reports whether all words of a wrapper are known, it is given no input, and nothing in the text changes what
// its words mean: variables, functions, loops, other builtins.
func (j *judge) leavesWords(s *segment) bool {
	f := j.facts
	if x := s.fact.Context; !f.Plain() || len(f.Loops) > 0 || s.fact.From >= 0 || x.Loop || x.Background || x.Trap || x.Text {
		return false
	}
	for i := range s.words {
		if w := &s.words[i]; w.Dynamic || w.Glob || w.Many || w.Hidden {
			return false
		}
	}
	for _, r := range s.fact.Redirects {
		quiet := r.Mode == shell.Write && r.Target.Text == "/dev/null" || r.Mode == shell.Duplicate && r.Target.Text == "1"
		if !quiet || r.Target.Dynamic {
			return false
		}
	}
	for i := range f.Commands {
		c := &f.Commands[i]
		if len(c.Assigns) > 0 || len(c.Argv) == 0 || c.Parent >= 0 || c.Context.Function != "" ||
			!besides[c.Argv[0].Text] && wrappers[c.Argv[0].Text] == nil {
			return false
		}
	}
	return true
}

// showsOnly reports whether a command with rights of others, or on a terminal, can do no more than its words show: it opens
// no pager and takes no settings or code from files, and what it prints of files is of the system's logs. Without that
// a link in place of a file, or a key at the terminal, would make another command of it.
func showsOnly(words []shell.Word, piped bool) bool {
	name := words[0].Text
	re := seen[name]
	if re == nil {
		return false
	}
	var all strings.Builder
	pager := (name == "systemctl" || name == "journalctl") && !piped
	for _, w := range words[1:] {
		if strings.ContainsAny(w.Text, " \t\n") {
			return false
		}
		if w.Text == "--no-pager" {
			pager = false
			continue
		}
		all.WriteByte(' ')
		all.WriteString(w.Text)
	}
	return !pager && re.MatchString(all.String())
}

// options is a pattern of words: joined switches of these letters, or operands.
func options(letters, operand string) *lazyRegexp {
	var words []string
	if letters != "" {
		words = append(words, `-[`+letters+`]+`)
	}
	if operand != "" {
		words = append(words, operand)
	}
	return whole(`(?: (?:` + strings.Join(words, "|") + `))*`)
}

// whole matches all of a text. The test of seen compiles each.
func whole(text string) *lazyRegexp { return &lazyRegexp{text: `^(?:` + text + `)$`} }

// logs is a pattern of files that only the system writes.
const logs = `/var/log(?:/[\w@+:-][\w.@+:-]*)+`

// seen has the programs of showsOnly, with a pattern that all words after the name match.
var seen = map[string]*lazyRegexp{
	"blkid":      lazy(`^(?: /dev/\w+)*$`),
	"cat":        options("nAbsvetET", logs),
	"crontab":    lazy(`^(?: -u [\w.-]+)? -l(?: -u [\w.-]+)?$`),
	"df":         options("ahHiklPT", `/[\w./-]*`),
	"dmesg":      options("THkLtux", ""),
	"du":         options("abchHklmsSxd", `\d+|/[\w./-]*`),
	"egrep":      searched,
	"fgrep":      searched,
	"findmnt":    options("lnrtDJaoA", `/[\w./-]*|\w[\w,-]*`),
	"free":       options("bkmghtwl", ""),
	"grep":       searched,
	"head":       options("nqvc0-9", `\d+|`+logs),
	"id":         options("unGgr", `\w[\w.-]*`),
	"iostat":     options("cdhkmxyz", `\d+`),
	"ip":         lazy(`^(?: -(?:[46sdohjp]+|br|brief))*(?: (?:a|addr|address|l|link|r|route|n|neigh|rule))(?: [\w.:/]+)*$`),
	"ip6tables":  options("LSnvxt", `--line-numbers|\w[\w-]*`),
	"iptables":   options("LSnvxt", `--line-numbers|\w[\w-]*`),
	"journalctl": options("ubnkpfexrqo0-9", `[\w@.:,+-]+|--(?:since|until|unit)=[\w@.:+-]+`),
	"last":       options("aRwxn0-9", `\w+`),
	"lastb":      options("aRwxn0-9", `\w+`),
	"ls":         lazy(`^(?: -[a-zA-Z0-9]+| [^ -][^ ]*)*$`),
	"lsblk":      options("abdfilmnoOprstST", `/dev/\w+|\w[\w,-]*`),
	"lsmod":      whole(""),
	"lsof":       options("niPptucUlRaw", `\w[\w.,-]*|:\d+|/[\w./-]+`),
	"lspci":      options("vnkt", ""),
	"lsusb":      options("tv", ""),
	"netstat":    options("tulnpaersicWg46", ""),
	"nft":        lazy(`^(?: -[anjs]+)* list(?: \w+)+$`),
	"pgrep":      options("aflnoxu", `\w[\w.-]*`),
	"ps":         options("a-zA-Z0-9", `[\w%,+.:]+|--(?:forest|sort=[\w%,+-]+|no-headers)`),
	"smartctl":   options("aHiAxc", `/dev/\w+`),
	"ss":         options("tulnpaexsroimH46", `[\w:=.]+`),
	"stat":       options("Lft", `/[\w./-]*`),
	"systemctl":  whole(` ` + lookedUp + `(?: --(?:all|failed|full|type=\w+|state=\w+)| -[aln0-9]+| \w[\w@.:-]*)*`),
	"sysctl":     options("an", `\w[\w.]*`),
	"tail":       options("nqvcfF0-9", `\d+|`+logs),
	"ufw":        lazy(`^ status(?: verbose| numbered)?$`),
	"uname":      options("asnrvmpio", ""),
	"uptime":     options("ps", ""),
	"vmstat":     options("awst", `\d+`),
	"w":          options("hsfiou", ""),
	"wc":         options("lcwm", logs),
	"who":        options("abdHlmqrstTu", ""),
	"whoami":     whole(""),
}

const lookedUp = `(?:status|is-active|is-enabled|is-failed|list-units|list-timers|list-unit-files|list-sockets|list-dependencies)`

// searched is a pattern for grep without -r and -f: one text that is looked for, in the system's logs.
var searched = whole(`(?: -[ivncEFowhHlLABCmq0-9]+| \d+)* [^ /-][^ ]*(?: ` + logs + `)+`)

// eases reports whether the command at i wraps only commands that look, and no rule says more of it than the built-in one
// about its wrapping; a model's first run aside. It asks all the same, with a lower score.
func eases(segs []*segment, i int) bool {
	s := segs[i]
	if s.wraps == NoCapability || s.more {
		return false
	}
	n := i + 1
	for ; n < len(segs) && !segs[n].top; n++ {
		if segs[n].changes || segs[n].more {
			return false
		}
	}
	return n > i+1
}

// beyond reports whether a rule asks for more than that a model wrote the command, or that it wraps another one.
func (r *rule) beyond(wraps Capability) bool {
	return r.level > Safe && (r.own || !r.match.llmFirstRun && (wraps == NoCapability || r.match.capabilityAny != SetOf(wraps)))
}
