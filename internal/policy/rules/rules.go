package rules

import (
	"path"
	"slices"
	"strings"
)

// rule is a compiled rule. docs/policy/rules.md describes the keys.
type rule struct {
	id, legacy     string
	level          Level
	risk           int
	capabilities   []string
	known          Set // of capabilities
	reason         string
	neverWhitelist bool
	match          matcher
	should, not    []example
	at             tree // its place, for errors
	source         string
	order          int
	own            bool // from a file, and not built in
}

type example struct {
	text    string
	at      tree
	profile Profile
	origin  Origin
}

// matcher is the compiled match of a rule. All given keys must hold, except that one of
// interactive, llm_first_run, embedded_regex and the input keys is enough on its own, as in
// LinuxAgent's files.
type matcher struct {
	command        []string
	commandRegex   []*pattern
	argv           []argvPattern
	subcommandAny  []string
	argsAny        []string
	argsRegex      []*pattern
	argsAllRegex   []*pattern
	argsValues     []argValue
	pathAny        []string
	pathRegex      []*pattern
	embeddedRegex  []*pattern
	interactive    bool
	parseError     bool
	empty          bool
	inputInvalid   bool
	llmFirstRun    bool
	capabilityAny  Set
	hostAny        []string
	profile        []Profile
	origin         []Origin
	workspace      []string
	shape, context bool // has keys about the command; has keys about place and author
}

type argvPattern struct {
	prefix []string
	exact  bool
	tokens []argvToken
	flags  []flagValue
}

type argvToken struct {
	index  int
	values []string
	regex  []*pattern
}

type flagValue struct {
	flag                              string
	values                            []string
	regex                             []*pattern
	required, allowEquals, allowApart bool
}

type argValue struct {
	name   string
	values []string
	regex  []*pattern
}

// ruleFile is a compiled source of rules.
type ruleFile struct {
	rules       []*rule
	interactive interactiveLists
	firstRun    map[Profile]firstRun
}

// interactiveLists names programs that wait for a person, and flags that prevent it.
type interactiveLists struct {
	commands     map[string]bool
	flags        []string
	commandFlags map[string][]string
}

// ruleReader compiles one source of rules.
type ruleReader struct {
	*reader
	shared map[string]*tree
	file   ruleFile
}

// loadRules compiles a source of rules and returns its knowledge, which the caller compiles.
func loadRules(s Source) (*ruleFile, *tree, *reader, error) {
	r, t, err := readTree(s)
	if err != nil {
		return nil, nil, nil, err
	}
	f, knowledge, err := readRules(r, t)
	return f, knowledge, r, err
}

func readRules(r *reader, t *tree) (*ruleFile, *tree, error) {
	rr := &ruleReader{reader: r, shared: map[string]*tree{}}
	var knowledge *tree
	if t.kind == null {
		return nil, nil, r.errorf(t, "a policy needs the key \"rules\"")
	}
	if p := t.get("x-patterns"); p != nil {
		if err := rr.patterns(p); err != nil {
			return nil, nil, err
		}
	}
	skip := func(*tree) error { return nil }
	err := r.fields(t, "a policy", []string{"rules"},
		field{"version", func(t *tree) error { _, err := r.integer(t, "version", 1, 1); return err }},
		field{"x-patterns", skip},
		field{"interactive_commands", func(t *tree) error {
			names, err := r.texts(t, "interactive_commands")
			rr.file.interactive.commands = map[string]bool{}
			for _, n := range names {
				rr.file.interactive.commands[n] = true
			}
			return err
		}},
		r.textsField("noninteractive_flags", &rr.file.interactive.flags),
		field{"noninteractive_command_flags", rr.commandFlags},
		field{"profiles", rr.profiles},
		field{"rules", rr.rules},
		field{"knowledge", func(t *tree) error { knowledge = t; return nil }},
	)
	if err == nil {
		err = rr.checkProfiles()
	}
	return &rr.file, knowledge, err
}

func (r *ruleReader) patterns(t *tree) error {
	if t.kind == null {
		return nil
	}
	if t.kind != mapping {
		return r.errorf(t, "x-patterns must be a mapping of names to lists")
	}
	for i, k := range t.keys {
		if _, err := r.texts(t.items[i], "x-patterns."+k.text); err != nil {
			return err
		}
		r.shared[k.text] = t.items[i]
	}
	return nil
}

