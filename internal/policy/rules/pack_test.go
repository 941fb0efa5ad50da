package rules //nolint:testpackage // it writes what no user of the package sees

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// appendPack and the functions after it write what pack and unpacker read.
func appendPack(b []byte, entries ...[]byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)))
	end := 0
	for _, e := range entries {
		end += len(e)
		b = binary.LittleEndian.AppendUint32(b, uint32(end))
	}
	for _, e := range entries {
		b = append(b, e...)
	}
	return b
}

func appendNumbers(b []byte, numbers ...int) []byte {
	for _, n := range numbers {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

func appendText(b []byte, text string) []byte { return append(appendNumbers(b, len(text)), text...) }

func appendTree(b []byte, t *tree) []byte {
	head := int(t.kind)
	if t.quoted {
		head |= packedQuoted
	}
	b = appendNumbers(b, head, t.line, t.col)
	switch t.kind {
	case scalar:
		b = appendText(b, t.text)
	case list, mapping:
		in := appendNumbers(nil, len(t.items))
		for i, item := range t.items {
			if t.kind == mapping {
				in = appendTree(in, t.keys[i])
			}
			in = appendTree(in, item)
		}
		b = appendText(b, string(in))
	case null:
	}
	return b
}

// appendTable writes numbers under keys.
func appendTable(b []byte, numbers map[string][]int) []byte {
	keys := make([]string, 0, len(numbers))
	for k := range numbers {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	count := 4
	for count < 2*len(keys) {
		count *= 2
	}
	slots := make([]byte, 4*count)
	entries := [][]byte{slots}
	for _, k := range keys {
		at := int(hashKey(k)) & (count - 1)
		for binary.LittleEndian.Uint32(slots[4*at:]) != 0 {
			at = (at + 1) & (count - 1)
		}
		binary.LittleEndian.PutUint32(slots[4*at:], uint32(len(entries)))
		entries = append(entries, appendList(appendText(nil, k), numbers[k]))
	}
	return appendPack(b, entries...)
}

func appendList(b []byte, numbers []int) []byte {
	return appendNumbers(appendNumbers(b, len(numbers)), numbers...)
}

// builtinSources reads the files of a subject: commands, or rules.
func builtinSources(t *testing.T, subject string) []Source {
	t.Helper()
	dir := filepath.Join("..", subject)
	names, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no files below %s: %v", dir, err)
	}
	slices.Sort(names)
	var out []Source
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Source{Name: "builtin/" + subject + "/" + filepath.Base(n), Data: b})
	}
	return out
}

// packer collects the sections of builtin.bin.
type packer struct {
	digests, sources, programs, families, classes, variables, rules [][]byte
	tables                                                          [packSections]map[string][]int
	always                                                          []int
	anywhere                                                        []int
}

// packBuiltin is the content of builtin.bin.
func packBuiltin(t *testing.T) []byte {
	t.Helper()
	p := &packer{}
	for i := range p.tables {
		p.tables[i] = map[string][]int{}
	}
	type prefixed struct {
		prefix  string
		program int
	}
	var families []prefixed
	seen := map[string]bool{} // programs; the order of the files must not matter
	knowledge, ruleSources := builtinSources(t, "commands"), builtinSources(t, "rules")
	for _, s := range knowledge {
		from, top := p.source(t, s)
		c := &compiler{reader: &reader{name: s.Name}}
		for i, key := range maybe(top, "programs").keys {
			n := len(p.programs)
			if _, err := c.spec(top.get("programs").items[i], "a program", nil); err != nil {
				t.Fatal(err)
			}
			p.programs = append(p.programs, appendTree(appendTree(from, key), top.get("programs").items[i]))
			for _, name := range programNames(key) {
				if seen[name] {
					t.Fatalf("%s: the program %s is in another file too; keep one row", s.Name, name)
				}
				seen[name] = true
				if prefix, ok := strings.CutSuffix(name, "*"); ok && len(prefix) > 1 {
					families = append(families, prefixed{prefix, n})
				} else {
					p.tables[packNames][name] = []int{n}
				}
			}
		}
		for i, key := range maybe(top, "variables").keys {
			for name := range strings.FieldsSeq(key.text) {
				if p.tables[packVarNames][name] != nil {
					t.Fatalf("%s: the variable %s is in another file too; keep one row", s.Name, name)
				}
				p.tables[packVarNames][name] = []int{len(p.variables)}
			}
			p.variables = append(p.variables, appendTree(from, top.get("variables").items[i]))
		}
		for _, item := range maybe(top, "paths").items {
			class, err := c.pathClass(item)
			if err != nil {
				t.Fatal(err)
			}
			for i, pattern := range class.match {
				at := []int{len(p.classes), i}
				switch part, ending := pattern.key(); {
				case part != "":
					p.tables[packParts][part] = append(p.tables[packParts][part], at...)
				case ending != "":
					p.tables[packEndings][ending] = append(p.tables[packEndings][ending], at...)
				default:
					p.anywhere = append(p.anywhere, at...)
				}
			}
			p.classes = append(p.classes, appendTree(from, item))
		}
		only(t, s.Name, top, "version", "programs", "variables", "paths")
	}
	slices.SortFunc(families, func(a, b prefixed) int {
		return cmp.Or(len(b.prefix)-len(a.prefix), strings.Compare(a.prefix, b.prefix))
	})
	for _, f := range families {
		p.families = append(p.families, appendNumbers(appendText(nil, f.prefix), f.program))
	}
	var rules []*rule
	for _, s := range ruleSources {
		from, top := p.source(t, s)
		for _, item := range maybe(top, "rules").items {
			p.rules = append(p.rules, appendTree(from, item))
		}
		f, _, _, err := loadRules(s)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, f.rules...)
		only(t, s.Name, top, "version", "rules")
	}
	p.index(t, rules)
	for _, sources := range [][]Source{knowledge, ruleSources} {
		sum := sha256.New()
		for _, s := range sources {
			digestSource(sum, s.Name, s.Data)
		}
		p.digests = append(p.digests, []byte(hex.EncodeToString(sum.Sum(nil))))
	}
	return p.file()
}

