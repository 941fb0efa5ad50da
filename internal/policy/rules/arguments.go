package rules

import (
	"regexp"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// parsed is a command line, split into options and operands.
type parsed struct {
	flags    []flagUse
	operands []shell.Word
	after    []shell.Word // behind --
	more     int          // words that a role takes unparsed
	dashes   bool
	unknown  string // a flag that is not known
	led      bool   // one of those has a value that may be a program or a file
	doing    string // a flag that is not listed and does something by its name
	does     Set    // what it does
}

type flagUse struct {
	flag  *flag
	value shell.Word
	given bool
}

func (p *parsed) has(f *flag) bool {
	for i := range p.flags {
		if p.flags[i].flag == f {
			return true
		}
	}
	return false
}

// hasValue reports whether f is given and every use of it has a value that matches. Which use
// counts depends on the program.
func (p *parsed) hasValue(f *flag, pattern *regexp.Regexp) bool {
	found := false
	for i := range p.flags {
		if u := &p.flags[i]; u.flag == f {
			if found = pattern.MatchString(u.value.Text); !found {
				return false
			}
		}
	}
	return found
}

// asksHelp reports whether words are known subcommands followed by --help, for a program that
// then only prints help.
func (s *spec) asksHelp(words []shell.Word) bool {
	if !s.help || len(words) < 3 {
		return false
	}
	last := words[len(words)-1].Text
	if last != "--help" && last != "-h" && (last != "-help" || !s.single) {
		return false
	}
	at := s
	for _, w := range words[1 : len(words)-1] {
		if at = at.sub[w.Text]; at == nil || w.Dynamic || w.Glob {
			return false
		}
	}
	f := at.lookup(last)
	return f == nil || !f.value && f == at.lookup("--help")
}

// apply parses words as a spec says and adds what they mean.
func (j *judge) apply(s *segment, sp *spec, words []shell.Word) {
	p := j.room.take(len(words))
	sp, rest := j.parse(s, sp, words[1:], &p.parsed)
	p.more = len(rest)
	j.effects(s, sp, &p.parsed, rest)
	j.room.give(p)
}

// parse reads flags and operands and descends into subcommands. It returns the innermost spec and
// the words that a role takes unparsed.
func (j *judge) parse(s *segment, sp *spec, words []shell.Word, p *parsed) (*spec, []shell.Word) {
	s.addSet(sp.caps, "")
	if sp.plain {
		p.operands = append(p.operands, words...)
		return sp, nil
	}
	for i := 0; i < len(words); i++ {
		w := &words[i]
		t := w.Text
		switch {
		case t == "--":
			p.dashes = true
			if sp.after != nil {
				p.after = words[i+1:]
				return sp, nil
			}
			if sp.sub != nil {
				return j.descend(s, sp, words[i+1:], p)
			}
			if sp.operands.rest >= 0 && !sp.permute {
				for i++; i < len(words) && len(p.operands) < sp.operands.rest; i++ {
					p.operands = append(p.operands, words[i])
				}
				return sp, words[i:]
			}
			p.operands = append(p.operands, words[i+1:]...)
			return sp, nil
		case len(t) > 1 && (t[0] == '-' || t[0] == '+' && sp.lookupShort('+') == nil && sp.lookup(t) != nil):
			n, stop := j.flag(s, sp, words[i:], p)
			i += n
			if stop {
				p.operands = append(p.operands, words[i+1:]...)
				return sp, nil
			}
		case sp.sub != nil:
			return j.descend(s, sp, words[i:], p)
		case sp.operands.rest >= 0 && len(p.operands) >= sp.operands.rest && !sp.permute:
			return sp, words[i:]
		default:
			p.operands = append(p.operands, *w)
		}
	}
	if sp.sub != nil {
		if sp.bare != nil {
			s.addSet(sp.bare.caps, "")
			return sp.bare, nil
		}
	}
	return sp, nil
}

// descend parses the subcommand that words begin with.
func (j *judge) descend(s *segment, sp *spec, words []shell.Word, p *parsed) (*spec, []shell.Word) {
	if len(words) == 0 {
		return sp, nil
	}
	w := words[0]
	if w.Dynamic || w.Glob {
		s.add(ShellDynamic, w.Source)
		p.operands = append(p.operands, words...)
		return &spec{name: sp.name, parent: sp, operands: operands{star: -1, rest: -1}}, nil
	}
	sub := sp.sub[w.Text]
	if sub == nil && sp.abbrev && w.Text != "" {
		for _, n := range sp.subNames {
			if strings.HasPrefix(n, w.Text) {
				sub = sp.sub[n]
				break
			}
		}
	}
	if sub != nil {
		return j.parse(s, sub, words[1:], p)
	}
	if len(words) == 1 && (w.Text == "version" || w.Text == "help") {
		return &spec{name: sp.name, parent: sp, operands: operands{star: -1, rest: -1}}, nil
	}
	if sp.other != nil {
		return j.parse(s, sp.other, words, p)
	}
	s.add(ProgramUnknown, sp.name+" "+w.Text)
	return j.parse(s, &spec{name: sp.name, parent: sp, operands: operands{star: -1, rest: -1}}, words[1:], p)
}

// flag reads the option that words begin with and returns how many more words it takes.
func (j *judge) flag(s *segment, sp *spec, words []shell.Word, p *parsed) (int, bool) {
	w := words[0]
	use := func(f *flag, value shell.Word, attached bool) (int, bool) {
		u := flagUse{flag: f}
		n := 0
		switch {
		case attached:
			u.value, u.given = value, true
		case f.value && !f.optional && len(words) > 1:
			u.value, u.given, n = words[1], true, 1
		}
		p.flags = append(p.flags, u)
		return n, f.stop
	}
	name, value, attached := strings.Cut(w.Text, "=")
	long := strings.HasPrefix(name, "--") || sp.isSingle()
	if f := sp.lookup(name); f != nil && (long || len(w.Text) == 2) {
		return use(f, part(w, value), attached)
	}
	if long {
		found := sp.abbreviated(name)
		if strings.HasPrefix(name, "--") && len(found) > 0 && len(name) > 2 {
			// An abbreviation may stand for any of them, or be an option that the table does not
			// have. Judge the next word both as its value and as an operand.
			stop := false
			for _, f := range found {
				_, st := use(f, part(w, value), attached)
				stop = stop || st
			}
			unknown := p.unknown
			j.unlisted(s, sp, p, name, words, value, attached)
			p.unknown = unknown
			return 0, stop
		}
		if f, name := sp.attachedSingle(w.Text); f != nil {
			return use(f, part(w, w.Text[len(name):]), true)
		}
		j.unlisted(s, sp, p, name, words, value, attached)
		return 0, false
	}
	// Joined short options, the last one perhaps with its value.
	for i := 1; i < len(w.Text); i++ {
		f := sp.lookupShort(w.Text[i])
		if f == nil {
			p.unknown = "-" + w.Text[i:i+1]
			if w.Text[i] == 'o' && (i == 1 || i+1 == len(w.Text)) {
				j.unlisted(s, sp, p, p.unknown, words, w.Text[i+1:], i+1 < len(w.Text))
			}
			continue
		}
		if f.value && f.role.name == "digits" {
			// More options follow the digits.
			for i+1 < len(w.Text) && w.Text[i+1] >= '0' && w.Text[i+1] <= '9' {
				i++
			}
			use(f, shell.Word{}, false)
			continue
		}
		if f.value {
			if rest := w.Text[i+1:]; rest != "" {
				return use(f, part(w, strings.TrimPrefix(rest, "=")), true)
			}
			return use(f, shell.Word{}, false)
		}
		use(f, shell.Word{}, false)
		if f.stop {
			return 0, true
		}
	}
	return 0, false
}

func (s *spec) isSingle() bool {
	for at := s; at != nil; at = at.parent {
		if at.single {
			return true
		}
	}
	return false
}

// attachedSingle finds an option whose value follows its long name without a space
// (-I/usr/include, -Wl,…).
func (s *spec) attachedSingle(text string) (best *flag, name string) {
	for at := s; at != nil; at = at.parent {
		for n, f := range at.long {
			// A longer name is another option: --output-dir is not --output.
			if f.value && len(n) > len(name) && len(text) > len(n) && strings.HasPrefix(text, n) &&
				(!strings.HasPrefix(n, "--") || strings.IndexByte("-abcdefghijklmnopqrstuvwxyz", text[len(n)]) < 0) {
				best, name = f, n
			}
		}
	}
	return best, name
}

// part is a word that holds a piece of another.
func part(w shell.Word, text string) shell.Word {
	w.Text = text
	w.Dynamic = w.Dynamic && strings.ContainsAny(text, "$`")
	return w
}

// effects adds what the flags and operands mean.
func (j *judge) effects(s *segment, sp *spec, p *parsed, rest []shell.Word) {
	ops, roleOf := sp.operands, map[*flag]role(nil)
	if !sp.hasOps {
		for at := sp.parent; at != nil && !at.hasOps; at = at.parent {
			ops = at.operands
		}
	}
	for at := sp; at != nil; at = at.parent {
		for _, w := range at.when {
			if !w.holds(p) {
				continue
			}
			s.addSet(w.caps, "")
			s.drop(w.drop)
			if w.hasOps {
				ops = w.operands
			}
			for f, r := range w.roles {
				if roleOf == nil {
					roleOf = map[*flag]role{}
				}
				roleOf[f] = r
			}
		}
		if p.unknown != "" && at.strict || p.led && at.runsOthers() {
			s.add(ProgramUnknown, s.program+" "+p.unknown)
		}
	}
	if n := s.spec; n != nil && s.caps&^harmless == 0 && len(p.operands) > 0 && sp == n && sp.sub == nil && !sp.plain && sp.special == nil &&
		len(ops.list) == 1 && ops.list[0].role.name == "text" && ops.list[0].many && changes(p.operands[0].Text) && !takesNames[s.program] {
		s.add(ProgramUnknown, s.program+" "+p.operands[0].Text)
	}
	switch {
	case p.doing == "":
	case s.caps&^harmless == 0:
		s.add(ProgramUnknown, s.program+" "+p.doing)
		s.addSet(p.does, p.doing)
	default:
		s.addSet(p.does&SetOf(FilesystemWrite), p.doing)
	}
	skip := 0
	for i := range p.flags {
		u := &p.flags[i]
		if u.flag.skip {
			skip = 1
		}
		why := u.flag.name
		if u.given {
			why = u.value.Text
		}
		s.addSet(u.flag.caps, why)
		if u.given {
			r, ok := roleOf[u.flag]
			if !ok {
				r = u.flag.role
			}
			r.apply(j, s, []shell.Word{u.value})
		}
	}
	j.operandRoles(s, ops, skip, p, rest)
	if sp.after != nil && len(p.after) > 0 {
		s.addSet(sp.after.caps, "")
		sp.after.role.apply(j, s, p.after)
	}
	for at := sp; at != nil; at = at.parent {
		if at.special != nil {
			at.special(j, s, p, rest)
			break
		}
	}
}

// runsOthers reports whether an option of the program names a program or code to run. Then one that the row does not have, with what may
// be the name of one, may do so too.
func (s *spec) runsOthers() bool {
	for _, f := range s.long {
		if f.caps.Has(CodeExecute) || f.value && (f.role.name == "shell" || f.role.name == "program" || f.role.name == "command") {
			return true
		}
	}
	return false
}

// operandRoles gives each operand its role.
func (j *judge) operandRoles(s *segment, ops operands, skip int, p *parsed, rest []shell.Word) {
	pattern := ops.list[min(skip, len(ops.list)):]
	star := ops.star
	if star >= 0 {
		star -= skip
		if star < 0 { // the role with * comes first and stays
			pattern, star = ops.list, ops.star
		}
	}
	words := p.operands
	if ops.rest >= 0 {
		at := max(ops.rest-skip, 0)
		r := ops.list[ops.rest]
		all := rest
		if len(words) > at {
			all = append(append([]shell.Word{}, words[at:]...), rest...)
			words = words[:at]
		}
		if len(all) > 0 {
			s.addSet(r.caps, all[0].Text)
			r.role.apply(j, s, all)
		}
		pattern = pattern[:at]
	}
	tail := 0
	if star >= 0 {
		tail = len(pattern) - star - 1
	}
	for i := range words {
		var o operand
		switch {
		case star < 0:
			if i >= len(pattern) {
				continue
			}
			o = pattern[i]
		case i < star && i < len(words)-tail:
			o = pattern[i]
		case i >= len(words)-tail && i > 0 || star == 0 && i >= len(words)-tail && len(words) > tail:
			o = pattern[len(pattern)-(len(words)-i)]
		default:
			o = pattern[star]
		}
		s.addSet(o.caps, words[i].Text)
		if o.role.name == "read" && !words[i].Dynamic && strings.ContainsAny(words[i].Text, ";`") {
			s.add(CodeExecute, words[i].Text) // no name of a file, and the program may be a script that a shell reads
		}
		o.role.apply(j, s, words[i:i+1])
	}
}

// holds reports whether the condition is met.
func (c *condition) holds(p *parsed) bool {
	any := len(c.has) == 0
	for _, f := range c.has {
		any = any || p.has(f)
	}
	if !any {
		return false
	}
	for _, f := range c.all {
		if !p.has(f) {
			return false
		}
	}
	if slices.ContainsFunc(c.not, p.has) {
		return false
	}
	for f, pattern := range c.values {
		if !p.hasValue(f, pattern) {
			return false
		}
	}
	n := len(p.operands) + len(p.after) + p.more
	if n < c.min || c.max >= 0 && n > c.max {
		return false
	}
	if c.first != nil && (len(p.operands) == 0 || !c.first[p.operands[0].Text]) {
		return false
	}
	if c.firstPattern != nil && (len(p.operands) == 0 || !c.firstPattern.MatchString(p.operands[0].Text)) {
		return false
	}
	if c.secondPattern != nil && (len(p.operands) < 2 || !c.secondPattern.MatchString(p.operands[1].Text)) {
		return false
	}
	if c.anyPattern != nil {
		for i := range p.operands {
			if c.anyPattern.MatchString(p.operands[i].Text) {
				return true
			}
		}
		for i := range p.flags {
			if c.anyPattern.MatchString(p.flags[i].value.Text) {
				return true
			}
		}
		return false
	}
	return true
}
