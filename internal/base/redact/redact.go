// Package redact removes secrets from texts that are recorded, shown or logged: known values, and
// values with the shape or the name of a secret. A mask replaces a secret. It has the kind and a
// short keyed digest, which is equal for equal secrets:
//
//	[redacted:github:5d41402a]
//
// Its only state is the list of known values. It must not be relied on as a boundary: an unknown
// secret without a shape, where no name tells it, stays.
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

// Redactor replaces secrets. Its methods may be called from any goroutine. A nil Redactor changes
// nothing.
type Redactor struct {
	key []byte
	// known are the values that all texts are searched for, and own those that only this
	// Redactor's texts are searched for.
	known *known
	own   *index
}

// known are the known values by source.
type known struct {
	mu    sync.Mutex
	from  map[string][]string // in all their forms
	index atomic.Pointer[index]
}

// New returns a Redactor whose digests are made with key.
func New(key []byte) *Redactor { return &Redactor{key: slices.Clone(key), known: &known{}} }

// mask returns the replacement of a secret. Its characters need no escape in JSON or in a shell's
// double quotes.
func (r *Redactor) mask(kind, secret string) string {
	m := hmac.New(sha256.New, r.key)
	m.Write([]byte(secret))
	return masked + kind + ":" + hex.EncodeToString(m.Sum(nil)[:maskDigits/2]) + "]"
}

// masked is the beginning of every mask.
const masked = "[redacted:"

// span is a secret in a text.
type span struct {
	from, to int
	kind     string
}

// Text replaces the secrets in s.
func (r *Redactor) Text(s string) string {
	if r == nil {
		return s
	}
	return r.replace(s, r.scan(s))
}

func (r *Redactor) scan(s string) []span {
	known := r.known.index.Load()
	if strings.Contains(s, escape) {
		return scanColoured(s, known, r.own)
	}
	return scan(s, known, r.own)
}

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

// Texts replaces the secrets in each text of list. It returns list itself if there are none.
func (r *Redactor) Texts(list []string) []string {
	return replaceEach(list, func(i int) string { return r.Text(list[i]) })
}

// replaceEach returns a copy of list with f(i) for each i, or list itself if all are equal.
func replaceEach(list []string, f func(i int) string) []string {
	out := list
	for i, s := range list {
		text := f(i)
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

// Argv replaces the secrets in a command line, also those that only the flag before them tells. It
// returns argv itself if there are none.
func (r *Redactor) Argv(argv []string) []string {
	if r == nil || len(argv) == 0 {
		return argv
	}
	return replaceEach(argv, func(i int) string { return r.replace(argv[i], r.arg(argv, i)) })
}

// arg finds the secrets in argv[i].
func (r *Redactor) arg(argv []string, i int) []span {
	a, program := argv[i], path.Base(argv[0])
	whole := func(from int) []span { return append(r.scan(a[:from]), span{from, len(a), "argument"}) }
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
	return r.scan(a)
}

// flagName returns the name of a long option without a value.
func flagName(s string) (string, bool) {
	name, ok := strings.CutPrefix(s, "--")
	if !ok {
		name, ok = strings.CutPrefix(s, "-")
		ok = ok && len(name) > 3 // -token, of programs with Go's flag package
	}
	return name, ok && name != "" && !strings.ContainsAny(name, "= ")
}

// JSON replaces the secrets in the strings of a JSON text. It returns raw itself if there are none or
// raw is not JSON. An array with the name "argv" is a command line.
func (r *Redactor) JSON(raw []byte) []byte {
	if r == nil || len(raw) == 0 {
		return raw
	}
	// The quick test does not work with escapes: a newline before a secret would be an "n".
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
		return raw // does not happen: v was decoded from JSON
	}
	return b
}

func (r *Redactor) value(name string, v any) (any, bool) {
	changed := false
	switch x := v.(type) {
	case string:
		s := r.Text(x)
		// For a member's name only certain counts: a "key" or "token" may be an identifier.
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
