package intercept_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// atPlaces is a secret whose placeholder is replaced at places of JSON.
func atPlaces(t testing.TB, v string, places ...string) intercept.Secret {
	s := secret(t, "api.example.org")
	s.Value, s.Sending = redact.NewValue(v), httprule.Sending{Pointers: places}
	return s
}

var jsonTests = []struct{ places, in, want string }{
	{"/token", `{"token":"P"}`, `{"token":"V"}`},
	{"/token", ` { "a" : 1.5e3, "token" : "P" , "b":[true,null,{}] } `, ` { "a" : 1.5e3, "token" : "V" , "b":[true,null,{}] } `},
	{
		"/auth/token", `{"auth":{"x":{"token":"P"},"token":"P","y":"P"},"token":"P"}`,
		`{"auth":{"x":{"token":"P"},"token":"V","y":"P"},"token":"P"}`,
	},
	// Members of the same name are at the same place; no other gets it.
	{"/a/b", `{"a":{"b":"P"},"a":{"b":"P","c":"P","b":"P"},"b":"P"}`, `{"a":{"b":"V"},"a":{"b":"V","c":"P","b":"V"},"b":"P"}`},
	{"/a/b", `{"a":"P","a":["P"],"a":{"B":"P","b ":"P","b":["P"]}}`, `{"a":"P","a":["P"],"a":{"B":"P","b ":"P","b":["P"]}}`},
	{"/0", `["P","P"]`, `["V","P"]`},
	{"/2/k", `[{"k":"P"},[{"k":"P"}],{"k":"P"}]`, `[{"k":"P"},[{"k":"P"}],{"k":"V"}]`},
	{"/00", `["P"]`, `["P"]`},
	{"/0", `{"0":"P","00":"P"}`, `{"0":"V","00":"P"}`},
	{"/a~1b/~0", `{"a/b":{"~":"P"},"a":{"b":"P"}}`, `{"a/b":{"~":"V"},"a":{"b":"P"}}`},
	{"/", `{"":"P"}`, `{"":"V"}`},
	{"/token", `{"tok\u0065n":"P"}`, `{"tok\u0065n":"V"}`},
	{"/token", `{"token":"xP"}`, `{"token":"xP"}`},
	{"/token", `{"token":"P "}`, `{"token":"P "}`},
	{"/token", `{"to\"ken":"P","token":"\"P"}`, `{"to\"ken":"P","token":"\"P"}`},
	{"/token", `"P"`, `"P"`},
	{"/token", `{"P":"P","token":{"P":"P"}}`, `{"P":"P","token":{"P":"P"}}`},
	{"/a /b", `{"a":"P","b":{"a":"P"},"c":"P"}`, `{"a":"V","b":{"a":"P"},"c":"P"}`},
	// What is no JSON passes as it is, from there on.
	{"/token", `token=P&token="P"`, `token=P&token="P"`},
	{"/token", `{token:"P"}`, `{token:"P"}`},
	{"/token", `{'token':"P"}`, `{'token':"P"}`},
	{"/token", `{"x":tru,"token":"P"}`, `{"x":tru,"token":"P"}`},
	{"/token", `{"x":01,"token":"P"}`, `{"x":01,"token":"P"}`},
	{"/token", `{"x":1}{"token":"P"}`, `{"x":1}{"token":"P"}`},
	{"/token", `{"x":1]{"token":"P"}`, `{"x":1]{"token":"P"}`},
	{"/token", `{/**/"token":"P"}`, `{/**/"token":"P"}`},
	{"/token", "\ufeff" + `{"token":"P"}`, "\ufeff" + `{"token":"P"}`},
	{"/token", `{,"token":"P"}`, `{,"token":"P"}`},
	{"/token", `{"token""P"}`, `{"token""P"}`},
	{"/token", "{\"a\":\"\n\",\"token\":\"P\"}", "{\"a\":\"\n\",\"token\":\"P\"}"},
	{"/token", `{"token":"P`, `{"token":"P`},
	{"/token", `{"token":"` + strings.Repeat("x", 100_000) + `P"}`, `{"token":"` + strings.Repeat("x", 100_000) + `P"}`},
	{"/" + strings.Repeat("k", 255), `{"` + strings.Repeat("k", 100_000) + `":"P"}`, `{"` + strings.Repeat("k", 100_000) + `":"P"}`},
	{"/token", strings.Repeat("[", 300) + strings.Repeat("]", 300), strings.Repeat("[", 300) + strings.Repeat("]", 300)},
	{
		"/b", `{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `,"b":"P"}`,
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `,"b":"V"}`,
	},
}

func TestSwapperOfJSON(t *testing.T) {
	for _, v := range []string{value, `quotes " and \`, "shorter!"} {
		escaped, _ := json.Marshal(v)
		for _, test := range jsonTests {
			in := strings.ReplaceAll(test.in, "P", placeholder)
			fill := strings.Repeat(" ", max(0, len(placeholder)+2-len(escaped)))
			want := strings.ReplaceAll(strings.ReplaceAll(test.want, "P", placeholder), `"V"`, string(escaped)+fill)
			for range 3 {
				got, used, held := intercept.SwapJSON(t, atPlaces(t, v, strings.Split(test.places, " ")...), in, func() int { return rand.IntN(20) })
				if got != want || used != strings.Contains(test.want, `"V"`) {
					t.Errorf("%s: %.200q is %.200q (used %t)", test.places, in, got, used)
				}
				if held > 20<<10 {
					t.Errorf("%.100q: %d bytes are held", in, held)
				}
			}
		}
	}
}

