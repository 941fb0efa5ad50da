package rules

import (
	"slices"
	"strconv"
	"strings"
)

// knowledge holds what is known about programs, paths and variables. Entries of files come before
// those of base, if base is not nil.
type knowledge struct {
	base      *builtin
	programs  map[string]*spec
	paths     *pathTable
	variables map[string]*variable
	// families are programs known by a prefix of their name, such as mkfs.ext4.
	families []family
}

type family struct {
	prefix  string
	program *spec
}

// program returns the spec of a whole name, nil if there is none.
func (k *knowledge) program(name string) *spec {
	if s := k.programs[name]; s != nil || k.base == nil {
		return s
	}
	return k.base.program(name)
}

// family returns the spec of the longest prefix of a name.
func (k *knowledge) family(name string) *spec {
	var found *spec
	var prefix string
	if k.base != nil {
		found, prefix = k.base.family(name)
	}
	for _, f := range k.families {
		if strings.HasPrefix(name, f.prefix) {
			if len(f.prefix) >= len(prefix) {
				found = f.program
			}
			break
		}
	}
	return found
}

func (k *knowledge) variable(name string) *variable {
	if v := k.variables[name]; v != nil || k.base == nil {
		return v
	}
	return k.base.variable(name)
}

// pathCaps returns the capabilities of an access to a path and the class that gives them.
func (j *judge) pathCaps(p string, glob bool, a access) (Set, string) {
	m := &j.room.match
	m.of(p, glob, a)
	if j.k.base != nil {
		j.k.base.look(m)
	}
	j.k.paths.look(m)
	return m.found, m.name
}

// spec is a row about a program or a subcommand. docs/policy/commands.md describes the keys.
type spec struct {
	name     string
	parent   *spec
	short    map[byte]*flag
	long     map[string]*flag
	operands operands
	hasOps   bool
	caps     Set
	// sub holds subcommands, other is for any other word, bare for no word.
	sub         map[string]*spec
	subNames    []string
	other, bare *spec
	when        []*condition
	// single: long options have one dash (find, java, terraform).
	// abbrev: subcommands may be abbreviated (ip).
	// strict: an unlisted flag makes the use unknown.
	// permute: options may follow operands although the rest is a command.
	// plain: there are no flags (echo, test).
	// help: --help after a subcommand only prints help.
	single, abbrev, strict, permute, plain, help bool
	// after is the role of the words after "--".
	after   *operand
	special special
}

// flag is one option with all its names.
type flag struct {
	name     string // the first
	role     role   // of its value
	value    bool   // takes a value
	optional bool   // the value must be attached
	skip     bool   // takes the place of the first operand
	stop     bool   // only operands follow
	caps     Set
}

// operand is one position in a pattern of operands.
type operand struct {
	role role
	many bool
	caps Set
}

// operands is a pattern: positions before the one with *, that one, positions after it.
type operands struct {
	list []operand
	star int // index of the position with *, -1 for none
	rest int // index of the position that takes all remaining words, -1 for none
}

// compiler compiles the sources of knowledge. A later source replaces programs of earlier ones.
type compiler struct {
	*reader
	k *knowledge
}

func newKnowledge(base *builtin) *knowledge {
	return &knowledge{base: base, programs: map[string]*spec{}, paths: newPathTable(), variables: map[string]*variable{}}
}

// add compiles one source.
func (k *knowledge) add(r *reader, t *tree) error {
	if t.kind == null {
		return nil
	}
	c := &compiler{r, k}
	return r.fields(t, "a file of command knowledge", nil,
		field{"version", func(t *tree) error { _, err := r.integer(t, "version", 1, 1); return err }},
		field{"programs", c.programs},
		field{"paths", c.paths},
		field{"variables", c.variables},
	)
}

func (r *reader) integer(t *tree, what string, low, high int) (int, error) {
	if t.kind == scalar && !t.quoted {
		if n, err := strconv.Atoi(t.text); err == nil && n >= low && n <= high {
			return n, nil
		}
	}
	return 0, r.errorf(t, "%s must be a whole number from %d to %d", what, low, high)
}

// programNames splits the key of a program into its names.
func programNames(key *tree) []string { return strings.Fields(key.text) }

func (c *compiler) programs(t *tree) error {
	if t.kind == null {
		return nil
	}
	if t.kind != mapping {
		return c.errorf(t, "programs must be a mapping of names, this is %s", t.kind)
	}
	here := map[string]bool{}
	for i, key := range t.keys {
		names := programNames(key)
		if len(names) == 0 {
			return c.errorf(key, "a program needs a name")
		}
		s, err := c.spec(t.items[i], names[0], nil)
		if err != nil {
			return err
		}
		for _, n := range names {
			if here[n] {
				return c.errorf(key, "the program %q is defined twice", n)
			}
			here[n] = true
			if prefix, ok := strings.CutSuffix(n, "*"); ok && len(prefix) > 1 {
				c.k.families = append([]family{{prefix, s}}, c.k.families...)
				continue
			}
			if strings.ContainsAny(n, "/*?") {
				return c.errorf(key, "%q is not the name of a program: give the last part of its path, or the beginning of a name and one *", n)
			}
			c.k.programs[n] = s
		}
	}
	return nil
}

