package strictjson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

type inner struct {
	Name string         `json:"name"`
	Size int64          `json:"size,omitempty"`
	Next *inner         `json:"next,omitempty"`
	More map[string]any `json:"more,omitempty"`
}

type embedded struct {
	Kind string `json:"kind"`
}

type outer struct {
	embedded
	Name  string           `json:"name"`
	On    bool             `json:"on"`
	In    inner            `json:"in"`
	List  []inner          `json:"list"`
	By    map[string]inner `json:"by"`
	Raw   json.RawMessage  `json:"raw,omitempty"`
	Any   any              `json:"any,omitempty"`
	Bytes []byte           `json:"bytes"`
	Count [2]int           `json:"count"`
	Plain int
	Not   int `json:"-"`
	own   int
}

// whole is a document with every kind of member at several depths.
const whole = ` {"kind":"k", "name" : "a\"b\\", "on":true,"in":{"name":"{","size":-1.5e3,"next":{"name":"}]","next":null}},
	"list":[ {"name":"x"} , {"name":"y","more":{"a":{"b":[1,{"c":2}]}}} ], "by":{"p":{"name":"1"},"q":{"name":"2","size":3}},
	"raw":{"r":[{"s":1}]}, "any":[{"t":{"u":false}}], "bytes":"AAEC", "count":[1 , 2],"Plain":4} `

func TestUnmarshal(t *testing.T) {
	text := strings.Replace(whole, "-1.5e3", "-1500", 1)
	var got, want outer
	if err := strictjson.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &want); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v, %v", got, want, err)
	}
	_ = got.own
	for _, text := range []string{"", "{", "{} {}", "[]", `{"name":1}`, `{"name":"a",}`} {
		if err := strictjson.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{`{"name":"a","name":"b"}`, `"name" is there twice`},
		{`{"name":"a","Name":"b"}`, `"Name" is spelled otherwise than "name"`},
		{`{"NAME":"b"}`, "spelled otherwise"},
		{`{"\u006eame":"b"}`, "spelled otherwise"},
		{`{"\u017fize":1}`, "unknown member"}, // outer has no size
		{`{"in":{"\u017fize":1}}`, "spelled otherwise"},
		{`{"in":{"ſize":1}}`, "spelled otherwise"},
		{`{"in":{"next":{"next":{"name":"","name":""}}}}`, "twice"},
		{`{"list":[{},{"x":1}]}`, `unknown member "x"`},
		{`{"by":{"p":{},"p":{}}}`, `"p" is there twice`},
		{`{"by":{"p":{},"\u0070":{}}}`, `"p" is there twice`},
		{`{"by":{"p":{"Size":1}}}`, "spelled otherwise"},
		{`{"raw":{"a":[{"b":1,"b":2}]}}`, "twice"},
		{`{"any":{"a":1,"a":1}}`, "twice"},
		{`{"in":{"more":{"a":{"b":1,"b":1}}}}`, "twice"},
		{`{"Not":1}`, "unknown member"},
		{`{"own":1}`, "unknown member"},
		{`{"-":1}`, "unknown member"},
		{`{"embedded":{}}`, "unknown member"},
		{`{"":1}`, "unknown member"},
		{`{"` + strings.Repeat("x", 10_000) + `":1}`, "unknown member"},
	} {
		var v outer
		err := strictjson.Unmarshal([]byte(c.text), &v)
		if err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 300 {
			t.Errorf("%.100s: got %v", c.text, err)
		}
		// A newer peer may say more, and that is all.
		err = strictjson.UnmarshalNewer([]byte(c.text), &v)
		if unknown := strings.HasPrefix(c.says, "unknown"); unknown != (err == nil) {
			t.Errorf("of a newer peer, %.100s: got %v", c.text, err)
		}
	}
	var v outer
	if err := strictjson.UnmarshalNewer([]byte(`{"new":{"a":[{"name":"x"}],"b":"\"}"},"name":"n"}`), &v); err != nil || v.Name != "n" {
		t.Errorf("got %+v, %v", v, err)
	}
}

// names returns where the names of text's objects begin and end, without their quotes, and where each
// object begins.
func names(text []byte) (found [][2]int, objects []int) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{':
			objects = append(objects, i)
		case '"':
			start := i + 1
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if rest := bytes.TrimLeft(text[i+1:], " \t\r\n"); len(rest) > 0 && rest[0] == ':' {
				found = append(found, [2]int{start, i})
			}
		}
	}
	return found, objects
}

func splice(text []byte, from, to int, by string) []byte {
	return append(append(bytes.Clone(text[:from]), by...), text[to:]...)
}

// FuzzNames takes a document that is accepted, and in it doubles each name, spells each otherwise and
// adds an unknown one to each object: none of these is accepted, whatever the document is.
func FuzzNames(f *testing.F) {
	f.Add([]byte(strings.Replace(whole, "-1.5e3", "-1500", 1)))
	f.Add([]byte(`{"in":{"name":"\u0041","next":{"next":{}}},"list":[]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var was outer
		if strictjson.Unmarshal(text, &was) != nil || bytes.TrimLeft(text, " \t\r\n")[0] != '{' {
			return
		}
		refused := func(what string, changed []byte) {
			t.Helper()
			var v outer
			if err := strictjson.Unmarshal(changed, &v); err == nil {
				t.Errorf("%s was accepted: %s", what, changed)
			}
		}
		found, objects := names(text)
		for _, n := range found {
			name := string(text[n[0]:n[1]])
			refused("a repeated name", splice(text, n[0]-1, n[0]-1, fmt.Sprintf(`"%s":null,`, name)))
		}
		// The members of a struct, whose names are known: those of the outermost object.
		var members map[string]json.RawMessage
		if err := json.Unmarshal(text, &members); err != nil {
			t.Fatal(err)
		}
		for name := range members {
			for i, r := range name {
				other := unicode.SimpleFold(r)
				if other == r {
					continue
				}
				changed, err := json.Marshal(map[string]json.RawMessage{name[:i] + string(other) + name[i+len(string(r)):]: members[name]})
				if err != nil {
					t.Fatal(err)
				}
				refused("another spelling", changed)
				refused("another spelling beside it", splice(text, bytes.IndexByte(text, '{')+1, bytes.IndexByte(text, '{')+1,
					string(bytes.Trim(changed, "{}"))+","))
			}
		}
		comma := ","
		if len(members) == 0 {
			comma = ""
		}
		refused("an unknown name", splice(text, objects[0]+1, objects[0]+1, `"unknown":1`+comma))
	})
}

func BenchmarkUnmarshal(b *testing.B) {
	type params struct {
		ID   string   `json:"id"`
		Argv []string `json:"argv"`
		Cwd  string   `json:"cwd,omitempty"`
		Wait bool     `json:"wait,omitempty"`
	}
	text := []byte(`{"id":"c-0123456789abcdef","argv":["/bin/true","a","b"],"cwd":"/","wait":true}`)
	for _, c := range []struct {
		name   string
		decode func([]byte, any) error
	}{
		{"strict", strictjson.Unmarshal},
		{"decoder", func(text []byte, v any) error {
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			return d.Decode(v)
		}},
		{"plain", json.Unmarshal},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var p params
				if err := c.decode(text, &p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
