package tools

import (
	"cmp"
	"strconv"
	"strings"
)

// Programs that print much are cut to whole lines, so that what is left out begins at a line.
const (
	// readFile prints lines of a file: of $1, $3 of them from $2 on.
	readFile = `if [ -d "$1" ]; then echo "it is a directory; use list_dir" >&2; exit 1; fi
if [ ! -f "$1" ]; then echo "it is not there, or is no regular file" >&2; exit 1; fi
if [ ! -r "$1" ]; then echo "this user may not read it" >&2; exit 1; fi
head -c 1048576 -- "$1" | tail -n +"$2" | head -n "$3"`

	listDir = `if [ ! -d "$1" ]; then echo "it is not there, or is no directory" >&2; exit 1; fi
ls -lAn -- "$1" | head -n 500`

	// searchFiles looks for $2 in the files below $1 with names as $3. Paths with a line end in them are left out: what is
	// printed is read by lines.
	searchFiles = `if [ ! -e "$1" ]; then echo "it is not there" >&2; exit 1; fi
find "$1" -xdev -type f -name "$3" ! -path "*
*" -size -1048577c -exec grep -HnIsE -m 200 -e "$2" -- {} + | head -n 200 | cut -b 1-500`

	// searchLog looks for $2 at the end of the file $1.
	searchLog = `if [ ! -f "$1" ]; then echo "it is not there, or is no regular file" >&2; exit 1; fi
if [ ! -r "$1" ]; then echo "this user may not read it" >&2; exit 1; fi
tail -c 1048576 -- "$1" | grep -aE -e "$2" | tail -n 200 | cut -b 1-500`

	systemd   = `if [ -d /run/systemd/system ] && command -v journalctl >/dev/null 2>&1; then `
	noJournal = `echo "there is no systemd here: this is the end of /var/log/syslog and /var/log/messages, of any time and priority" >&2
cat /var/log/syslog /var/log/messages 2>/dev/null | tail -c 1048576 | `

	// The journal of one unit ($4), or of all, back to $2: lines as $1, or at most $1 of them of the priority $3.
	searchUnit = systemd + `
journalctl --no-pager -q -o short-iso --since="-$2" --unit="$3" | tail -c 1048576 | grep -aE -e "$1" | tail -n 200 | cut -b 1-500
else ` + noJournal + `grep -aF -e "$3" | grep -aE -e "$1" | tail -n 200 | cut -b 1-500
fi`
	searchJournal = systemd + `
journalctl --no-pager -q -o short-iso --since="-$2" | tail -c 1048576 | grep -aE -e "$1" | tail -n 200 | cut -b 1-500
else ` + noJournal + `grep -aE -e "$1" | tail -n 200 | cut -b 1-500
fi`
	journalUnit = systemd + `journalctl --no-pager -q -o short-iso --lines="$1" --since="-$2" --priority="$3" --unit="$4"
else ` + noJournal + `grep -aF -e "$4" | tail -n "$1"
fi`
	journalAll = systemd + `journalctl --no-pager -q -o short-iso --lines="$1" --since="-$2" --priority="$3"
else ` + noJournal + `tail -n "$1"
fi`

	systemInfo = `uname -srm
hostname
cat /etc/os-release | head -n 8
uptime
nproc
cat /proc/meminfo | head -n 3
cat /proc/swaps
df -hP | head -n 40
id`

	processList = `if ps -e -o pid --sort=pid >/dev/null 2>&1; then
ps -e -o pid,ppid,user,stat,pcpu,pmem,rss,etime,args --sort="-$1" | head -n 101 | cut -b 1-240
else ps | head -n 101 | cut -b 1-240; fi`

	socketList = `if command -v ss >/dev/null 2>&1; then ss -tulpn | head -n 300
elif command -v netstat >/dev/null 2>&1; then netstat -tulpn | head -n 300
else cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 | head -n 300; fi`

	noServices = `else echo "there is no systemd here: these are services of init" >&2
if command -v rc-status >/dev/null 2>&1; then rc-status -a
elif command -v service >/dev/null 2>&1; then service --status-all 2>&1
else ls -1 /etc/init.d; fi`
	serviceList = `if [ -d /run/systemd/system ]; then systemctl list-units --no-pager --plain --all --type=service --state="$1" | head -n 300
` + noServices + ` | head -n 300
fi`
	serviceOne = `if [ -d /run/systemd/system ]; then systemctl status --no-pager --full --lines=20 -- "$1"
` + noServices + ` | grep -F -e "$1"
fi`

	packageList = `if command -v dpkg-query >/dev/null 2>&1; then
dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package} ${Version}\n' -- "$1" | grep -v '^un' | head -n 500
elif command -v rpm >/dev/null 2>&1; then rpm -qa -- "$1" | head -n 500
elif command -v apk >/dev/null 2>&1; then apk list --installed -- "$1" | head -n 500
elif command -v pacman >/dev/null 2>&1; then pacman -Q | head -n 500
else echo "there is none of dpkg-query, rpm, apk and pacman here" >&2; exit 1; fi`
)

func always(s string) func(*Call) string { return func(*Call) string { return s } }

// pattern is a pattern that does not look like an option, which the policy would take it for: "[-]" is "-".
func pattern(s string) string {
	if strings.HasPrefix(s, "-") {
		return "[-]" + s[1:]
	}
	return s
}