// The host gets a body of the right length, by both protocols, and what it repeats is masked.
func TestJSONBodies(t *testing.T) {
	for _, v := range []string{value, `quotes " and \ in a value that is long`} {
		for _, proto := range protos {
			for _, length := range []bool{true, false} {
				p := newPlace(t, []string{"api.example.org"}, atPlaces(t, v, "/auth/token", "/keys/1"))
				lengths := make(chan int64, 1)
				p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					lengths <- r.ContentLength
					var got struct {
						Auth struct{ Token, Other string }
						Keys []string
					}
					if err := json.Unmarshal(b, &got); err != nil || got.Auth.Token != v || got.Auth.Other != placeholder ||
						!slices.Equal(got.Keys, []string{placeholder, v}) {
						t.Errorf("the host got %s: %v", b, err)
					}
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write(b)
				}))
				in := strings.ReplaceAll(`{"auth":{"token":"P","other":"P"},"keys":["P","P"],"x":"`+strings.Repeat("y", 100_000)+`"}`, "P", placeholder)
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org/", strings.NewReader(in))
				r.Header.Set("Content-Type", "application/json; charset=UTF-8")
				if !length {
					r.ContentLength = -1
				}
				c := p.client(proto)
				status, body, err := do(c, r)
				escaped, _ := json.Marshal(v)
				if status != 200 || err != nil || strings.Contains(body, strings.Trim(string(escaped), `"`)) || strings.Count(body, placeholder) != 4 {
					t.Errorf("%d %.300q %v", status, body, err)
				}
				want := int64(-1)
				if length && v == value {
					want = int64(len(in))
				}
				if n := <-lengths; n != want {
					t.Errorf("%s %q: the length is %d, not %d", proto, v, n, want)
				}
				c.CloseIdleConnections()
				if r := p.next(); !slices.Equal(r.Secrets, []string{"key"}) {
					t.Errorf("the record is %+v", r)
				}
			}
		}
	}
}

// A body passes as it comes, but for a string at a named place that has not ended.
func TestJSONStreams(t *testing.T) {
	for _, proto := range protos {
		p := newPlace(t, []string{"api.example.org"}, atPlaces(t, value, "/token"))
		parts := make(chan string, 10)
		p.host("api.example.org:443", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for b := make([]byte, 4096); ; {
				n, err := r.Body.Read(b)
				parts <- string(b[:n])
				if err != nil {
					close(parts)
					return
				}
			}
		}))
		in, out := io.Pipe()
		done := make(chan error, 1)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org/", in)
		r.Header.Set("Content-Type", "application/json")
		c := p.client(proto)
		go func() {
			_, _, err := do(c, r)
			done <- err
		}()
		got := func(want string) {
			t.Helper()
			for all := ""; all != want; {
				if all += wait(t, parts, "part"); !strings.HasPrefix(want, all) {
					t.Fatalf("with %s the host got %q, not %q", proto, all, want)
				}
			}
		}
		for _, step := range []struct{ in, out string }{
			{`{"a":"first`, `{"a":"first`},
			{` part","token":"` + placeholder[:9], ` part","token":`},
			{placeholder[9:] + `"`, `"` + value + `"`},
			{`,"b":"` + placeholder + `"`, `,"b":"` + placeholder + `"`},
			{`}`, `}`},
		} {
			if _, err := io.WriteString(out, step.in); err != nil {
				t.Fatal(err)
			}
			got(step.out)
		}
		out.Close()
		if err := wait(t, done, "answer"); err != nil {
			t.Error(err)
		}
	}
}