func (r *ruleReader) commandFlags(t *tree) error {
	if t.kind != list {
		return r.errorf(t, "noninteractive_command_flags must be a list")
	}
	r.file.interactive.commandFlags = map[string][]string{}
	for _, item := range t.items {
		var name string
		var flags []string
		if err := r.fields(item, "an item of noninteractive_command_flags", []string{"command", "flags"},
			r.textField("command", &name), r.textsField("flags", &flags)); err != nil {
			return err
		}
		r.file.interactive.commandFlags[name] = append(r.file.interactive.commandFlags[name], flags...)
	}
	return nil
}

// expand replaces list items that begin with @ by the shared patterns of that name.
func (r *ruleReader) expand(t *tree) ([]*tree, error) {
	if t.kind == null {
		return nil, nil
	}
	if t.kind != list {
		return nil, r.errorf(t, "this must be a list, it is %s", t.kind)
	}
	var out []*tree
	for _, i := range t.items {
		if i.kind == scalar && strings.HasPrefix(i.text, "@") {
			shared, ok := r.shared[i.text[1:]]
			if !ok {
				return nil, r.errorf(i, "x-patterns has no %q", i.text[1:])
			}
			out = append(out, shared.items...)
			continue
		}
		out = append(out, i)
	}
	return out, nil
}

func (r *ruleReader) listField(name string, to *[]string) field {
	return field{name, func(t *tree) error {
		items, err := r.expand(t)
		for _, i := range items {
			s, err := r.str(i, "each item of "+name)
			if err != nil {
				return err
			}
			*to = append(*to, s)
		}
		return err
	}}
}

// patternField compiles regular expressions. With start they match from the first byte, as
// Python's re.match does.
func (r *ruleReader) patternField(name string, start bool, to *[]*pattern) field {
	return field{name, func(t *tree) error {
		items, err := r.expand(t)
		if err != nil {
			return err
		}
		for _, i := range items {
			s, err := r.str(i, "each item of "+name)
			if err != nil {
				return err
			}
			p, err := compilePattern(s, start)
			if err != nil {
				return r.errorf(i, "cannot enforce the pattern %q: %w", s, err)
			}
			*to = append(*to, p)
		}
		return nil
	}}
}

