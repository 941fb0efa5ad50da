// Package tools is what a language model may read without a question: one table of tools, each with its parameters, its
// limits and the command that carries it out.
//
// A command is a constant text for /bin/sh and the parameters behind it, "$1" and so on. So no parameter is ever read as
// an option or as shell text. The package must not run anything, and it does not judge: a command passes the policy as
// every other.
package tools

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Bounds of calls. Those of output are in bytes, which are at least as many as characters.
const (
	// MaxCalls is how many calls one answer has, and MaxRounds how many such answers follow each other without a plan.
	MaxCalls  = 8
	MaxRounds = 3
	// Timeout is how long a call may take.
	Timeout = 5 * time.Second
	// MaxOutput bounds what a call prints, and MaxTurn what all calls of a turn print.
	MaxOutput = 20_000
	MaxTurn   = 60_000
	// MaxFile is how much of one file is read.
	MaxFile = 1 << 20
	// MaxMatches is how many lines a search finds.
	MaxMatches = 200
)

// Kind is what a parameter holds.
type Kind int

// The kinds of a parameter.
const (
	Path    Kind = iota // an absolute path without "." and ".."
	Pattern             // an extended regular expression, for one line
	Glob                // a pattern of a file's name
	Unit                // a unit of systemd, or a service
	Span                // a time back from now
	Package             // a package's name, or a pattern of it
	Number              // a whole number
	Choice              // one of some words
	Book                // the name of a runbook
	Values              // a list of NAME=VALUE
)

// Param is one parameter of a tool.
type Param struct {
	Name     string
	Kind     Kind
	Required bool
	// Max bounds a number; numbers begin at 1.
	Max int
	// Words are those of a choice.
	Words []string
	// Default is what holds where the parameter is left out, "" for nothing.
	Default string
	Doc     string
}

// Tool is one tool.
type Tool struct {
	Name, Doc string
	Params    []Param
	// Written: it is answered with what is written down, and reads no target.
	Written bool
	// Searches: each line of its output begins with a file's path, ":", the line's number and ":".
	Searches bool
	// not are pairs of parameters that exclude each other.
	not [][2]string
	// script is the text for /bin/sh, and args are its parameters.
	script func(c *Call) string
	args   func(c *Call) []string
}

// Call is one call of a tool, as a model writes it. What is empty was left out.
type Call struct {
	Tool      string `json:"tool"`
	Path      string `json:"path,omitempty"`
	FirstLine int    `json:"first_line,omitempty"`
	Lines     int    `json:"lines,omitempty"`
	Pattern   string `json:"pattern,omitempty"`
	Name      string `json:"name,omitempty"`
	Since     string `json:"since,omitempty"`
	Unit      string `json:"unit,omitempty"`
	Priority  string `json:"priority,omitempty"`
	Sort      string `json:"sort,omitempty"`
	State     string `json:"state,omitempty"`
	// Parameters are those of a runbook, as NAME=VALUE.
	Parameters []string `json:"parameters,omitempty"`
}

// given are the parameters that a call has, as texts, by their names.
func (c *Call) given() map[string]string {
	all := map[string]string{
		"path": c.Path, "pattern": c.Pattern, "name": c.Name, "since": c.Since, "unit": c.Unit, "priority": c.Priority, "sort": c.Sort,
		"state": c.State, "parameters": strings.Join(c.Parameters, " "),
	}
	for name, n := range map[string]int{"first_line": c.FirstLine, "lines": c.Lines} {
		if n != 0 {
			all[name] = strconv.Itoa(n)
		}
	}
	for name, v := range all {
		if v == "" {
			delete(all, name)
		}
	}
	return all
}

// Find returns the tool of a name, nil if there is none.
func Find(name string) *Tool {
	for i := range table {
		if table[i].Name == name {
			return &table[i]
		}
	}
	return nil
}

// All are all tools.
func All() []Tool { return table }

// Problem is what is wrong with a parameter, and what may be given.
type Problem struct{ Param, What, Allowed string }

// Problems says what is wrong with a call: parameters that its tool does not take, that are missing, or of another form.
func (c *Call) Problems() (all []Problem) {
	t := Find(c.Tool)
	if t == nil {
		return []Problem{{"tool", fmt.Sprintf("is %.40q", c.Tool), "give one of " + strings.Join(Names(), ", ")}}
	}
	given, names := c.given(), []string{}
	for i := range t.Params {
		p := &t.Params[i]
		names = append(names, p.Name)
		v, ok := given[p.Name]
		delete(given, p.Name)
		switch {
		case !ok && p.Required:
			all = append(all, Problem{p.Name, "is missing, and " + t.Name + " needs it", "give " + p.Allowed()})
		case ok && !p.takes(v):
			all = append(all, Problem{p.Name, fmt.Sprintf("is not usable: %.80q", v), "give " + p.Allowed()})
		}
	}
	takes := "it takes no parameter"
	if len(names) > 0 {
		takes = "it takes " + strings.Join(names, ", ")
	}
	for _, name := range paramNames() {
		if _, ok := given[name]; ok {
			all = append(all, Problem{name, "is not a parameter of " + t.Name, takes})
		}
	}
	given = c.given()
	for _, pair := range t.not {
		if given[pair[0]] != "" && given[pair[1]] != "" {
			all = append(all, Problem{pair[1], "is there beside " + pair[0], "give one of the two"})
		}
	}
	return all
}