// source notes a source; every entry begins with its number.
func (p *packer) source(t *testing.T, s Source) ([]byte, *tree) {
	t.Helper()
	_, top, err := readTree(s)
	if err != nil {
		t.Fatal(err)
	}
	p.sources = append(p.sources, []byte(s.Name))
	return slices.Clip(appendNumbers(nil, len(p.sources)-1)), top
}

// maybe is a value of a source that may not be there.
func maybe(top *tree, name string) *tree {
	if at := top.get(name); at != nil {
		return at
	}
	return &tree{kind: null}
}

// only fails if a source has keys that are not packed.
func only(t *testing.T, name string, top *tree, keys ...string) {
	t.Helper()
	for _, k := range top.keys {
		if !slices.Contains(keys, k.text) {
			t.Fatalf("%s: the key %q is not packed", name, k.text)
		}
	}
}

func (p *packer) index(t *testing.T, rules []*rule) {
	t.Helper()
	ids := map[string]bool{}
	for _, r := range rules {
		if ids[r.id] {
			t.Fatalf("the rule %s is built in twice", r.id)
		}
		ids[r.id] = true
	}
	ints := func(list []int32) []int {
		out := make([]int, len(list))
		for i, n := range list {
			out[i] = int(n)
		}
		return out
	}
	x := newIndex(rules)
	for k, l := range x.byProgram {
		p.tables[packByProgram][k] = ints(l)
	}
	for k, l := range x.byPair {
		p.tables[packByPair][k[0]+"\x00"+k[1]] = ints(l)
	}
	for k, l := range x.byWord {
		p.tables[packByWord][k] = ints(l)
	}
	for k, l := range x.byGram {
		p.tables[packByGram][string([]byte{byte(k >> 16), byte(k >> 8), byte(k)})] = ints(l)
	}
	for k, l := range x.byCap {
		if len(l) > 0 {
			p.tables[packByCap][string([]byte{byte(k)})] = ints(l)
		}
	}
	p.always = ints(x.always)
}

func (p *packer) file() []byte {
	sections := make([][]byte, packSections)
	for i, entries := range map[int][][]byte{
		packDigests: p.digests, packSources: p.sources, packPrograms: p.programs, packFamilies: p.families, packClasses: p.classes,
		packAnywhere: {appendList(nil, p.anywhere)}, packVariables: p.variables, packRules: p.rules, packAlways: {appendList(nil, p.always)},
	} {
		sections[i] = appendPack(nil, entries...)
	}
	for i := range sections {
		if sections[i] == nil {
			sections[i] = appendTable(nil, p.tables[i])
		}
	}
	return appendPack(nil, sections...)
}

// fromFiles makes the built-in policy from its files, without the packed form. It reads them
// backwards: their order must not matter.
func fromFiles(t *testing.T) *Engine {
	t.Helper()
	e := &Engine{k: newKnowledge(nil)}
	for _, s := range slices.Backward(builtinSources(t, "commands")) {
		r, top, err := readTree(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.k.add(r, top); err != nil {
			t.Fatal(err)
		}
	}
	e.k.sortFamilies()
	var files []*ruleFile
	for _, s := range builtinSources(t, "rules") {
		f, _, _, err := loadRules(s)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	e.merge(files)
	e.index = newIndex(e.rules)
	e.digest = fmt.Sprintf("of %d files", len(files))
	return e
}
