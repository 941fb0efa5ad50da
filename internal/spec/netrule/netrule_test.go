package netrule_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestReason(t *testing.T) {
	r := rules(t, netrule.Options{}, "allow example.org", "deny *.example.org", "allow 10.0.0.0/8:443", "ask example.net")
	for text, want := range map[string]string{
		"example.org:443":   "example.org:443 is allowed by the rule example.org",
		"x.example.org:443": "x.example.org:443 is not allowed: the rule *.example.org denies it",
		"example.com:443":   "example.com:443 is not allowed: no rule names it",
		"example.net:443":   "example.net:443 is not allowed yet: the rule example.net has a person asked",
		"8.8.8.8:443":       "8.8.8.8:443 is not allowed: no rule names it",
		"[fe80::1]:443": "[fe80::1]:443 is not allowed: no rule names it; fe80::1 is a link-local address (RFC 4291), which only a " +
			"rule with its address or network allows",
		"10.0.0.1:443": "10.0.0.1:443 is allowed by the rule 10.0.0.0/8:443",
		"169.254.169.254:443": "169.254.169.254:443 is not allowed: no rule names it; 169.254.169.254 is the metadata service of clouds " +
			"(link-local, RFC 3927), which only a rule with its address or network allows",
	} {
		tt := target(t, text)
		if got := r.Judge(tt).Reason(tt); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// rules makes Rules of lines "allow example.org".
func rules(t testing.TB, o netrule.Options, lines ...string) *netrule.Rules {
	t.Helper()
	r, err := netrule.New(parsed(t, lines...), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func target(t testing.TB, s string) netrule.Target {
	t.Helper()
	tt, err := netrule.ParseTarget(s)
	if err != nil {
		t.Fatal(err)
	}
	return tt
}
