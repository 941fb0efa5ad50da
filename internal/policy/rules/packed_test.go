package rules //nolint:testpackage // what is packed is seen by no user of the package

import (
	"bytes"
	commandline "flag"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var repack = commandline.Bool("packed", false, "write builtin.bin anew from the YAML files")

// TestPacked holds that builtin.bin is packed from the files.
func TestPacked(t *testing.T) {
	want := packBuiltin(t)
	if *repack {
		if err := os.WriteFile("builtin.bin", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want, []byte(packed)) {
		t.Fatal("builtin.bin is not what the files under commands and rules say; run go generate ./internal/policy/rules")
	}
}

// What is known of everything that is built in can be read, though that is left for when
// it is asked for, and is found under its names.
func TestBuiltinReads(t *testing.T) {
	b, err := openBuiltin(packed)
	if err != nil {
		t.Fatal(err)
	}
	files := fromFiles(t)
	if len(files.k.programs) < 500 {
		t.Fatalf("only %d programs are known", len(files.k.programs))
	}
	for name, want := range files.k.programs {
		if got := b.program(name); got == nil || got.name != want.name || len(got.long) != len(want.long) || len(got.sub) != len(want.sub) {
			t.Errorf("%s is not what its file says", name)
		}
	}
	for _, f := range files.k.families {
		if got, prefix := b.family(f.prefix + "x"); got == nil || prefix != f.prefix || got.name != f.program.name {
			t.Errorf("the family %s is not what its file says", f.prefix)
		}
	}
	for name, want := range files.k.variables {
		if got := b.variable(name); got == nil || got.caps != want.caps {
			t.Errorf("the variable %s is not what its file says", name)
		}
	}
	for i, want := range files.k.paths.classes {
		if diff := cmp.Diff(want, b.class(i), cmp.AllowUnexported(pathClass{}, pathPattern{}, partPattern{})); diff != "" {
			t.Errorf("the class of paths %s is not what its file says: %s", want.name, diff)
		}
	}
	for i, want := range files.rules {
		if got := b.rule(i); got.id != want.id || got.level != want.level || got.match.capabilityAny != want.match.capabilityAny {
			t.Errorf("the rule %s is not what its file says", want.id)
		}
	}
	for _, none := range []string{"", "no-such-program", "mkf"} {
		if b.program(none) != nil {
			t.Errorf("%q is known", none)
		}
	}
}

// TestPackedDecides holds that the packed form and the files give the same decisions.
func TestPackedDecides(t *testing.T) {
	packed, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	files := fromFiles(t)
	asked := 0
	for _, r := range files.rules {
		for _, x := range append(r.should, r.not...) {
			for _, profile := range Profiles {
				q := Question{Command: x.text, Profile: profile, Source: LLM, Verified: true}
				asked++
				if diff := cmp.Diff(files.Decide(q), packed.Decide(q), cmpopts.IgnoreFields(Decision{}, "Policy")); diff != "" {
					t.Errorf("%q: %s", x.text, diff)
				}
			}
		}
	}
	for _, line := range []string{
		"cat /etc/shadow ~/.ssh/id_rsa", "cat *.pem", "rm -rf /e*c", "mkfs.ext4 /dev/sda1", "python3.11 -c 'x'", "LD_PRELOAD=/tmp/a.so ls",
		"find / -name x -exec rm {} +", "x86_64-linux-gnu-gcc -c a.c", "nothing-known --of it", "PATH=. ls; echo > /etc/profile.d/x.sh",
	} {
		q := Question{Command: line, Profile: Host, Source: User}
		asked++
		if diff := cmp.Diff(files.Decide(q), packed.Decide(q), cmpopts.IgnoreFields(Decision{}, "Policy")); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	}
	if asked < 60 {
		t.Errorf("only %d questions were asked", asked)
	}
}

// The examples of the built-in rules, which New leaves out where there is nothing else.
func TestBuiltinExamples(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := e.base.ruleFile()
	asked := 0
	for _, r := range f.rules {
		asked += len(r.should) + len(r.not)
	}
	if err := e.checkExamples([]*ruleFile{f}); err != nil {
		t.Error(err)
	}
	if asked < 20 {
		t.Errorf("only %d examples were found", asked)
	}
}

// A packed form that was cut is refused, or blocks: it is never taken to know nothing bad.
func TestPackedDamaged(t *testing.T) {
	for _, n := range []int{0, 1, 10, len(packed) / 2, len(packed) - 1} {
		b, err := openBuiltin(packed[:n])
		if err != nil {
			continue
		}
		e := &Engine{k: newKnowledge(b), base: b}
		func() {
			defer func() {
				if recover() != nil {
					e = nil
				}
			}()
			e.index = b.index()
		}()
		if e == nil {
			continue
		}
		if d := e.Decide(Question{Command: "rm -rf /", Profile: Host}); d.Level != Block {
			t.Errorf("of the first %d bytes: %s %v", n, d.Level, d.MatchedRules)
		}
	}
}

// A glob is taken for a secret where it names a part of it, and not for each that it could
// mean.
func TestGlobsOfSecrets(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for line, secret := range map[string]bool{
		"cat *.pe[m]": true, "cat *.k?y": true, "cat *key*": true, "cat ~/.ssh/id*": true, "cat ~/.s*/*": true, "cat id_*": true,
		"cat *rsa": true,
		"cat .e*":  true, "cat */.en*": true, "cat /e*/sh*w": true, "cat k*": true,
		"cat /var/log/syslog*": false, "grep x src/*-test": false, "wc -l foo* b*": false, "cat *.txt": false, "head *": false,
	} {
		d := e.Decide(Question{Command: line, Profile: Host, Source: User})
		if got := slices.Contains(d.Capabilities, "secret.read"); got != secret {
			t.Errorf("%q: %v", line, d.Capabilities)
		}
	}
}

func same(a, b *tree) bool {
	if a.kind != b.kind || a.text != b.text || a.quoted != b.quoted || a.line != b.line || a.col != b.col ||
		len(a.items) != len(b.items) || len(a.keys) != len(b.keys) {
		return false
	}
	for i := range a.items {
		if !same(a.items[i], b.items[i]) || a.kind == mapping && !same(a.keys[i], b.keys[i]) {
			return false
		}
	}
	return true
}

func FuzzUnpack(f *testing.F) {
	_, top, err := readTree(Source{Name: "a", Data: []byte("x: [1, {y: 'z'}]\nw: null\n")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(appendTree(nil, top)))
	f.Add("\x02\x01\x01\x7f")
	f.Fuzz(func(t *testing.T, text string) {
		u := unpacker{text: text}
		got := u.node()
		if u.bad {
			return
		}
		again := unpacker{text: string(appendTree(nil, got))}
		if b := again.node(); again.bad || !same(got, b) {
			t.Errorf("read again as another: %s", cmp.Diff(got.text, b.text))
		}
	})
}

// A table that is not as it was packed is read without harm.
func FuzzTable(f *testing.F) {
	f.Add(string(appendTable(nil, map[string][]int{"a": {1}, "bc": {2, 3}, "": {}})), "bc")
	f.Fuzz(func(t *testing.T, text, key string) {
		u, n := pack(text).find(key)
		for range min(n, 100) {
			u.number()
		}
		for i := range min(pack(text).size(), 100) {
			_ = pack(text).entry(i)
		}
	})
}
