package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

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

// holdAsWritten says whether a line takes the short way, which is open to none that is not
// valid and plain.
func holdAsWritten(t *testing.T, rest []byte) bool {
	t.Helper()
	line, ok := audit.AsWritten(rest)
	if ok && (!json.Valid(line) || !plainByReference(t, line)) {
		t.Fatalf("it is not valid and plain: %q", line)
	}
	return ok
}

// FuzzAsWritten holds the short way against encoding/json.
func FuzzAsWritten(f *testing.F) {
	for _, line := range makeChain(2) {
		f.Add(bytes.TrimSuffix(line[bytes.Index(line, []byte(`,"trace"`)):], []byte("\n")))
	}
	for _, s := range []string{
		`}`, `,"type":"x","data":{"seq":[1,{"a":null},[],{},""],"b":[true,false,0,12]}}`, `,"prev_hash":"again"}`, `,"data":1,"type":2,"data":3}`,
		`,"data":[{"a":{"a":[[["\u00e4\\\n"]]]}}]}`, `,"data":01}`, `,"data":1.5}`, `,"data":[1,]}`, `,"data":{"a":1,}}`, `,"data":]}`, `,}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, rest []byte) {
		if len(rest) <= audit.MaxRecord/2 {
			holdAsWritten(t, rest)
		}
	})
}

// TestAsWrittenOnEveryByte puts every byte in every place of a record that has a bit of all.
func TestAsWrittenOnEveryByte(t *testing.T) {
	text := []byte(`,"type":"t","intent":10,"error":"x\u00eF\n","data":{"seq":[1,{},[],true,false,null,0],"new_1":"long enough for words of eight","b":{"":[[{"c":""}]]}}}`)
	if !holdAsWritten(t, text) {
		t.Fatal("not taken")
	}
	for i := range text {
		holdAsWritten(t, text[:i])
		for c := range 256 {
			b := bytes.Clone(text)
			b[i] = byte(c)
			holdAsWritten(t, b)
			holdAsWritten(t, append(append(bytes.Clone(text[:i]), byte(c)), text[i:]...))
		}
	}
	for _, n := range []int{1, 61, 62, 63, 64, 65, 128} {
		if got, want := holdAsWritten(t, []byte(`,"data":`+strings.Repeat("[", n)+strings.Repeat("]", n)+"}")), n < 63; got != want {
			t.Errorf("%d levels: %v", n, got)
		}
	}
	for _, name := range []string{"hash", "prev_hash", "seq", "time", "type", "data", "error", "new", "trace"} {
		if holdAsWritten(t, append(bytes.Clone(text[:len(text)-1]), `,"`+name+`":0}`...)) {
			t.Errorf("%q is taken out of its order", name)
		}
	}
}

// What the log writes takes the short way, whatever a record has.
func TestRecordsAreAsWritten(t *testing.T) {
	raw := json.RawMessage(`{"a":["<\u003c\"",-1.5]}`)
	full := audit.Record{
		Trace: "0123456789abcdef0123456789abcdef", Type: audit.Denial, Principal: "token:0123456789ab", Owner: "uid:1", Workspace: "ws-2a97516c", Intent: 5,
		Action: json.RawMessage(`{"kind":"x","argv":["a","\u003c"]}`), ActionDigest: "sha256:0", Policy: "SAFE", Decision: json.RawMessage(`{"reasons":[],"risk_score":0}`),
		Approval: "none", Isolation: "boundary=x", Status: audit.StatusOK, Error: "two\nlines \u00e4", ErrorKind: "internal", Data: json.RawMessage(`{"code":0,"idle":-1,"more":null}`),
	}
	for _, c := range []struct {
		r     audit.Record
		short bool
	}{{full, true}, {audit.Record{Type: audit.Outcome}, true}, {audit.Record{Type: audit.Outcome, Data: raw}, false}} {
		line := audit.Line(c.r, audit.Genesis, 17, time.Unix(1, 0))
		rest := bytes.TrimSuffix(line[bytes.Index(line, []byte(`,"t`))+len(`,"time":"1970-01-01T00:00:01Z"`):], []byte("\n"))
		if got := holdAsWritten(t, rest); got != c.short {
			t.Errorf("%s: %v", rest, got)
		}
	}
}
