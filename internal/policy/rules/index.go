package rules

import (
	"slices"
	"strings"
)

// index finds the rules that may match a segment, so that the cost of a decision does not grow
// with the number of rules (benchmark "a typical line, 10000 user rules").
type index struct {
	// Each rule is listed under something it cannot match without.
	byProgram map[string][]int32
	byPair    map[[2]string][]int32 // program and another word
	byWord    map[string][]int32
	byCap     [64][]int32
	byGram    map[uint32][]int32
	always    []int32
}

// crowded is how many rules a program may have before they are indexed by another word.
const crowded = 24

func emptyIndex() *index {
	return &index{byProgram: map[string][]int32{}, byPair: map[[2]string][]int32{}, byWord: map[string][]int32{}, byGram: map[uint32][]int32{}}
}

func newIndex(rules []*rule) *index {
	x := emptyIndex()
	for i, r := range rules {
		x.add(&r.match, int32(i))
	}
	return x
}

func (x *index) add(m *matcher, i int32) {
	// Each of several alternative keys is indexed.
	if m.llmFirstRun || m.interactive || m.parseError || m.empty || m.inputInvalid || !m.shape && len(m.embeddedRegex) == 0 {
		x.always = append(x.always, i)
		return
	}
	if len(m.embeddedRegex) > 0 {
		lits := allLiterals(m.embeddedRegex)
		if lits == nil {
			x.always = append(x.always, i)
			return
		}
		x.grams(lits, i)
		if !m.shape {
			return
		}
	}
	words := slices.Concat(m.subcommandAny)
	if len(words) == 0 {
		words = m.argsAny
	}
	switch {
	case len(m.argv) > 0 && x.argv(m.argv, i):
	case len(m.command) > 0 && len(m.commandRegex) == 0:
		x.programs(m, m.command, words, i)
	case m.capabilityAny != 0:
		for c := range m.capabilityAny.All() {
			x.byCap[c] = append(x.byCap[c], i)
		}
	case len(words) > 0:
		for _, w := range words {
			x.byWord[w] = append(x.byWord[w], i)
		}
	case len(m.pathAny) > 0:
		for _, w := range m.pathAny {
			x.byWord[w] = append(x.byWord[w], i)
		}
	case len(m.commandRegex) > 0 && allLiterals(m.commandRegex) != nil:
		x.grams(allLiterals(m.commandRegex), i)
		for _, c := range m.command {
			x.byProgram[c] = append(x.byProgram[c], i)
		}
	case x.byPatterns(m, i):
	default:
		x.always = append(x.always, i)
	}
}

// byPatterns indexes the regular expressions of words and paths.
func (x *index) byPatterns(m *matcher, i int32) bool {
	for _, ps := range [][]*pattern{m.pathRegex, m.argsRegex} {
		if lits := allLiterals(ps); lits != nil {
			x.grams(lits, i)
			return true
		}
	}
	for _, p := range m.argsAllRegex {
		if p.literals != nil {
			x.grams(p.literals, i)
			return true
		}
	}
	for _, v := range m.argsValues {
		if len(v.name) >= 3 {
			x.grams([]string{v.name}, i)
			return true
		}
	}
	return false
}

func (x *index) programs(m *matcher, names, words []string, i int32) {
	for _, p := range names {
		if len(words) > 0 {
			for _, w := range words {
				k := [2]string{p, w}
				x.byPair[k] = append(x.byPair[k], i)
			}
			continue
		}
		if len(x.byProgram[p]) >= crowded && len(names) == 1 && (len(m.pathAny) > 0 || x.canPatterns(m)) {
			if len(m.pathAny) > 0 {
				for _, w := range m.pathAny {
					x.byWord[w] = append(x.byWord[w], i)
				}
			} else {
				x.byPatterns(m, i)
			}
			continue
		}
		x.byProgram[p] = append(x.byProgram[p], i)
	}
}

func (x *index) canPatterns(m *matcher) bool {
	for _, p := range m.argsAllRegex {
		if p.literals != nil {
			return true
		}
	}
	return allLiterals(m.pathRegex) != nil || allLiterals(m.argsRegex) != nil
}

