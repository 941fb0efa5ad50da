package rules

import (
	"path"
	"slices"
	"strings"
)

// subject is what rules match: one segment and its question.
type subject struct {
	q       *Question
	profile Profile
	llm     bool
	s       *segment
	tokens  []string // the words, with the program by its known name
	whole   string   // the text of the question
	// paths are the candidates for path keys.
	paths  []string
	engine *Engine
}

// matches reports whether a rule matches the subject.
func (m *matcher) matches(u *subject) (bool, error) {
	if m.context && !m.inContext(u) {
		return false, nil
	}
	switch caps := u.s.caps; {
	case m.parseError:
		return caps.Has(ShellParse), nil
	case m.empty:
		return caps.Has(ShellEmpty), nil
	case m.inputInvalid:
		return caps.Has(InputInvalid), nil
	}
	if m.llmFirstRun && u.llm && !u.q.Seen {
		return true, nil
	}
	if m.interactive {
		// A policy's lists replace the knowledge.
		lists := &u.engine.interactive
		if lists.commands != nil && lists.is(u.tokens) || lists.commands == nil && u.s.caps.Has(TerminalInteractive) {
			return true, nil
		}
	}
	for _, p := range m.embeddedRegex {
		for _, text := range [...]string{u.whole, u.s.text, strings.Join(u.tokens, " ")} {
			if ok, err := p.match(text); ok || err != nil {
				return ok, err
			}
		}
	}
	if !m.shape {
		// Keys about place and author alone match every command.
		return m.context && !m.llmFirstRun && !m.interactive && len(m.embeddedRegex) == 0, nil
	}
	if m.capabilityAny != 0 && m.capabilityAny&u.s.caps == 0 {
		return false, nil
	}
	return m.words(u)
}

func (m *matcher) inContext(u *subject) bool {
	if len(m.profile) > 0 && !slices.Contains(m.profile, u.profile) {
		return false
	}
	if len(m.origin) > 0 && !slices.Contains(m.origin, originOf(u.llm)) {
		return false
	}
	if len(m.workspace) > 0 && !globAny(m.workspace, u.q.Workspace) {
		return false
	}
	return len(m.hostAny) == 0 || slices.ContainsFunc(u.q.Hosts, func(h string) bool { return globAny(m.hostAny, h) })
}

func originOf(llm bool) Origin {
	if llm {
		return LLM
	}
	return User
}

func globAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { ok, err := path.Match(g, name); return ok || err != nil })
}

func (m *matcher) words(u *subject) (bool, error) {
	only := len(m.command)+len(m.commandRegex)+len(m.argv)+len(m.subcommandAny)+len(m.argsAny)+len(m.argsRegex)+len(m.argsAllRegex)+
		len(m.argsValues)+len(m.pathAny)+len(m.pathRegex) == 0
	if only {
		return true, nil
	}
	if len(u.tokens) == 0 {
		if len(m.pathRegex)+len(m.pathAny) > 0 && len(m.command)+len(m.commandRegex)+len(m.argv)+len(m.subcommandAny)+len(m.argsAny)+
			len(m.argsRegex)+len(m.argsAllRegex)+len(m.argsValues) == 0 {
			return m.anyPath(u)
		}
		return false, nil
	}
	head, args := u.tokens[0], u.tokens[1:]
	if len(m.command)+len(m.commandRegex) > 0 && !slices.Contains(m.command, head) {
		if ok, err := anyPattern(m.commandRegex, head); !ok || err != nil {
			return false, err
		}
	}
	if len(m.argv) > 0 {
		found := false
		for i := range m.argv {
			ok, err := m.argv[i].matches(u.tokens)
			if err != nil {
				return false, err
			}
			found = found || ok
		}
		if !found {
			return false, nil
		}
	}
	if len(m.subcommandAny) > 0 && !slices.ContainsFunc(args, func(a string) bool { return slices.Contains(m.subcommandAny, a) }) {
		return false, nil
	}
	if len(m.argsAny) > 0 && !slices.ContainsFunc(args, func(a string) bool { return slices.Contains(m.argsAny, a) }) {
		return false, nil
	}
	if len(m.argsRegex) > 0 {
		if ok, err := anyOf(m.argsRegex, args); !ok || err != nil {
			return false, err
		}
	}
	for i := range m.argsAllRegex {
		if ok, err := anyOf(m.argsAllRegex[i:i+1], args); !ok || err != nil {
			return false, err
		}
	}
	for i := range m.argsValues {
		if ok, err := m.argsValues[i].matches(args); !ok || err != nil {
			return false, err
		}
	}
	return m.anyPath(u)
}

func (m *matcher) anyPath(u *subject) (bool, error) {
	if len(m.pathAny) > 0 && !slices.ContainsFunc(u.paths, func(p string) bool { return slices.Contains(m.pathAny, p) }) {
		return false, nil
	}
	if len(m.pathRegex) > 0 {
		return anyOf(m.pathRegex, u.paths)
	}
	return true, nil
}

func anyPattern(ps []*pattern, text string) (bool, error) {
	for _, p := range ps {
		if ok, err := p.match(text); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func anyOf(ps []*pattern, texts []string) (bool, error) {
	for _, t := range texts {
		if ok, err := anyPattern(ps, t); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (p *argvPattern) matches(tokens []string) (bool, error) {
	if len(p.prefix) > len(tokens) || !slices.Equal(p.prefix, tokens[:len(p.prefix)]) || p.exact && len(tokens) != len(p.prefix) {
		return false, nil
	}
	for i := range p.tokens {
		t := &p.tokens[i]
		if t.index >= len(tokens) {
			return false, nil
		}
		if slices.Contains(t.values, tokens[t.index]) {
			continue
		}
		if ok, err := anyPattern(t.regex, tokens[t.index]); !ok || err != nil {
			return false, err
		}
	}
	for i := range p.flags {
		if ok, err := p.flags[i].matches(tokens); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (f *flagValue) matches(tokens []string) (bool, error) {
	given := false
	for i, t := range tokens[min(1, len(tokens)):] {
		var value string
		switch {
		case f.allowEquals && len(t) > len(f.flag) && t[len(f.flag)] == '=' && t[:len(f.flag)] == f.flag:
			value = t[len(f.flag)+1:]
		case f.allowApart && t == f.flag && i+2 < len(tokens):
			value = tokens[i+2]
		default:
			continue
		}
		given = true
		if len(f.values)+len(f.regex) == 0 || slices.Contains(f.values, value) {
			return true, nil
		}
		if ok, err := anyPattern(f.regex, value); ok || err != nil {
			return ok, err
		}
	}
	return !given && !f.required, nil
}

func (v *argValue) matches(args []string) (bool, error) {
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !ok || name != v.name {
			continue
		}
		if slices.Contains(v.values, value) {
			return true, nil
		}
		if ok, err := anyPattern(v.regex, value); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// is reports whether words start a program that waits for a person.
func (l *interactiveLists) is(tokens []string) bool {
	if len(tokens) == 0 || !l.commands[tokens[0]] {
		return false
	}
	if tokens[0] == "ssh" {
		return false // the knowledge covers ssh
	}
	for _, t := range tokens[1:] {
		for _, f := range l.commandFlags[tokens[0]] {
			if strings.HasPrefix(t, f) || len(f) == 2 && len(t) > 1 && t[0] == '-' && strings.IndexByte(t[1:], f[1]) >= 0 {
				return false
			}
		}
		for _, f := range l.flags {
			if t == f || strings.HasPrefix(t, f+"=") {
				return false
			}
		}
	}
	return true
}
