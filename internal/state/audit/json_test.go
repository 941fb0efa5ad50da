package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

func TestCheckJSON(t *testing.T) {
	many := strings.Builder{}
	for i := range 200 {
		fmt.Fprintf(&many, `"name_%d":%d,`, i, i)
	}
	for _, c := range []struct {
		text         string
		valid, plain bool
	}{
		{`{"a_1":[-10.5e+3,{"A":1,"A":2}],"b" : {"A":{"":1}}}` + "\r\n\t ", true, true},
		{`{}`, true, true},
		{`[]`, true, true},
		{`7`, true, true},
		{`{"seq":1,"seq":2}`, true, false},
		{`{"seq":1,"Seq":2}`, true, false},
		{`{"s\u0065q":1}`, true, false},
		{`{"":1}`, true, false},
		{`{"a b":1}`, true, false},
		{`{"ä":1}`, true, false},
		{"{\"\xff\":1}", true, false},
		{"{" + many.String() + `"name_200":0}`, true, true},
		{"{" + many.String() + `"name_100":0}`, true, false},
		{`{"a":1}{"a":1}`, false, false},
		{`{"a":1,}`, false, false},
		{`{"a":01}`, false, false},
		{"{\"a\":\"\n\"}", false, false},
		{``, false, false},
		{strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), false, false},
	} {
		if valid, plain := audit.CheckJSON([]byte(c.text)); valid != c.valid || plain != c.plain {
			t.Errorf("%.80q: valid %v, plain %v", c.text, valid, plain)
		}
	}
}

// holdAsWritten reports whether asWritten accepts a line, and fails if it accepts one that is
// not valid and plain.
func holdAsWritten(t *testing.T, rest []byte) bool {
	t.Helper()
	line, ok := audit.AsWritten(rest)
	if valid, plain := audit.CheckJSON(line); ok && (!valid || !plain) {
		t.Fatalf("it is not valid and plain: %q", line)
	}
	return ok
}

// FuzzAsWritten compares asWritten with encoding/json.
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

// TestAsWrittenOnEveryByte puts every byte at every offset of a record with all kinds of value.
func TestAsWrittenOnEveryByte(t *testing.T) {
	text := []byte(`,"type":"t","intent":10,"error":"x\u00eF\n",` +
		`"data":{"seq":[1,{},[],true,false,null,0],"new_1":"long enough for words of eight","b":{"":[[{"c":""}]]}}}`)
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

// asWritten accepts what the log writes, whatever members a record has.
func TestRecordsAreAsWritten(t *testing.T) {
	raw := json.RawMessage(`{"a":["<\u003c\"",-1.5]}`)
	full := audit.Record{
		Trace: "0123456789abcdef0123456789abcdef", Type: audit.Denial, Principal: "token:0123456789ab",
		Owner: "uid:1", Workspace: "ws-2a97516c", Intent: 5,
		Action: json.RawMessage(
			`{"kind":"x","argv":["a","\u003c"]}`,
		), ActionDigest: "sha256:0", Policy: "SAFE", Decision: json.RawMessage(`{"reasons":[],"risk_score":0}`),
		Approval: "none", Isolation: "boundary=x", Status: audit.StatusOK, Error: "two\nlines \u00e4", ErrorKind: "internal",
		Data: json.RawMessage(`{"code":0,"idle":-1,"more":null}`),
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