// Other bodies, and those to where the secret is not for, pass as they are.
func TestJSONElsewhere(t *testing.T) {
	s := atPlaces(t, value, "/token")
	s.Sending.Paths = []string{"/v1/*"}
	p, host, other := newPlace(t, []string{"*.example.org"}, s), &seen{}, &seen{}
	p.host("api.example.org:443", host)
	p.host("other.example.org:443", other)
	in := `{"token":"` + placeholder + `"}`
	for _, test := range []struct{ url, kind, encoding string }{
		{"https://api.example.org/v2/x", "application/json", ""},
		{"https://api.example.org/v1/x", "text/plain", ""},
		{"https://api.example.org/v1/x", "", ""},
		{"https://api.example.org/v1/x", "application/x-ndjson", ""},
		{"https://api.example.org/v1/x", "application/json; charset=utf-16", ""},
		{"https://api.example.org/v1/x", "application/json", "gzip"},
		{"https://other.example.org/v1/x", "application/json", ""},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, test.url, strings.NewReader(in))
		if test.kind != "" {
			r.Header.Set("Content-Type", test.kind)
		}
		if test.encoding != "" {
			r.Header.Set("Content-Encoding", test.encoding)
		}
		if status, body, err := do(p.client("h2"), r); status != 200 || err != nil {
			t.Errorf("%+v: %d %q %v", test, status, body, err)
		}
		at := host
		if strings.Contains(test.url, "other") {
			at = other
		}
		if got, body := at.only(t); body != in || got.ContentLength != int64(len(in)) {
			t.Errorf("%+v: the host got %s", test, dump(got, body))
		}
	}
}

// FuzzJSON compares with encoding/json: what is valid differs only where the reference finds a place.
func FuzzJSON(f *testing.F) {
	for _, test := range jsonTests {
		f.Add([]byte(strings.ReplaceAll(test.in, "P", placeholder)), uint64(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := atPlaces(t, value, "/token", "/a/b", "/0", "/a/1/b")
		got, _, held := intercept.SwapJSON(t, s, string(in), func() int { return r.IntN(9) })
		if held > 20<<10 {
			t.Errorf("%d bytes are held", held)
		}
		if !json.Valid(in) {
			if back := strings.ReplaceAll(got, value, placeholder); len(got) != len(in) && back != string(in) {
				t.Errorf("%q is %q", in, got)
			}
			return
		}
		if !json.Valid([]byte(got)) {
			t.Fatalf("%q is %q", in, got)
		}
		// With each place's placeholder back, it is the same text to a reader, and nothing else has the value.
		want, err := reference(json.NewDecoder(bytes.NewReader(in)), "")
		if err != nil {
			t.Skip()
		}
		have, err := reference(json.NewDecoder(strings.NewReader(got)), "")
		if err != nil || len(have) != len(want) {
			t.Fatalf("%q is %q: %v", in, got, err)
		}
		for i, w := range want {
			at, text, _ := strings.Cut(w, " ")
			if slices.Contains([]string{"/token", "/a/b", "/0", "/a/1/b"}, at) && text == strconv.Quote(placeholder) {
				w = at + " " + strconv.Quote(value)
			}
			if have[i] != w {
				t.Errorf("%q: %s is %s", in, w, have[i])
			}
		}
	})
}

// reference lists the strings of a JSON text with their places.
func reference(d *json.Decoder, at string) (all []string, err error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case string:
		return []string{at + " " + strconv.Quote(v)}, nil
	case json.Delim:
		for n := 0; d.More(); n++ {
			name := strconv.Itoa(n)
			if v == '{' {
				key, err := d.Token()
				if err != nil {
					return nil, err
				}
				name = strings.NewReplacer("~", "~0", "/", "~1", " ", "~2").Replace(fmt.Sprint(key))
			}
			more, err := reference(d, at+"/"+name)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
		_, err = d.Token()
	}
	return all, err
}
