package rules

import (
	"strings"
	"sync"
	"sync/atomic"
)

// builtin is the knowledge and the rules in the binary. It decodes each program, class of paths,
// variable and rule on first use; concurrent first uses may decode it twice, with the same
// result. A damaged entry panics, which Decide turns into BLOCK. A test decodes all of them.
type builtin struct {
	sections  [packSections]pack
	readers   []*reader
	programs  []atomic.Pointer[spec]
	classes   []atomic.Pointer[pathClass]
	variables []atomic.Pointer[variable]
	rules     []atomic.Pointer[rule]
	// endings caches the patterns that may match a path, by how many parts a short relative path
	// has (0: any path) and by its last byte (anyByte: any).
	endings [shortPath + 1][anyByte + 1]atomic.Pointer[[]globbed]
	// anywhere caches the patterns without a fixed part or ending, by the last byte of the path.
	anywhere [anyByte + 1]atomic.Pointer[[]globbed]
}

// globbed is one pattern of a class.
type globbed struct {
	class   *pathClass
	pattern *pathPattern
}

// builtIn opens the packed file once.
var builtIn = sync.OnceValues(func() (*builtin, error) { return openBuiltin(packed) })

func openBuiltin(text string) (*builtin, error) {
	b := &builtin{}
	file := pack(text)
	if file.size() != packSections {
		return nil, errPacked("the sections")
	}
	for i := range b.sections {
		if b.sections[i] = pack(file.entry(i)); len(b.sections[i]) < 4 {
			return nil, errPacked("the sections")
		}
	}
	if d := b.sections[packDigests]; d.size() != 2 || d.entry(0) == "" || d.entry(1) == "" {
		return nil, errPacked("the digests")
	}
	names := b.sections[packSources]
	for i := range names.size() {
		b.readers = append(b.readers, &reader{name: names.entry(i)})
	}
	b.programs = make([]atomic.Pointer[spec], b.sections[packPrograms].size())
	b.classes = make([]atomic.Pointer[pathClass], b.sections[packClasses].size())
	b.variables = make([]atomic.Pointer[variable], b.sections[packVariables].size())
	b.rules = make([]atomic.Pointer[rule], b.sections[packRules].size())
	return b, nil
}

// open starts to read an entry, which begins with the number of its source.
func (b *builtin) open(section, i int) (unpacker, *compiler) {
	u := unpacker{text: b.sections[section].entry(i)}
	from := u.number()
	if u.bad || from >= len(b.readers) {
		panic(errPacked("an entry"))
	}
	return u, &compiler{reader: b.readers[from]}
}

// once decodes an entry unless it is decoded already.
func once[T any](slots []atomic.Pointer[T], i int, read func() (*T, error)) *T {
	if i >= len(slots) {
		panic(errPacked("an entry that is not there"))
	}
	if got := slots[i].Load(); got != nil {
		return got
	}
	got, err := read()
	if err != nil {
		panic(err)
	}
	slots[i].Store(got)
	return got
}

// program returns the spec of a program, nil if there is none.
func (b *builtin) program(name string) *spec {
	u, n := b.sections[packNames].find(name)
	if n == 0 {
		return nil
	}
	return b.spec(u.number())
}

// family returns the spec of the longest prefix of name, and that prefix.
func (b *builtin) family(name string) (*spec, string) {
	p := b.sections[packFamilies]
	for i := range p.size() {
		u := unpacker{text: p.entry(i)}
		if prefix := u.take(u.number()); prefix != "" && len(prefix) <= len(name) && name[:len(prefix)] == prefix {
			return b.spec(u.number()), prefix
		}
	}
	return nil, ""
}

func (b *builtin) spec(i int) *spec {
	return once(b.programs, i, func() (*spec, error) {
		u, c := b.open(packPrograms, i)
		key, at := u.node(), u.node()
		names := programNames(key)
		if u.bad || len(names) == 0 {
			return nil, errPacked("a program")
		}
		return c.spec(at, names[0], nil)
	})
}

func (b *builtin) variable(name string) *variable {
	u, n := b.sections[packVarNames].find(name)
	if n == 0 {
		return nil
	}
	i := u.number()
	return once(b.variables, i, func() (*variable, error) {
		u, c := b.open(packVariables, i)
		at := u.node()
		if u.bad {
			return nil, errPacked("a variable")
		}
		return c.variable(at)
	})
}

