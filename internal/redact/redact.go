// Package redact takes secrets out of what is recorded, shown or logged: values that it was
// told, and what has the shape of a secret. In the place of one stands what it was and a
// short digest with a key, by which two that are equal can be seen to be:
//
//	[redacted:github:5d41402a]
//
// It is pure but for the list of values that it was told, and must not be taken for a
// boundary: a secret without a shape, in a place that does not name it, stays.
package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Redactor replaces secrets. Its methods may be called from any goroutine. A nil one changes
// nothing.
type Redactor struct {
	key []byte
	// known is what everybody's texts are searched for, and own what those are for which this
	// one was made.
	known *known
	own   *index
}

// known are the values that a Redactor was told, by who told it.
type known struct {
	mu    sync.Mutex
	from  map[string][]string // all forms
	index atomic.Pointer[index]
}

// New returns a Redactor whose digests are made with key.
func New(key []byte) *Redactor { return &Redactor{key: slices.Clone(key), known: &known{}} }

// mask is what stands in the place of a secret. It consists of what needs no escape in JSON
// or a shell's double quotes.
func (r *Redactor) mask(kind, secret string) string {
	m := hmac.New(sha256.New, r.key)
	m.Write([]byte(secret))
	return masked + kind + ":" + hex.EncodeToString(m.Sum(nil)[:maskDigits/2]) + "]"
}

// masked begins what stands in the place of a secret.
const masked = "[redacted:"

// span is a secret in a text.
type span struct {
	from, to int
	kind     string
}

// Text replaces the secrets in s, which is returned as it is if it has none.
func (r *Redactor) Text(s string) string {
	if r == nil {
		return s
	}
	return r.replace(s, r.scan(s))
}

func (r *Redactor) scan(s string) []span { return scan(s, r.known.index.Load(), r.own) }

func (r *Redactor) replace(s string, found []span) string {
	if len(found) == 0 {
		return s
	}
	var b strings.Builder
	at := 0
	for _, f := range found {
		if f.from < at {
			continue
		}
		b.WriteString(s[at:f.from])
		b.WriteString(r.mask(f.kind, s[f.from:f.to]))
		at = f.to
	}
	b.WriteString(s[at:])
	return b.String()
}

// Texts replaces the secrets in each of list, which is returned as it is if there are none.
func (r *Redactor) Texts(list []string) []string {
	out := list
	for i, s := range list {
		text := r.Text(s)
		if text == s {
			continue
		}
		if &out[0] == &list[0] {
			out = slices.Clone(list)
		}
		out[i] = text
	}
	return out
}

// Argv replaces the secrets in a command line, those too whose place only the flag before
// them tells. The list is returned as it is if there are none.
func (r *Redactor) Argv(argv []string) []string {
	if r == nil {
		return argv
	}
	out := argv
	program := ""
	if len(argv) > 0 {
		program = path.Base(argv[0])
	}
	for i, a := range argv {
		text := r.arg(program, argv, i)
		if text == a {
			continue
		}
		if &out[0] == &argv[0] {
			out = slices.Clone(argv)
		}
		out[i] = text
	}
	return out
}

// arg replaces the secrets in one word.
func (r *Redactor) arg(program string, argv []string, i int) string {
	a := argv[i]
	whole := func(from int) string { return r.Text(a[:from]) + r.mask("argument", a[from:]) }
	if i > 0 {
		before := argv[i-1]
		if name, ok := flagName(before); ok && a != "" && !strings.HasPrefix(a, "-") && secretName(name, a) {
			return whole(0)
		}
	}
	for _, f := range flags {
		if f.program != program || i == 0 || len(a) == 0 {
			continue
		}
		if sub := onlyLogin[program]; sub != "" && !slices.Contains(argv[:i], sub) {
			continue
		}
		switch {
		case f.joined && len(a) > len(f.flag) && strings.HasPrefix(a, f.flag):
			return whole(len(f.flag))
		case f.joined || argv[i-1] != f.flag:
		case f.after == 0:
			return whole(0)
		default:
			if at := strings.IndexByte(a, f.after); at >= 0 && at+1 < len(a) {
				return whole(at + 1)
			}
		}
	}
	return r.Text(a)
}

// flagName is the name of a long option without a value.
func flagName(s string) (string, bool) {
	name, ok := strings.CutPrefix(s, "--")
	if !ok {
		name, ok = strings.CutPrefix(s, "-")
		ok = ok && len(name) > 3 // as -token of programs with the flags of Go
	}
	return name, ok && name != "" && !strings.ContainsAny(name, "= ")
}

// JSON replaces the secrets in the strings of a JSON text, which is returned as it is if it
// has none, or is no JSON. An array under the name "argv" is a command line.
func (r *Redactor) JSON(raw []byte) []byte {
	if r == nil || len(raw) == 0 {
		return raw
	}
	// What is escaped has its edges elsewhere: a line's end is an "n" here.
	if bytes.IndexByte(raw, '\\') < 0 && !bytes.Contains(raw, []byte(`"argv"`)) && len(r.scan(string(raw))) == 0 {
		return raw
	}
	var v any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return raw
	}
	v, changed := r.value("", v)
	if !changed {
		return raw
	}
	b, err := json.Marshal(v)
	if err != nil {
		return raw // what was read can be written
	}
	return b
}

func (r *Redactor) value(name string, v any) (any, bool) {
	changed := false
	switch x := v.(type) {
	case string:
		s := r.Text(x)
		// Of what a program calls its fields only the plain words count: a "key" or "token" may
		// be a name.
		if s == x && x != "" && hasEnd(plainName(name), certain) && secretName(name, x) {
			s = r.mask("value", x)
		}
		return s, s != x
	case []any:
		var argv []string
		for i, e := range x {
			if s, ok := e.(string); ok && name == "argv" {
				argv = append(argv, s)
				continue
			}
			e, c := r.value("", e)
			x[i], changed = e, changed || c
		}
		if len(argv) == len(x) {
			for i, s := range r.Argv(argv) {
				changed = changed || s != argv[i]
				x[i] = s
			}
		}
	case map[string]any:
		for n, e := range x {
			e, c := r.value(n, e)
			x[n], changed = e, changed || c
		}
	}
	return v, changed
}