// argv indexes the first words of patterns; it returns false if one has none.
func (x *index) argv(ps []argvPattern, i int32) bool {
	first := func(p *argvPattern) []string {
		if len(p.prefix) > 0 {
			return p.prefix[:1]
		}
		for _, t := range p.tokens {
			if t.index == 0 && len(t.regex) == 0 {
				return t.values
			}
		}
		return nil
	}
	for n := range ps {
		if first(&ps[n]) == nil {
			return false
		}
	}
	for n := range ps {
		p := &ps[n]
		if len(p.prefix) > 1 {
			k := [2]string{p.prefix[0], p.prefix[1]}
			x.byPair[k] = append(x.byPair[k], i)
			continue
		}
		for _, w := range first(p) {
			// A required flag or its values may be more selective.
			at := slices.IndexFunc(p.flags, func(f flagValue) bool { return f.required && len(f.flag) >= 3 })
			if len(x.byProgram[w]) < crowded || at < 0 {
				x.byProgram[w] = append(x.byProgram[w], i)
				continue
			}
			f := &p.flags[at]
			short := slices.ContainsFunc(f.values, func(v string) bool { return len(v) < 3 })
			if len(f.values) > 0 && len(f.regex) == 0 && !short {
				x.grams(f.values, i)
			} else {
				x.grams([]string{f.flag}, i)
			}
		}
	}
	return true
}

// allLiterals returns texts such that every match of a pattern contains one of them; nil if
// unknown.
func allLiterals(ps []*pattern) []string {
	var all []string
	for _, p := range ps {
		if p.literals == nil {
			return nil
		}
		all = append(all, p.literals...)
	}
	return all
}

// grams lists a rule under three bytes of each text, the three that fewest rules use.
func (x *index) grams(lits []string, i int32) {
	for _, l := range lits {
		best, n := uint32(0), -1
		for at := 0; at+3 <= len(l); at++ {
			g := gram(l[at:])
			if k := len(x.byGram[g]); n < 0 || k < n {
				best, n = g, k
			}
		}
		if at := x.byGram[best]; len(at) == 0 || at[len(at)-1] != i {
			x.byGram[best] = append(at, i)
		}
	}
}

func gram(s string) uint32 { return uint32(s[0])<<16 | uint32(s[1])<<8 | uint32(s[2]) }

// candidates collects rules that may match, each once and in order.
type candidates struct {
	seen []uint32
	mark uint32
	list []int32
}

func (c *candidates) reset(rules int) {
	if len(c.seen) < rules {
		c.seen = make([]uint32, rules)
	}
	if c.mark++; c.mark == 0 {
		clear(c.seen)
		c.mark = 1
	}
	c.list = c.list[:0]
}

func (c *candidates) take(rules []int32) {
	for _, i := range rules {
		if c.seen[i] != c.mark {
			c.seen[i] = c.mark
			c.list = append(c.list, i)
		}
	}
}

func (c *candidates) text(x *index, s string) {
	for i := 0; i+3 <= len(s); i++ {
		if rules, ok := x.byGram[gram(s[i:])]; ok {
			c.take(rules)
		}
	}
}

// find returns the rules that may match a subject.
func (x *index) find(u *subject, c *candidates, rules int) []int32 {
	c.reset(rules)
	c.take(x.always)
	for k := range u.s.caps.All() {
		c.take(x.byCap[k])
	}
	if len(u.tokens) > 0 {
		c.take(x.byProgram[u.tokens[0]])
		if len(x.byPair) > 0 || len(x.byWord) > 0 {
			for _, w := range u.tokens[1:] {
				c.take(x.byPair[[2]string{u.tokens[0], w}])
				c.take(x.byWord[w])
			}
		}
	}
	if len(x.byWord) > 0 {
		for _, p := range u.paths {
			c.take(x.byWord[p])
		}
	}
	if len(x.byGram) > 0 {
		// Most of these are substrings of the whole text, which is searched already.
		c.text(x, u.whole)
		for _, t := range [...][]string{{u.s.text}, u.tokens, u.paths} {
			for _, part := range t {
				if !strings.Contains(u.whole, part) {
					c.text(x, part)
				}
			}
		}
	}
	slices.Sort(c.list)
	return c.list
}
