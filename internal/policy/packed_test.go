package policy //nolint:testpackage // what is packed is seen by no user of the package

import (
	"bytes"
	commandline "flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var repack = commandline.Bool("packed", false, "write builtin.bin anew from the YAML files")

// The packed form says what the files say.
func TestPacked(t *testing.T) {
	sources := append(builtinSources("commands"), builtinSources("rules")...)
	want, err := packSources(sources)
	if err != nil {
		t.Fatal(err)
	}
	if *repack {
		if err := os.WriteFile("builtin.bin", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want, []byte(packed)) {
		t.Fatal("builtin.bin is not what the files under commands and rules say; run go generate ./internal/policy")
	}
	for _, s := range sources {
		_, want, err := readTree(s)
		if err != nil {
			t.Fatal(err)
		}
		_, got, err := unpack(s.Name, maxLevels)
		if err != nil {
			t.Fatal(err)
		}
		if !same(got, want) {
			t.Errorf("%s reads otherwise when it is unpacked", s.Name)
		}
	}
}

func same(a, b *tree) bool {
	if a.kind != b.kind || a.text != b.text || a.quoted != b.quoted || a.line != b.line || a.col != b.col ||
		len(a.items) != len(b.items) || len(a.keys) != len(b.keys) || a.later != "" {
		return false
	}
	for i := range a.items {
		if !same(a.items[i], b.items[i]) || a.kind == mapping && !same(a.keys[i], b.keys[i]) {
			return false
		}
	}
	return true
}

// What is known of every built-in program can be read, though that is left for later, and
// is what reading the files gives.
func TestEveryProgramCompiles(t *testing.T) {
	late, err := builtinKnowledge()
	if err != nil {
		t.Fatal(err)
	}
	now, err := loadKnowledge(builtinSources("commands"))
	if err != nil {
		t.Fatal(err)
	}
	if len(late.programs) < 500 || len(late.programs) != len(now.programs) || len(late.families) != len(now.families) {
		t.Fatalf("%d programs and %d families, want %d and %d", len(late.programs), len(late.families), len(now.programs), len(now.families))
	}
	for name, p := range late.programs {
		if p.spec() == nil || p.spec().name != now.programs[name].spec().name {
			t.Errorf("%s is not what its file says", name)
		}
	}
	for i, f := range late.families {
		if f.program.spec() == nil || f.prefix != now.families[i].prefix {
			t.Errorf("the family %s is not what its file says", f.prefix)
		}
	}
}

// The examples of the built-in rules, which New leaves out where there is nothing else.
func TestBuiltinExamples(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, r := range e.rules {
		asked += len(r.should) + len(r.not)
	}
	if err := e.checkExamples([]*ruleFile{{rules: e.rules}}); err != nil {
		t.Error(err)
	}
	if asked < 20 {
		t.Errorf("only %d examples were found", asked)
	}
}

// A packed form that was cut or changed is refused and never read as something else than
// it is.
func TestPackedDamaged(t *testing.T) {
	whole := packed
	defer func() { packed = whole }()
	for _, n := range []int{0, 1, 10, len(whole) / 2, len(whole) - 1} {
		packed = whole[:n]
		bad := false
		for _, s := range append(builtinSources("commands"), builtinSources("rules")...) {
			if _, _, err := unpack(s.Name, maxLevels); err != nil {
				bad = true
			}
		}
		if !bad {
			t.Errorf("the first %d bytes are read as the whole", n)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	b, err := packSources([]Source{{Name: "a", Data: []byte("x: [1, {y: 'z'}]\nw: null\n")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b))
	f.Add("\x01\x01a\x02\x01\x01\x7f")
	f.Fuzz(func(t *testing.T, text string) {
		u := unpacker{text: text}
		u.number()
		u.take(u.number())
		got := u.node(maxLevels)
		if u.bad {
			return
		}
		again := unpacker{text: string(packTree(nil, got))}
		if b := again.node(maxLevels); again.bad || !same(got, b) {
			t.Errorf("read again as another: %s", cmp.Diff(got.text, b.text))
		}
	})
}
