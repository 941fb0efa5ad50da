package shell //nolint:testpackage // what is read without the parser is seen by no user

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

// plainTexts are read without the parser, the others are not.
var plainTexts = []struct {
	src   string
	plain bool
}{
	{"ls", true},
	{" \tls  -la\t/srv ", true},
	{"grep -rn 'func main' --include='*.go' .", true},
	{`find . -name "*.py" -not -path './venv/*' | xargs wc -l | tail -1`, true},
	{"a && b | c || d | e && f", true},
	{"a '' \"\" x''y\"z\"w {} a-z* a=b ~ ~/x", true},
	{"echo if then time", true},
	{"", false},
	{"a |", false},
	{"| a", false},
	{"a | | b", false},
	{"a &&& b", false},
	{"a & b", false},
	{"a |& b", false},
	{"a ||| b", false},
	{"time ls", false},
	{"x=1 ls", false},
	{"x+=1 ls", false},
	{"a[1]=2", false},
	{"'ls' -l", false},
	{"l's'", false},
	{"if a", false},
	{"export a=b", false},
	{"! a", false},
	{"{ a", false},
	{"a > b", false},
	{"a; b", false},
	{"a b[c", false},
	{"a $b", false},
	{`a "$b"`, false},
	{"a 'b", false},
	{"a `b`", false},
	{"a \\b", false},
	{"a #b", false},
	{"a (b", false},
	{"a\nb", false},
	{"a\u00e9", false},
	{"a 'b\nc'", false},
}

// checkPlain holds what was read without the parser to what the parser reads.
func checkPlain(t *testing.T, r *plainReader, src string) bool {
	t.Helper()
	r.forget()
	got := r.read(src)
	if got == nil {
		return false
	}
	for _, d := range []Dialect{Bash, POSIX} {
		want, err := syntax.NewParser(syntax.Variant(d.variant())).Parse(strings.NewReader(src), "")
		if err != nil {
			t.Fatalf("%q is taken for plain, and the parser says: %v", src, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as another tree than the parser's", src)
		}
	}
	return true
}

func TestPlain(t *testing.T) {
	r := &plainReader{}
	for _, c := range plainTexts {
		if got := checkPlain(t, r, c.src); got != c.plain {
			t.Errorf("%q is plain: %t", c.src, got)
		}
	}
}

func FuzzPlain(f *testing.F) {
	for _, c := range plainTexts {
		f.Add(c.src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		r := &plainReader{}
		checkPlain(t, r, src)
	})
}

// TestPlainAtRandom holds texts of the characters that matter to the parser's reading.
func TestPlainAtRandom(t *testing.T) {
	alphabet := []string{
		"a", "b", "if", "time", "0", "-", ".", "/", "=", "*", "?", "{", "}", "~", "'", "'", `"`, `"`, " ", " ",
		" ", "\t", "|", "&", "&&", "||", "+", "@", ":", ",", "%", "!", "]",
	}
	random := rand.New(rand.NewPCG(1, 2))
	plain := 0
	r := &plainReader{}
	for range 100_000 {
		var src strings.Builder
		for range 1 + random.IntN(12) {
			src.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		if checkPlain(t, r, src.String()) {
			plain++
		}
	}
	if plain < 5_000 {
		t.Errorf("%d texts were plain", plain)
	}
}
