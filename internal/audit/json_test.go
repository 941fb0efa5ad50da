package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/audit"
)

var plainName = regexp.MustCompile(`^[a-z0-9_]+$`)

// plainByReference reports with encoding/json whether the names of the outermost object
// in b, which is valid, are plain and each used once. A name with an escape is not plain,
// whatever it stands for.
func plainByReference(t *testing.T, b []byte) bool {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return true
	}
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		n, isText := name.(string)
		if !isText || !plainName.MatchString(n) || seen[n] || !bytes.HasSuffix(b[:d.InputOffset()], []byte(`"`+n+`"`)) {
			return false
		}
		seen[n] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

func holdAgainstReference(t *testing.T, b []byte) {
	t.Helper()
	valid, plain := audit.CheckJSON(b)
	if want := json.Valid(b); valid != want {
		t.Fatalf("valid is %v, encoding/json says %v of %q", valid, want, b)
	}
	if want := valid && plainByReference(t, b); plain != want {
		t.Fatalf("plain is %v, and should be %v of %q", plain, want, b)
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, line := range makeChain(2) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, b []byte) { holdAgainstReference(t, b) })
}

// TestCheckJSONOnEveryByte puts every byte in every place of a text that has a bit of all.
func TestCheckJSONOnEveryByte(t *testing.T) {
	text := []byte(`{"a_1":[-10.5e+3,0,true,false,null,"x\u00eF\n\\\" y",{}, [] ] ,"b" : {"A":{"":1}},"longer_name":"long enough for words of eight"}` + "\r\n\t ")
	if valid, plain := audit.CheckJSON(text); !valid || !plain {
		t.Fatal(valid, plain)
	}
	for i := range text {
		holdAgainstReference(t, text[:i])
		for c := range 256 {
			b := bytes.Clone(text)
			b[i] = byte(c)
			holdAgainstReference(t, b)
			holdAgainstReference(t, append(append(bytes.Clone(text[:i]), byte(c)), text[i:]...))
		}
	}
}

func TestCheckJSONOnNestingAndManyNames(t *testing.T) {
	for _, times := range []int{1, 63, 64, 65, 4_999, 5_000, 5_001, 9_999, 10_000, 10_001} {
		for _, pair := range []struct{ open, close string }{{"[", "]"}, {`{"n":`, "}"}, {`[{"n":`, "}]"}} {
			opened := strings.Repeat(pair.open, times) + "1"
			holdAgainstReference(t, []byte(opened+strings.Repeat(pair.close, times)))
			holdAgainstReference(t, []byte(opened+strings.Repeat(pair.close, times-1)+"x"))
		}
	}
	// More names than a record has, all of which must still be told apart.
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, `,"name_%d":%d`, i, i)
	}
	for _, more := range []string{"", `,"name_0":0`, `,"name_100":0`, `,"name_199":0`, `,"name_200":0`} {
		holdAgainstReference(t, []byte("{"+b.String()[1:]+more+"}"))
	}
}

// FuzzRecord holds what Verify looks at a line with first against encoding/json, behind
// every frame that parses.
func FuzzRecord(f *testing.F) {
	for _, line := range makeChain(2) {
		f.Add(bytes.TrimSuffix(line[bytes.Index(line, []byte(`,"trace"`)):], []byte("\n")))
	}
	f.Add([]byte(`}`))
	f.Add([]byte(`,"data":{"seq":[1,{"a":null}]},"type":"x","more":1,"mor":2}`))
	f.Add([]byte(`,"prev_hash":"again"}`))
	f.Add([]byte(`,"data":1,"type":2,"data":3}`))
	check := audit.CheckRecord()
	f.Fuzz(func(t *testing.T, rest []byte) {
		if len(rest) > audit.MaxRecord/2 {
			return
		}
		line, plain := check(rest)
		if want := json.Valid(line) && plainByReference(t, line); plain != want {
			t.Fatalf("plain is %v, and should be %v of %q", plain, want, line)
		}
	})
}

// TestRecordOnEveryByte is TestCheckJSONOnEveryByte for a record's line, in which names may
// stand twice, and out of their order.
func TestRecordOnEveryByte(t *testing.T) {
	check := audit.CheckRecord()
	hold := func(rest []byte) {
		t.Helper()
		line, plain := check(rest)
		if want := json.Valid(line) && plainByReference(t, line); plain != want {
			t.Fatalf("plain is %v, and should be %v of %q", plain, want, line)
		}
	}
	text := []byte(`,"error":"x\u00eF\n","type":"t","data":{"seq":[1,{}]},"new_1":-1.5e3,"new_2":"long enough for words of eight", "seq_":1}`)
	if _, plain := check(text); !plain {
		t.Fatal("not plain")
	}
	for i := range text {
		hold(text[:i])
		for c := range 256 {
			b := bytes.Clone(text)
			b[i] = byte(c)
			hold(b)
		}
	}
	for _, name := range []string{"hash", "prev_hash", "seq", "time", "type", "data", "error", "new_1", "new_2", "status", "new_3"} {
		hold(append(bytes.Clone(text[:len(text)-1]), `,"`+name+`":0}`...))
	}
}
