package redact

import (
	"maps"
	"slices"
	"strings"
)

// Know sets the known values of a source, and replaces its earlier ones. Known values are redacted
// wherever they occur, also in the encodings that forms lists. Know returns how many are shorter
// than 6 bytes and are not searched for.
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

// With returns a Redactor for the texts of one command that also knows these values, and everything
// that r knows or will know. It returns r if all values are too short to be searched for.
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

// maxOwn bounds the secrets of one command that are searched for.
const maxOwn = 256

// SecretsOf returns the secrets in variables NAME=VALUE: values with the name of a secret, and
// secrets within other values, as the password in a URL.
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

// secretVariable is secretName for variables, whose whole name is known: a part of the name is
// enough. A path is no secret, and with a name that is only likely neither is a plain word or a
// number.
func secretVariable(name, value string) bool {
	plain := strings.ToLower(plainName(name))
	has := func(parts []string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(plain, p) })
	}
	switch {
	case maskAt(value) > 0, value[0] == '/' && !strings.ContainsAny(value, "+="),
		strings.HasPrefix(value, "./"), strings.HasPrefix(value, "~/"):
		return false
	case has(certain):
		return true
	case !has(likely):
		return false
	}
	return strings.Trim(value, "abcdefghijklmnopqrstuvwxyz-_.,:") != "" && strings.Trim(value, "0123456789.") != ""
}
