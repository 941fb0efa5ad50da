package intercept_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestNew(t *testing.T) {
	authority, err := ca.Make("amber", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(*intercept.Secret)) []intercept.Secret {
		s := secret(t, "api.example.org")
		f(&s)
		return []intercept.Secret{s}
	}
	with := func(v string) []intercept.Secret {
		return change(func(s *intercept.Secret) { s.Value = redact.NewValue(v) })
	}
	deny, _ := netrule.ParseRule(netrule.Deny, "api.example.org")
	second := func(name, placeholder, value string) []intercept.Secret {
		s := secret(t, "api.example.org")
		s.Name, s.Placeholder, s.Value = name, placeholder, redact.NewValue(value)
		return []intercept.Secret{secret(t, "api.example.org"), s}
	}
	many := make([]intercept.Secret, intercept.MaxSecrets+1)
	for what, secrets := range map[string][]intercept.Secret{
		"CR": with("secret\rsecret"), "LF": with("secretsecret\n"), "NUL": with("secret\x00secret"), "DEL": with("secret\x7fsecret"),
		"short": with("shh-shh"), "long": with(strings.Repeat("s", intercept.MaxLength+1)), "space": with(" secretsecret"), "none": with(""),
		"no name":             change(func(s *intercept.Secret) { s.Name = "" }),
		"a name with a space": change(func(s *intercept.Secret) { s.Name = "a b" }),
		"a long name":         change(func(s *intercept.Secret) { s.Name = strings.Repeat("a", intercept.MaxName+1) }),
		"no placeholder":      change(func(s *intercept.Secret) { s.Placeholder = "" }),
		"short placeholder":   change(func(s *intercept.Secret) { s.Placeholder = "abc" }),
		"spaced placeholder":  change(func(s *intercept.Secret) { s.Placeholder = "place holder" }),
		"no host":             change(func(s *intercept.Secret) { s.Hosts = nil }),
		"every host":          change(func(s *intercept.Secret) { s.Hosts = rules(t, "*") }),
		"a network":           change(func(s *intercept.Secret) { s.Hosts = rules(t, "192.0.2.0/24") }),
		"deny":                change(func(s *intercept.Secret) { s.Hosts = []netrule.Rule{deny} }),
		"no rule":             change(func(s *intercept.Secret) { s.Hosts = []netrule.Rule{{Action: netrule.Allow}} }),
		"a header":            change(func(s *intercept.Secret) { s.Headers = []string{"X Key"} }),
		"an empty header":     change(func(s *intercept.Secret) { s.Headers = []string{""} }),
		"its own placeholder": with("x" + placeholder),
		"one name":            second("key", "another-placeholder", "another-value"),
		"one placeholder":     second("two", placeholder, "another-value"),
		"within":              second("two", placeholder[:10], "another-value"),
		"around":              second("two", placeholder+"x", "another-value"),
		"placeholder in value": second("two", "another-placeholder",
			"value with "+placeholder),
		"value in placeholder": second("two", value[:20], "another-value"),
		"many":                 many,
	} {
		i, err := intercept.New(intercept.Config{CA: authority, Secrets: secrets})
		if i != nil || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, s := range secrets {
			for _, shown := range []string{s.Value.Reveal(), s.Placeholder} {
				if len(shown) > 2 && strings.Contains(err.Error(), shown) {
					t.Errorf("%s: the error shows it: %v", what, err)
				}
			}
		}
	}
	if _, err := intercept.New(intercept.Config{Secrets: second("two", "another-placeholder",
		"another-value")}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without a CA: %v", err)
	}
	i, err := intercept.New(intercept.Config{CA: authority, Secrets: second("two", "another-placeholder", "another-value")})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"api.example.org:443": true, "api.example.org:80": true, "api.example.org:8443": false, "x.api.example.org:443": false,
	} {
		if i.Bound(targetOf(t, target)) != want {
			t.Errorf("Bound of %s is %v", target, !want)
		}
	}
	var none *intercept.Interceptor
	if none.Bound(targetOf(t, "api.example.org:443")) {
		t.Error("without an Interceptor something is bound")
	}
	if r := i.Serve(t.Context(), nothing{}, targetOf(t, "other.example.org:443"), intercept.Way{}); !strings.Contains(r.Refused,
		"no secret is bound") {
		t.Errorf("a host without a binding: %+v", r)
	}
}

type nothing struct{ conn }

func (nothing) Close() error { return nil }

func TestNewPlaceholder(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		s, err := intercept.NewPlaceholder("sk-ant-api03-", 108)
		if err != nil || len(s) != 108 || !strings.HasPrefix(s, "sk-ant-api03-") || seen[s] ||
			strings.ContainsFunc(s[13:], func(r rune) bool {
				return !strings.ContainsRune("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", r)
			}) {
			t.Fatalf("%q, %v", s, err)
		}
		seen[s] = true
	}
	for _, bad := range []struct {
		prefix string
		length int
	}{{"sk-", 10}, {"", 7}, {"", -1}, {"a b", 40}, {"\n", 40}, {"ü", 40}, {"", intercept.MaxLength + 1}} {
		if s, err := intercept.NewPlaceholder(bad.prefix, bad.length); s != "" || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q %d: %q, %v", bad.prefix, bad.length, s, err)
		}
	}
}

// A text in parts is replaced as a whole one, and no more is held back than the beginning of what is replaced.
func FuzzReplace(f *testing.F) {
	f.Add("abc", "x", "bcd", "long one", "ababcdbcabc", uint64(1))
	f.Add("aaa", "b", "aa", "", "aaaaaaaa", uint64(2))
	f.Add("a", "aa", "b", "a", "abab", uint64(3))
	f.Fuzz(func(t *testing.T, from1, to1, from2, to2, s string, seed uint64) {
		if from1 == "" || from2 == "" || strings.HasPrefix(from2, from1) || strings.HasPrefix(from1, from2) {
			t.Skip()
		}
		var r intercept.Replacer
		r.Add(from1, to1)
		r.Add(from2, to2)
		whole := r.Text(s)
		if want := strings.NewReplacer(from1, to1, from2, to2).Replace(s); whole != want {
			t.Fatalf("Text is %q, not %q", whole, want)
		}
		random := rand.New(rand.NewPCG(seed, 0))
		parts, held := r.Parts(s, func() int { return random.IntN(4) })
		if parts != whole || held >= max(len(from1), len(from2)) {
			t.Fatalf("in parts it is %q, not %q, with %d held", parts, whole, held)
		}
	})
}
