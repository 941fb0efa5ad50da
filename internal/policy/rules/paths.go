package rules

import (
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// access is what is done with a path.
type access uint8

const (
	accessStat   access = iota // looks whether and what it is
	accessRead                 // reads its content
	accessTree                 // reads all below it
	accessWrite                // creates or changes it
	accessDelete               // removes it
	accessMode                 // changes its mode, owner or attributes
	accesses
)

// pathClass is a row of the table of paths: what it means to read, write or remove such a path.
type pathClass struct {
	name   string
	match  []pathPattern
	except []pathPattern
	caps   [accesses]Set
}

// pathTable indexes classes by a fixed part of their patterns.
type pathTable struct {
	classes []*pathClass
	// byPart indexes patterns by a fixed part; rest holds those without a fixed part or ending.
	byPart map[string][]placed
	// byExt indexes patterns by the ending of the file.
	byExt map[string][]placed
	rest  []placed
}

type placed struct {
	class   *pathClass
	pattern pathPattern
}

func newPathTable() *pathTable {
	return &pathTable{byPart: map[string][]placed{}, byExt: map[string][]placed{}}
}

// unknownPart replaces a part of a path that is unknown.
const unknownPart = "\x00"

func (c *compiler) paths(t *tree) error {
	if t.kind != list {
		return c.errorf(t, "paths must be a list, this is %s", t.kind)
	}
	for _, item := range t.items {
		class, err := c.pathClass(item)
		if err != nil {
			return err
		}
		c.k.paths.add(class)
	}
	return nil
}

func (c *compiler) pathClass(t *tree) (*pathClass, error) {
	class := &pathClass{}
	caps := func(to ...access) func(*tree) error {
		return func(t *tree) error {
			s, err := c.capabilities(t)
			for _, a := range to {
				class.caps[a] |= s
			}
			return err
		}
	}
	patterns := func(to *[]pathPattern) func(*tree) error {
		return func(t *tree) error {
			texts, err := c.texts(t, "patterns")
			for _, p := range texts {
				split, ok := splitPattern(p)
				if !ok {
					return c.errorf(t, "%q is not a pattern of a path: begin it with /, ~/ or **/", p)
				}
				*to = append(*to, split)
			}
			return err
		}
	}
	return class, c.fields(t, "a class of paths", []string{"name", "match"},
		c.textField("name", &class.name),
		field{"match", patterns(&class.match)},
		field{"except", patterns(&class.except)},
		field{"stat", caps(accessStat)},
		field{"read", caps(accessRead, accessTree)},
		field{"write", caps(accessWrite)},
		field{"delete", caps(accessDelete)},
		field{"mode", caps(accessMode)},
		field{"change", caps(accessWrite, accessDelete, accessMode)},
	)
}

func (pt *pathTable) add(c *pathClass) {
	pt.classes = append(pt.classes, c)
	for _, p := range c.match {
		switch part, ending := p.key(); {
		case part != "":
			pt.byPart[part] = append(pt.byPart[part], placed{c, p})
		case ending != "":
			pt.byExt[ending] = append(pt.byExt[ending], placed{c, p})
		default:
			pt.rest = append(pt.rest, placed{c, p})
		}
	}
}

// pathMatch looks one path up and collects what is found.
type pathMatch struct {
	parts          []pathPart
	glob, relative bool
	access         access
	found          Set
	name           string // of the first class that matches
	room           [16]pathPart
}

// of prepares m for a path.
func (m *pathMatch) of(p string, glob bool, a access) {
	m.glob, m.relative, m.access = glob, !strings.HasPrefix(p, "/"), a
	m.found, m.name = 0, ""
	m.parts = m.room[:0]
	for part := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		m.parts = append(m.parts, newPathPart(part, glob))
	}
	// Where the end of the name is fixed, ** stands for directories as * does, and not for what lies in them.
	for i := range m.parts {
		if glob && m.parts[i].text == "**" && m.lastByte() != anyByte {
			m.parts[i].text = "*"
		}
	}
}

// ending returns what follows the last dot of the last part.
func (m *pathMatch) ending() string {
	base := m.parts[len(m.parts)-1].text
	return base[strings.LastIndexByte(base, '.')+1:]
}

// anyByte means that the last byte is unknown.
const anyByte = 256

// shortPath is the most parts that a short relative path has.
const shortPath = 3

// short returns the number of parts of a short relative path, 0 for any other.
func (m *pathMatch) short() int {
	if !m.relative || len(m.parts) > shortPath {
		return 0
	}
	return len(m.parts)
}

// lastByte returns the last byte of a glob.
func (m *pathMatch) lastByte() int {
	base := m.parts[len(m.parts)-1].text
	if base == "" || strings.IndexByte("*?]", base[len(base)-1]) >= 0 {
		return anyByte
	}
	return int(base[len(base)-1])
}

func (m *pathMatch) try(c *pathClass, p *pathPattern) {
	set := c.caps[m.access]
	if set|m.found == m.found || m.relative && !p.floating || !p.match(m.parts) {
		return
	}
	for i := range c.except {
		if e := &c.except[i]; !m.glob && e.match(m.parts) || m.glob && e.holds(m.parts) {
			return
		}
	}
	m.found |= set
	if m.name == "" {
		m.name = c.name
	}
}

func (m *pathMatch) tryAll(c *pathClass) {
	if c.caps[m.access]|m.found == m.found {
		return
	}
	for i := range c.match {
		m.try(c, &c.match[i])
	}
}