func nothing(*Call) []string { return nil }

// sorts are the orders of ps(1), the greatest first.
var sorts = map[string]string{"cpu": "pcpu", "memory": "rss", "age": "etimes", "pid": "pid"}

// states are those of systemctl(1).
var states = map[string]string{"failed": "failed", "running": "running", "all": "loaded"}

var (
	unitParam  = Param{Name: "unit", Kind: Unit, Doc: "a unit of systemd"}
	sinceParam = Param{Name: "since", Kind: Span, Default: "1h", Doc: "how far back"}
)

// table are all tools.
var table = []Tool{
	{
		Name: "read_file", Doc: "lines of a text file's first MiB",
		Params: []Param{
			{Name: "path", Kind: Path, Required: true, Doc: "an absolute path"},
			{Name: "first_line", Kind: Number, Max: 1_000_000, Default: "1", Doc: "from which line on, counted from 1"},
			{Name: "lines", Kind: Number, Max: 2000, Default: "200", Doc: "how many lines"},
		},
		script: always(readFile),
		args: func(c *Call) []string {
			return []string{c.Path, strconv.Itoa(cmp.Or(c.FirstLine, 1)), strconv.Itoa(cmp.Or(c.Lines, 200))}
		},
	},
	{
		Name: "list_dir", Doc: "the entries of a directory",
		Params: []Param{{Name: "path", Kind: Path, Required: true}},
		script: always(listDir), args: func(c *Call) []string { return []string{c.Path} },
	},
	{
		Name: "search_files", Doc: "grep -E in the files below a directory", Searches: true,
		Params: []Param{
			{Name: "path", Kind: Path, Required: true},
			{Name: "pattern", Kind: Pattern, Required: true, Doc: "an extended regular expression"},
			{Name: "name", Kind: Glob, Default: "*", Doc: "a pattern of file names, a package or a runbook"},
		},
		script: always(searchFiles), args: func(c *Call) []string { return []string{c.Path, pattern(c.Pattern), pattern(cmp.Or(c.Name, "*"))} },
	},
	{
		Name: "search_logs", Doc: "grep -E at the end of a log file, or in the journal",
		not:    [][2]string{{"path", "unit"}, {"path", "since"}},
		Params: []Param{{Name: "pattern", Kind: Pattern, Required: true}, sinceParam, {Name: "path", Kind: Path}, unitParam},
		script: func(c *Call) string {
			switch {
			case c.Path != "":
				return searchLog
			case c.Unit != "":
				return searchUnit
			}
			return searchJournal
		},
		args: func(c *Call) []string {
			switch since := cmp.Or(c.Since, "1h"); {
			case c.Path != "":
				return []string{c.Path, pattern(c.Pattern)}
			case c.Unit != "":
				return []string{pattern(c.Pattern), since, c.Unit}
			default:
				return []string{pattern(c.Pattern), since}
			}
		},
	},
	{Name: "get_system_info", Doc: "kernel, release, uptime, memory, disks, user", script: always(systemInfo), args: nothing},
	{
		Name: "journal", Doc: "its last lines, or those of the system's log",
		Params: []Param{
			unitParam, sinceParam,
			{Name: "lines", Kind: Number, Max: 2000, Default: "200"},
			{
				Name: "priority", Kind: Choice, Words: []string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"},
				Default: "debug", Doc: "the least priority",
			},
		},
		script: func(c *Call) string {
			if c.Unit != "" {
				return journalUnit
			}
			return journalAll
		},
		args: func(c *Call) []string {
			all := []string{strconv.Itoa(cmp.Or(c.Lines, 200)), cmp.Or(c.Since, "1h"), cmp.Or(c.Priority, "debug")}
			if c.Unit != "" {
				all = append(all, c.Unit)
			}
			return all
		},
	},
	{
		Name: "processes", Doc: "the first 100",
		Params: []Param{{Name: "sort", Kind: Choice, Words: []string{"cpu", "memory", "age", "pid"}, Default: "cpu", Doc: "the order"}},
		script: always(processList), args: func(c *Call) []string { return []string{sorts[cmp.Or(c.Sort, "cpu")]} },
	},
	{Name: "sockets", Doc: "listening ports with their processes", script: always(socketList), args: nothing},
	{
		Name: "services", Doc: "services in a state, or the status of one", not: [][2]string{{"state", "unit"}},
		Params: []Param{
			{Name: "state", Kind: Choice, Words: []string{"all", "failed", "running"}, Default: "all", Doc: "which services"},
			unitParam,
		},
		script: func(c *Call) string {
			if c.Unit != "" {
				return serviceOne
			}
			return serviceList
		},
		args: func(c *Call) []string { return []string{cmp.Or(c.Unit, states[cmp.Or(c.State, "all")])} },
	},
	{
		Name: "packages", Doc: "installed ones with versions, as dpkg -l (hi: held)",
		Params: []Param{{Name: "name", Kind: Package, Default: "*"}},
		script: always(packageList), args: func(c *Call) []string { return []string{cmp.Or(c.Name, "*")} },
	},
	{
		Name: "runbook", Doc: "its text; propose its commands as any others", Written: true,
		Params: []Param{
			{Name: "name", Kind: Book, Required: true}, {Name: "parameters", Kind: Values, Doc: "parameters of a runbook, each as NAME=VALUE"},
		},
		script: always(""), args: nothing,
	},
}