// spec compiles a mapping, or a line of operands and capabilities.
func (c *compiler) spec(t *tree, name string, parent *spec) (*spec, error) {
	s := &spec{name: name, parent: parent, operands: operands{star: -1, rest: -1}}
	switch t.kind {
	case null:
		return s, nil
	case scalar:
		ops, caps, err := c.operands(t)
		if err != nil {
			return nil, err
		}
		s.operands, s.hasOps, s.caps = ops, len(ops.list) > 0, caps
		return s, nil
	case list:
		return nil, c.errorf(t, "what is known about %s must be a mapping or a text", name)
	case mapping:
	}
	// Flags first: conditions name them.
	if f := t.get("flags"); f != nil {
		if err := c.flags(s, f); err != nil {
			return nil, err
		}
	}
	return s, c.fields(t, "what is known about "+name, nil,
		field{"flags", func(*tree) error { return nil }},
		field{"doc", func(t *tree) error { _, err := c.str(t, "doc"); return err }},
		field{"operands", func(t *tree) (err error) {
			var caps Set
			s.operands, caps, err = c.operands(t)
			s.hasOps = true
			s.caps |= caps
			return err
		}},
		field{"caps", func(t *tree) error {
			caps, err := c.capabilities(t)
			s.caps |= caps
			return err
		}},
		field{"after", func(t *tree) error {
			ops, _, err := c.operands(t)
			if err == nil && len(ops.list) != 1 {
				err = c.errorf(t, "after must be one role")
			}
			if err == nil {
				s.after = &ops.list[0]
			}
			return err
		}},
		field{"sub", func(t *tree) error { return c.subcommands(s, t) }},
		field{"other", func(t *tree) (err error) { s.other, err = c.spec(t, name, s); return err }},
		field{"bare", func(t *tree) (err error) { s.bare, err = c.spec(t, name, s); return err }},
		field{"when", func(t *tree) error { return c.conditions(s, t) }},
		field{"special", func(t *tree) error {
			n, err := c.str(t, "special")
			if err != nil {
				return err
			}
			var ok bool
			if s.special, ok = specials[n]; !ok {
				return c.errorf(t, "there is no special treatment %q", n)
			}
			return nil
		}},
		c.boolField("single", &s.single),
		c.boolField("abbrev", &s.abbrev),
		c.boolField("strict", &s.strict),
		c.boolField("permute", &s.permute),
		c.boolField("plain", &s.plain),
		c.boolField("help", &s.help),
	)
}

func (c *compiler) subcommands(s *spec, t *tree) error {
	if t.kind != mapping {
		return c.errorf(t, "sub must be a mapping of names, this is %s", t.kind)
	}
	s.sub = map[string]*spec{}
	for i, key := range t.keys {
		names := strings.Fields(key.text)
		if len(names) == 0 {
			return c.errorf(key, "a subcommand needs a name")
		}
		sub, err := c.spec(t.items[i], s.name+" "+names[0], s)
		if err != nil {
			return err
		}
		for _, n := range names {
			if s.sub[n] != nil {
				return c.errorf(key, "the subcommand %q is defined twice", n)
			}
			s.sub[n] = sub
			s.subNames = append(s.subNames, n)
		}
	}
	return nil
}

// capabilities compiles a list of names.
func (c *compiler) capabilities(t *tree) (Set, error) {
	names, err := c.texts(t, "caps")
	if err != nil {
		return 0, err
	}
	return c.capabilityNames(t, names)
}

func (r *reader) capabilityNames(t *tree, names []string) (Set, error) {
	var s Set
	for _, n := range names {
		if n == "stdin.code" {
			s |= 1 << interpretsInput
			continue
		}
		found, ok := CapabilityByName(n)
		if !ok {
			return 0, r.errorf(t, "there is no capability %q%s", n, nearest(n))
		}
		s |= SetOf(found)
	}
	return s, nil
}

// nearest suggests capabilities that share the first or second part of the name.
func nearest(name string) string {
	area, what, _ := strings.Cut(name, ".")
	var like []string
	for n := range capabilityByName {
		a, w, _ := strings.Cut(n, ".")
		if a == area || w != "" && w == what {
			like = append(like, n)
		}
	}
	if len(like) == 0 {
		return ""
	}
	slices.Sort(like)
	return "; there is " + strings.Join(like, ", ")
}

// operands compiles a pattern such as "text read* write :network.out": roles in order, one of
// them with *, each with capabilities after a colon. A word that begins with a colon is a
// capability of every use.
func (c *compiler) operands(t *tree) (operands, Set, error) {
	ops := operands{star: -1, rest: -1}
	text, err := c.str(t, "operands")
	if err != nil {
		return ops, 0, err
	}
	var caps Set
	for word := range strings.FieldsSeq(text) {
		name, with, _ := strings.Cut(word, ":")
		var own Set
		if with != "" {
			if own, err = c.capabilityNames(t, strings.Split(with, ",")); err != nil {
				return ops, 0, err
			}
		}
		if name == "" {
			caps |= own
			continue
		}
		if name == "none" {
			continue
		}
		base, many := strings.CutSuffix(name, "*")
		ro, ok := roles[base]
		if !ok {
			return ops, 0, c.errorf(t, "there is no role %q", base)
		}
		if many {
			if ops.star >= 0 {
				return ops, 0, c.errorf(t, "only one role can have a *")
			}
			ops.star = len(ops.list)
		}
		if ro.rest && ops.rest < 0 {
			ops.rest = len(ops.list)
		}
		ops.list = append(ops.list, operand{role: ro, many: many, caps: own})
	}
	if ops.rest >= 0 && (ops.rest != len(ops.list)-1 || ops.star >= 0) {
		return ops, 0, c.errorf(t, "a role that takes the rest of the words must be the last, without a *")
	}
	return ops, caps, nil
}

// lookup finds a flag by its whole name, in the spec or its parents.
func (s *spec) lookup(name string) *flag {
	for at := s; at != nil; at = at.parent {
		if f := at.long[name]; f != nil {
			return f
		}
	}
	return nil
}