// look tries the patterns that share a part or an ending with the path.
func (pt *pathTable) look(m *pathMatch) {
	if m.glob {
		for _, c := range pt.classes {
			m.tryAll(c)
		}
		return
	}
	if len(pt.classes) == 0 {
		return
	}
	for _, part := range m.parts {
		for _, at := range pt.byPart[part.text] {
			m.try(at.class, &at.pattern)
		}
	}
	for _, at := range pt.byExt[m.ending()] {
		m.try(at.class, &at.pattern)
	}
	for _, at := range pt.rest {
		m.try(at.class, &at.pattern)
	}
}

// canonical returns the path in the form of the table: without ".." and /proc/self/root, the home
// as ~, joined to dir if that is known. Unknown parts become unknownPart.
func canonical(w shell.Word, home, dir string) (p string, glob bool) {
	p = w.Text
	if w.Dynamic {
		p = known(p)
	}
	switch {
	case strings.HasPrefix(p, "~"):
		user, rest, _ := strings.Cut(p, "/")
		if user == "~+" || user == "~-" {
			p = rest
		} else {
			p = "/~/" + rest
		}
	case strings.HasPrefix(p, "/"), strings.HasPrefix(p, unknownPart):
	case dir != "":
		p = dir + "/" + p
	}
	extended := false
	if strings.Contains(p, "(") {
		p, extended = extendedPattern(p)
	}
	if strings.HasPrefix(p, "/") {
		p = cleanAbsolute(p, home)
	} else {
		p = path.Clean(p)
	}
	return p, (w.Glob || extended) && strings.ContainsAny(p, "*?[")
}

// extendedPattern replaces @(…), ?(…), *(…), +(…) and !(…) by *.
func extendedPattern(p string) (string, bool) {
	var b strings.Builder
	found := false
	for i := 0; i < len(p); i++ {
		if i+1 < len(p) && p[i+1] == '(' && strings.IndexByte("@?*+!", p[i]) >= 0 {
			if end := strings.IndexByte(p[i:], ')'); end > 0 {
				b.WriteByte('*')
				i += end
				found = true
				continue
			}
		}
		b.WriteByte(p[i])
	}
	return b.String(), found
}

func cleanAbsolute(p, home string) string {
	// Most paths are clean.
	if strings.Contains(p, "//") || strings.Contains(p, "/.") || strings.HasSuffix(p, "/") {
		p = path.Clean(p)
	}
	for {
		rest, ok := throughProc(p)
		if !ok {
			break
		}
		p = path.Clean("/" + rest)
	}
	if home != "" && home != "/" && home != "~" && strings.HasPrefix(p, home) && (len(p) == len(home) || p[len(home)] == '/') {
		return "/~" + p[len(home):]
	}
	if rest, ok := strings.CutPrefix(p, "/root"); ok && (rest == "" || rest[0] == '/') {
		return "/~" + rest
	}
	if rest, ok := strings.CutPrefix(p, "/home/"); ok {
		if user, below, _ := strings.Cut(rest, "/"); user != "" {
			return strings.TrimSuffix("/~/"+below, "/")
		}
	}
	return p
}

// throughProc returns the path after /proc/PID/root, /proc/PID/cwd/../… and /proc/PID/task/TID.
func throughProc(p string) (string, bool) {
	rest, ok := strings.CutPrefix(p, "/proc/")
	if !ok {
		return "", false
	}
	_, rest, ok = strings.Cut(rest, "/")
	if !ok {
		return "", false
	}
	if task, ok := strings.CutPrefix(rest, "task/"); ok {
		if _, rest, ok = strings.Cut(task, "/"); !ok {
			return "", false
		}
	}
	if rest == "root" {
		return "", true
	}
	return strings.CutPrefix(rest, "root/")
}

// known replaces the unknown parts of a word: the home by ~, others by unknownPart.
func known(text string) string {
	for _, home := range [...]string{"$HOME", "${HOME}", "$(echo ~)", "$(eval echo ~)"} {
		if rest, ok := strings.CutPrefix(text, home); ok && (rest == "" || rest[0] == '/') {
			return "~" + known(rest)
		}
	}
	if !strings.ContainsAny(text, "$`") {
		return text
	}
	for _, dir := range [...]string{"$PWD", "${PWD}", "$(pwd)", "`pwd`"} {
		if rest, ok := strings.CutPrefix(text, dir); ok && (rest == "" || rest[0] == '/') {
			return "." + known(rest)
		}
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '`':
			end := strings.IndexByte(text[i+1:], '`')
			if end < 0 {
				end = len(text) - i - 2
			}
			i += end + 2
			b.WriteString(unknownPart)
		case c == '$' && i+1 < len(text):
			i += 1 + expansion(text[i+1:])
			b.WriteString(unknownPart)
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String()
}

// expansion returns the length of what follows a dollar.
func expansion(s string) int {
	switch s[0] {
	case '{', '(':
		depth := 0
		for i := range len(s) {
			switch s[i] {
			case '{', '(':
				depth++
			case '}', ')':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return len(s)
	}
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= '0' && s[n] <= '9' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z') {
		n++
	}
	return max(n, 1)
}

// variable is a row of the table of variables: what it means to set one.
type variable struct {
	caps Set
	// role judges the value.
	role role
}

func (c *compiler) variable(t *tree) (*variable, error) {
	ops, caps, err := c.operands(t)
	v := &variable{caps: caps}
	if len(ops.list) > 0 {
		v.role = ops.list[0].role
		v.caps |= ops.list[0].caps
	}
	return v, err
}

func (c *compiler) variables(t *tree) error {
	if t.kind != mapping {
		return c.errorf(t, "variables must be a mapping of names, this is %s", t.kind)
	}
	for i, key := range t.keys {
		v, err := c.variable(t.items[i])
		if err != nil {
			return err
		}
		for n := range strings.FieldsSeq(key.text) {
			c.k.variables[n] = v
		}
	}
	return nil
}