// takes reports whether a value is of the parameter's form.
func (p *Param) takes(v string) bool {
	if len(v) > p.most() || strings.ContainsFunc(v, unicode.IsControl) {
		return false
	}
	switch p.Kind {
	case Path:
		return path.IsAbs(v) && path.Clean(v) == v
	case Pattern:
		return v != ""
	case Glob:
		return v != "" && !strings.Contains(v, "/")
	case Unit:
		return plain(v, "@._:-\\") && v[0] != '-'
	case Package:
		return plain(v, "+._*?:-") && v[0] != '-'
	case Book:
		return plain(v, "_-")
	case Values:
		return strings.Contains(v, "=")
	case Span:
		n, err := strconv.Atoi(v[:max(len(v)-1, 0)])
		return err == nil && n > 0 && v[0] != '+' && strings.Contains("smhd", v[len(v)-1:])
	case Number:
		n, err := strconv.Atoi(v)
		return err == nil && n >= 1 && n <= p.Max
	case Choice:
		return slices.Contains(p.Words, v)
	}
	return false
}

// most is how long a value may be, in bytes.
func (p *Param) most() int {
	switch p.Kind {
	case Path:
		return 4095
	case Pattern:
		return 512
	case Values:
		return 4096
	case Glob, Unit, Package, Book:
		return 128
	default: // a number and a time are short, or of another form
		return 16
	}
}

// plain reports whether a text has letters, digits and some other characters, and at least one of them.
func plain(s, others string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		alnum := r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !alnum && !strings.ContainsRune(others, r)
	})
}

// Allowed says what may be given.
func (p *Param) Allowed() string {
	switch p.Kind {
	case Path:
		return "an absolute path of at most 4095 bytes without . and .. in it"
	case Pattern:
		return "an extended regular expression of at most 512 bytes"
	case Glob:
		return "a pattern of file names of at most 128 bytes without /, as *.conf"
	case Unit:
		return "the name of a unit, as ssh.service"
	case Span:
		return "a time back from now, as 30m, 6h or 2d"
	case Package:
		return "the name of a package, or a pattern as ssl*"
	case Number:
		return fmt.Sprintf("a whole number from 1 to %d", p.Max)
	case Choice:
		return "one of " + strings.Join(p.Words, ", ")
	case Book:
		return "the name of a runbook"
	case Values:
		return "a list of texts NAME=VALUE"
	}
	return "nothing"
}

// Argv is the command that carries a call out. The call has no problems.
func (c *Call) Argv() []string {
	t := Find(c.Tool)
	return append([]string{"/bin/sh", "-c", fixedPath + t.script(c), t.Name}, t.args(c)...)
}

// fixedPath has programs of tools be those of the system, whatever the PATH of who asks has: a directory of a project in front of it would
// put programs of its own in their place.
const fixedPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"

// String is the call as people read it.
func (c *Call) String() string {
	t, given := Find(c.Tool), c.given()
	s := c.Tool
	if t == nil {
		return s
	}
	for i := range t.Params {
		if v, ok := given[t.Params[i].Name]; ok {
			s += " " + t.Params[i].Name + "=" + v
		}
	}
	return s
}

// Names are the names of all tools.
func Names() []string {
	var all []string
	for i := range table {
		all = append(all, table[i].Name)
	}
	return all
}

// Params are the parameters of all tools, each name once, with the widest bound that one has.
func Params() []Param {
	var all []Param
	for _, name := range paramNames() {
		one := Param{Name: name}
		for i := range table {
			for _, p := range table[i].Params {
				if p.Name == name {
					one.Kind, one.Words, one.Doc = p.Kind, p.Words, cmp.Or(one.Doc, p.Doc)
					one.Max = max(one.Max, p.Max, p.most())
				}
			}
		}
		all = append(all, one)
	}
	return all
}

// paramNames are the names of the parameters of all tools, each once, in the table's order.
func paramNames() []string {
	var all []string
	for i := range table {
		for _, p := range table[i].Params {
			if !slices.Contains(all, p.Name) {
				all = append(all, p.Name)
			}
		}
	}
	return all
}

// maxUsed is how many words of a choice are listed where its tool's use is told: the default and the error tell the form of longer lists.
const maxUsed = 4

// Usage is how a tool is called, in one line. What stands behind "=" holds where the parameter is left out.
func (t *Tool) Usage() string {
	var params []string
	for i := range t.Params {
		p := &t.Params[i]
		text := p.Name
		if !p.Required {
			text += "?"
		}
		switch {
		case p.Kind == Choice && len(p.Words) <= maxUsed: // the default is the first
			text += "=" + strings.Join(p.Words, "|")
		case p.Default != "":
			text += "=" + p.Default
		}
		params = append(params, text)
	}
	usage := t.Name + "(" + strings.Join(params, ",") + ")"
	if t.Doc != "" {
		usage += ": " + t.Doc
	}
	return usage
}

// Limits are the limits of all tools, in one line.
func Limits() string {
	return fmt.Sprintf("%d calls at once, %d rounds without a plan, %v a call, %d characters a call and %d a turn, %d MiB of a file, "+
		"%d matches", MaxCalls, MaxRounds, Timeout, MaxOutput, MaxTurn, MaxFile>>20, MaxMatches)
}
