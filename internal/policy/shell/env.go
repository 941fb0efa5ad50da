package shell

import "slices"

// env holds the variables at one point of a text: a log of bindings, of which the last of a name
// is valid. Leaving a branch cuts the log.
type env struct {
	log []binding
	// volatile are names that a function or a trap assigns at an unknown time, so they stay
	// unknown.
	volatile map[string]bool
	// lost: every name is volatile. losses counts how often that happened.
	lost   bool
	losses int
	// readonly says that a name was made read-only.
	readonly bool
	// alls counts how often everything was forgotten.
	alls int
	// ifs: IFS was assigned, so it is unknown where words split.
	ifs bool
	// fuel limits the work of looking up and copying values.
	fuel int
}

// binding is the value of a name. An empty name is a barrier: nothing before it is known.
type binding struct {
	name string
	// list holds the elements of an array; a plain variable has one.
	list     []string
	known    bool
	readonly bool
}

// unsettled are variables that the shell itself sets or reads, so that their value may differ
// from what was assigned.
var unsettled = set(`
	_ BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO
	BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO BASH_VERSION COLUMNS COMP_CWORD COMP_LINE COMP_POINT
	COMP_WORDS COPROC DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOSTNAME IFS LINENO LINES
	MAPFILE OLDPWD OPTARG OPTIND PIPESTATUS PPID PWD RANDOM READLINE_LINE READLINE_POINT REPLY SECONDS SHELLOPTS
	SHLVL SRANDOM UID`)

// lookup returns the elements of a name if they are known.
func (e *env) lookup(name string) ([]string, bool) {
	if len(e.log) == 0 || e.lost {
		return nil, false
	}
	for i := len(e.log) - 1; i >= 0; i-- {
		b := &e.log[i]
		e.fuel--
		if b.name == "" || e.fuel < 0 {
			return nil, false
		}
		if b.name != name {
			continue
		}
		if !b.known || unsettled[name] || e.volatile[name] {
			return nil, false
		}
		for _, v := range b.list {
			e.fuel -= len(v)
		}
		return b.list, true
	}
	return nil, false
}

func (e *env) isReadonly(name string) bool {
	if !e.readonly {
		return false
	}
	for _, b := range slices.Backward(e.log) {
		if e.fuel--; e.fuel < 0 {
			return true
		}
		if b.name == name {
			return b.readonly
		}
	}
	return false
}

// set binds a name to one value.
func (e *env) set(name, value string) {
	e.setList(name, []string{value})
}

func (e *env) setList(name string, list []string) {
	if name == "IFS" {
		e.ifs = true
	}
	// A read-only name keeps its value, or the shell ends.
	e.log = append(e.log, binding{name: name, list: list, known: !e.isReadonly(name)})
}

// forget makes a name unknown.
func (e *env) forget(name string) {
	if name == "" {
		e.forgetAll()
		return
	}
	if name == "IFS" {
		e.ifs = true
	}
	if len(e.log) > 0 {
		e.log = append(e.log, binding{name: name})
	}
}

// forgetAll makes every name unknown.
func (e *env) forgetAll() {
	e.alls++
	if n := len(e.log); n > 0 && e.log[n-1].name != "" {
		e.log = append(e.log, binding{})
	}
}

func (e *env) makeVolatile(name string) {
	if name == "" {
		e.lost = true
		e.losses++
		return
	}
	if name == "IFS" {
		e.ifs = true
	}
	if e.volatile == nil {
		e.volatile = map[string]bool{}
	}
	e.volatile[name] = true
}

func (e *env) mark() int { return len(e.log) }

// cut removes the bindings since the mark and returns their names; "" means all.
func (e *env) cut(mark int) []string {
	if len(e.log) <= mark {
		return nil
	}
	names := make([]string, 0, len(e.log)-mark)
	for _, b := range e.log[mark:] {
		names = append(names, b.name)
	}
	e.log = e.log[:mark]
	return names
}

// join forgets what was bound since the mark: it may or may not have happened.
func (e *env) join(mark int) {
	for i := mark; i < len(e.log); i++ {
		e.log[i].known, e.log[i].list = false, nil
	}
}

func (e *env) forgetNames(names []string) {
	for _, n := range names {
		e.forget(n)
	}
}