func (b *builtin) class(i int) *pathClass {
	return once(b.classes, i, func() (*pathClass, error) {
		u, c := b.open(packClasses, i)
		at := u.node()
		if u.bad {
			return nil, errPacked("a class of paths")
		}
		return c.pathClass(at)
	})
}

// look tries the patterns that share a part or an ending with the path.
func (b *builtin) look(m *pathMatch) {
	if m.glob {
		for _, at := range *b.ending(m.short(), m.lastByte()) {
			m.try(at.class, at.pattern)
		}
		return
	}
	for _, part := range m.parts {
		u, n := b.sections[packParts].find(part.text)
		b.placed(m, &u, n)
	}
	if ext := m.ending(); ext != "" {
		u, n := b.sections[packEndings].find(ext)
		b.placed(m, &u, n)
	}
	for _, at := range *b.loose(m.lastByte()) {
		m.try(at.class, at.pattern)
	}
}

// loose returns the patterns without a fixed part or ending that may match a path with the last
// byte c.
func (b *builtin) loose(c int) *[]globbed {
	if got := b.anywhere[c].Load(); got != nil {
		return got
	}
	var list []globbed
	u := unpacker{text: b.sections[packAnywhere].entry(0)}
	for n := u.number(); n > 1; n -= 2 {
		class, i := b.class(u.number()), u.number()
		if u.bad || i >= len(class.match) {
			panic(errPacked("a pattern of paths"))
		}
		if p := &class.match[i]; c == anyByte || p.mayEnd(byte(c)) {
			list = append(list, globbed{class, p})
		}
	}
	b.anywhere[c].Store(&list)
	return &list
}

// ending returns the patterns that may match a path with the last byte c, in the order of their
// classes. It serves globs, whose parts are in no index. Patterns with more parts than a short
// relative path are left out.
func (b *builtin) ending(parts, c int) *[]globbed {
	if got := b.endings[parts][c].Load(); got != nil {
		return got
	}
	var list []globbed
	for i := range b.classes {
		class := b.class(i)
		for n := range class.match {
			p := &class.match[n]
			if (parts == 0 || p.floating && (p.deep || len(p.parts)-1 <= parts)) && (c == anyByte || p.mayEnd(byte(c))) {
				list = append(list, globbed{class, p})
			}
		}
	}
	b.endings[parts][c].Store(&list)
	return &list
}

// placed tries n/2 pairs of a class and the number of its pattern.
func (b *builtin) placed(m *pathMatch, u *unpacker, n int) {
	for ; n > 1; n -= 2 {
		c, i := b.class(u.number()), u.number()
		if u.bad || i >= len(c.match) {
			panic(errPacked("a pattern of paths"))
		}
		m.try(c, &c.match[i])
	}
}

func (b *builtin) rule(i int) *rule {
	return once(b.rules, i, func() (*rule, error) {
		u, c := b.open(packRules, i)
		at := u.node()
		if u.bad {
			return nil, errPacked("a rule")
		}
		r := &ruleReader{reader: c.reader}
		return r.rule(at, i)
	})
}

// index returns the index of the built-in rules.
func (b *builtin) index() *index {
	x := emptyIndex()
	b.postings(packByProgram, func(k string, l []int32) { x.byProgram[k] = l })
	b.postings(packByPair, func(k string, l []int32) { x.byPair[pairOf(k)] = l })
	b.postings(packByWord, func(k string, l []int32) { x.byWord[k] = l })
	b.postings(packByGram, func(k string, l []int32) { x.byGram[gram(k)] = l })
	b.postings(packByCap, func(k string, l []int32) { x.byCap[k[0]] = l })
	u := unpacker{text: b.sections[packAlways].entry(0)}
	x.always = u.numbers()
	return x
}

func (b *builtin) postings(section int, put func(string, []int32)) {
	p := b.sections[section]
	for i := 1; i < p.size(); i++ {
		u := unpacker{text: p.entry(i)}
		key := u.take(u.number())
		put(key, u.numbers())
	}
}

func (u *unpacker) numbers() []int32 {
	n := u.number()
	if n > len(u.text) {
		panic(errPacked("the index of rules"))
	}
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(u.number())
	}
	return list
}

// ruleFile decodes all built-in rules.
func (b *builtin) ruleFile() *ruleFile {
	f := &ruleFile{}
	for i := range b.rules {
		f.rules = append(f.rules, b.rule(i))
	}
	return f
}

func pairOf(key string) [2]string {
	program, word, _ := strings.Cut(key, "\x00")
	return [2]string{program, word}
}
