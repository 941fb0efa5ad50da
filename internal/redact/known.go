package redact

import (
	"maps"
	"slices"
	"strings"
)

// Know sets what is known from a source, which takes the place of what was known from it
// before: the values are replaced wherever they stand, also in the forms that forms lists. It
// returns how many are shorter than 6 bytes and are not looked for.
func (r *Redactor) Know(source string, values ...string) (short int) {
	if r == nil {
		return 0
	}
	k := r.known
	k.mu.Lock()
	defer k.mu.Unlock()
	var words []string
	for _, v := range values {
		if len(v) < leastKnown {
			short++
			continue
		}
		words = append(words, forms(v)...)
	}
	if k.from == nil {
		k.from = map[string][]string{}
	}
	k.from[source] = words
	k.index.Store(newIndex(slices.Concat(slices.Collect(maps.Values(k.from))...)))
	return short
}

// With returns a Redactor that knows these values as well, for as long as something is told
// of whom they belong to. What r learns later it knows too. It is r if none can be looked for.
func (r *Redactor) With(values []string) *Redactor {
	if r == nil {
		return nil
	}
	var words []string
	for _, v := range values {
		if len(v) >= leastKnown {
			words = append(words, forms(v)...)
		}
	}
	if len(words) == 0 {
		return r
	}
	return &Redactor{key: r.key, known: r.known, own: newIndex(words)}
}

// maxOwn bounds how many secrets of one command are looked for: more are no set of
// variables but a flood.
const maxOwn = 256

// SecretsOf returns what is secret among variables, NAME=VALUE: values whose name says so,
// and the secrets that stand in others, as the password in a URL.
func SecretsOf(env []string) (values []string) {
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || len(value) < leastKnown {
			continue
		}
		if secretVariable(name, value) {
			values = append(values, value)
		}
		for _, f := range scan(value, nil, nil) {
			values = append(values, value[f.from:f.to])
		}
		if len(values) >= maxOwn {
			return values[:maxOwn]
		}
	}
	return values
}

// secretVariable is secretName for variables, of which the whole name is at hand: one that is
// about a secret anywhere in it counts, and of the others a plain word, a number or a path is
// none.
func secretVariable(name, value string) bool {
	plain := strings.ToLower(plainName(name))
	has := func(parts []string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(plain, p) })
	}
	switch {
	case maskAt(value) > 0, value[0] == '/' && !strings.ContainsAny(value, "+="), strings.HasPrefix(value, "./"), strings.HasPrefix(value, "~/"):
		return false
	case has(certain):
		return true
	case !has(likely):
		return false
	}
	return strings.Trim(value, "abcdefghijklmnopqrstuvwxyz-_.,:") != "" && strings.Trim(value, "0123456789.") != ""
}