var ruleID = lazy(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$`)

func (r *ruleReader) rules(t *tree) error {
	if t.kind != list {
		return r.errorf(t, "rules must be a list, this is %s", t.kind)
	}
	ids := map[string]*tree{}
	for _, item := range t.items {
		if id := item.get("id"); id != nil && id.kind == scalar {
			if at := ids[id.text]; at != nil {
				return r.errorf(id, "the rule %q is defined twice, first in line %d", id.text, at.line)
			}
			ids[id.text] = id
		}
		u, err := r.rule(item, len(r.file.rules))
		if err != nil {
			return err
		}
		r.file.rules = append(r.file.rules, u)
	}
	return nil
}

func (r *ruleReader) rule(item *tree, order int) (*rule, error) {
	u := &rule{at: tree{line: item.line, col: item.col}, source: r.name, order: order}
	err := r.fields(item, "a rule", []string{"id", "level", "risk_score", "reason", "match"},
		field{"id", func(t *tree) (err error) {
			if u.id, err = r.str(t, "id"); err == nil && !ruleID.MatchString(u.id) {
				return r.errorf(t, "%q is not an id: use letters, digits and . _ : / -, at most 200", u.id)
			}
			return err
		}},
		r.textField("legacy_rule", &u.legacy),
		field{"level", func(t *tree) error {
			s, err := r.str(t, "level")
			if err == nil && u.level.UnmarshalText([]byte(s)) != nil {
				return r.errorf(t, "there is no level %q: it is one of SAFE, CONFIRM, BLOCK", s)
			}
			return err
		}},
		field{"risk_score", func(t *tree) (err error) { u.risk, err = r.integer(t, "risk_score", 0, 100); return err }},
		r.textsField("capabilities", &u.capabilities),
		r.textField("reason", &u.reason),
		r.boolField("never_whitelist", &u.neverWhitelist),
		field{"match", func(t *tree) error { return r.matcher(t, &u.match) }},
		field{"examples", func(t *tree) error {
			return r.fields(t, "examples", nil,
				field{"match", func(t *tree) error { return r.examples(t, &u.should) }},
				field{"not_match", func(t *tree) error { return r.examples(t, &u.not) }})
		}},
	)
	for _, n := range u.capabilities {
		if c, ok := CapabilityByName(n); ok {
			u.known |= SetOf(c)
		}
	}
	if u.legacy == "" {
		u.legacy = strings.ToUpper(strings.NewReplacer(".", "_", "-", "_", "/", "_", ":", "_").Replace(u.id))
	}
	return u, err
}

// examples are texts, or mappings of command, profile and source.
func (r *ruleReader) examples(t *tree, to *[]example) error {
	if t.kind != list {
		return r.errorf(t, "examples must be a list, this is %s", t.kind)
	}
	for _, i := range t.items {
		e := example{at: tree{line: i.line, col: i.col}}
		if i.kind == scalar {
			e.text = i.text
			*to = append(*to, e)
			continue
		}
		var profile, origin string
		if err := r.fields(i, "an example", []string{"command"}, r.textField("command", &e.text),
			r.textField("profile", &profile), r.textField("source", &origin)); err != nil {
			return err
		}
		e.profile, e.origin = Profile(profile), Origin(origin)
		if profile != "" && !slices.Contains(Profiles, e.profile) {
			return r.errorf(i, "there is no profile %q", profile)
		}
		*to = append(*to, e)
	}
	return nil
}

func (r *ruleReader) matcher(t *tree, m *matcher) error {
	var capabilities, profiles, origins []string
	var capAt *tree
	err := r.fields(t, "match", nil,
		r.listField("command", &m.command),
		r.patternField("command_regex", true, &m.commandRegex),
		field{"argv", func(t *tree) error { return r.argv(t, &m.argv) }},
		r.listField("subcommand_any", &m.subcommandAny),
		r.listField("args_any", &m.argsAny),
		r.patternField("args_regex", true, &m.argsRegex),
		r.patternField("args_all_regex", true, &m.argsAllRegex),
		field{"args_values", func(t *tree) error { return r.argValues(t, &m.argsValues) }},
		r.listField("path_any", &m.pathAny),
		r.patternField("path_regex", true, &m.pathRegex),
		r.patternField("embedded_regex", false, &m.embeddedRegex),
		r.boolField("interactive", &m.interactive),
		r.boolField("parse_error", &m.parseError),
		r.boolField("empty", &m.empty),
		r.boolField("input_validation", &m.inputInvalid),
		r.boolField("llm_first_run", &m.llmFirstRun),
		field{"capability_any", func(t *tree) (err error) { capAt = t; capabilities, err = r.texts(t, "capability_any"); return err }},
		r.listField("host_any", &m.hostAny),
		r.listField("profile", &profiles),
		r.listField("source", &origins),
		r.listField("workspace", &m.workspace),
	)
	if err != nil {
		return err
	}
	for _, n := range capabilities {
		if area, ok := strings.CutSuffix(n, ".*"); ok {
			before := m.capabilityAny
			for c, info := range Capabilities {
				if strings.HasPrefix(info.Name, area+".") {
					m.capabilityAny |= 1 << c
				}
			}
			if m.capabilityAny == before {
				return r.errorf(capAt, "no capability begins with %q", area+".")
			}
			continue
		}
		c, err := r.capabilityNames(capAt, []string{n})
		if err != nil {
			return err
		}
		m.capabilityAny |= c
	}
	for _, p := range profiles {
		if !slices.Contains(Profiles, Profile(p)) {
			return r.errorf(t, "there is no profile %q: it is one of host, remote, workspace", p)
		}
		m.profile = append(m.profile, Profile(p))
	}
	for _, o := range origins {
		if o != string(User) && o != string(LLM) {
			return r.errorf(t, "there is no source %q: it is user or llm", o)
		}
		m.origin = append(m.origin, Origin(o))
	}
	for _, g := range slices.Concat(m.hostAny, m.workspace) {
		if _, err := path.Match(g, ""); err != nil {
			return r.errorf(t, "%q is not a pattern of names", g)
		}
	}
	m.shape = len(m.command)+len(m.commandRegex)+len(m.argv)+len(m.subcommandAny)+len(m.argsAny)+len(m.argsRegex)+
		len(m.argsAllRegex)+len(m.argsValues)+len(m.pathAny)+len(m.pathRegex) > 0 || m.capabilityAny != 0
	m.context = len(m.hostAny)+len(m.profile)+len(m.origin)+len(m.workspace) > 0
	structural := 0
	for _, b := range []bool{m.parseError, m.empty, m.inputInvalid} {
		if b {
			structural++
		}
	}
	switch {
	case !m.shape && !m.context && structural == 0 && !m.interactive && !m.llmFirstRun && len(m.embeddedRegex) == 0:
		return r.errorf(t, "the rule can never match: match names nothing")
	case structural > 1:
		return r.errorf(t, "the rule can never match: a command has at most one of parse_error, empty and input_validation")
	case structural == 1 && (m.shape || len(m.embeddedRegex) > 0 || m.interactive):
		return r.errorf(t, "the rule can never match: input that cannot be read has no words for the other keys")
	}
	return nil
}

func (r *ruleReader) argv(t *tree, to *[]argvPattern) error {
	items, err := r.expand(t)
	for _, i := range items {
		var p argvPattern
		err := r.fields(i, "an item of argv", nil,
			r.listField("prefix", &p.prefix),
			r.boolField("exact", &p.exact),
			field{"tokens", func(t *tree) error {
				items, err := r.expand(t)
				for _, i := range items {
					var k argvToken
					if err := r.fields(i, "an item of tokens", []string{"index"},
						field{"index", func(t *tree) (err error) { k.index, err = r.integer(t, "index", 0, 1<<16); return err }},
						r.listField("values", &k.values), r.patternField("regex", true, &k.regex)); err != nil {
						return err
					}
					if len(k.values)+len(k.regex) == 0 {
						return r.errorf(i, "a token needs values or regex")
					}
					if p.exact && k.index >= len(p.prefix) {
						return r.errorf(i, "the rule can never match: exact words end before index %d", k.index)
					}
					p.tokens = append(p.tokens, k)
				}
				return err
			}},
			field{"flag_values", func(t *tree) error {
				items, err := r.expand(t)
				for _, i := range items {
					k := flagValue{required: true, allowEquals: true, allowApart: true}
					if err := r.fields(i, "an item of flag_values", []string{"flag"},
						r.textField("flag", &k.flag), r.listField("values", &k.values), r.patternField("regex", true, &k.regex),
						r.boolField("required", &k.required), r.boolField("allow_equals", &k.allowEquals),
						r.boolField("allow_separate", &k.allowApart)); err != nil {
						return err
					}
					if k.flag == "" || !k.allowEquals && !k.allowApart {
						return r.errorf(i, "the rule can never match: a flag needs a name and one of allow_equals and allow_separate")
					}
					p.flags = append(p.flags, k)
				}
				return err
			}},
		)
		if err != nil {
			return err
		}
		if len(p.prefix)+len(p.tokens)+len(p.flags) == 0 {
			return r.errorf(i, "an item of argv needs prefix, tokens or flag_values")
		}
		if p.exact && len(p.prefix) == 0 {
			return r.errorf(i, "the rule can never match: exact without a prefix is a command without words")
		}
		*to = append(*to, p)
	}
	return err
}

func (r *ruleReader) argValues(t *tree, to *[]argValue) error {
	items, err := r.expand(t)
	for _, i := range items {
		var v argValue
		if err := r.fields(i, "an item of args_values", []string{"name"}, r.textField("name", &v.name),
			r.listField("values", &v.values), r.patternField("regex", true, &v.regex)); err != nil {
			return err
		}
		if v.name == "" || len(v.values)+len(v.regex) == 0 {
			return r.errorf(i, "an item of args_values needs a name, and values or regex")
		}
		*to = append(*to, v)
	}
	return err
}
