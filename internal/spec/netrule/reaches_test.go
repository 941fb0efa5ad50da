package netrule_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestReaches(t *testing.T) {
	var all []netrule.Rule
	for _, text := range []string{
		"example.org", "git.example.org:22", "*.example.net:8000-8100", "10.1.0.0/16:5432", "!shut.example.net", "!half.example.net:8000-8050",
		"!full.example.net:8000-8099", "!full.example.net:8100-65535", "!10.1.2.0/24:*",
		"last.example:65535", "!*.last.example:*", "*.last.example",
	} {
		action := netrule.Allow
		if text[0] == '!' {
			action, text = netrule.Deny, text[1:]
		}
		r, err := netrule.ParseRule(action, text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	r, err := netrule.New(all, netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"example.org": true, "git.example.org": true, "www.example.org": false, "example.net": false, "a.example.net": true,
		"shut.example.net": false, "half.example.net": true, "full.example.net": false, "10.1.1.1": true, "10.1.2.1": false, "10.2.0.1": false,
		"last.example": true, "a.last.example": false, "evil.example": false, "93.184.215.14": false,
	} {
		h, err := netrule.ParseHost(host)
		if err != nil {
			t.Fatal(err)
		}
		reached := false
		for port := 1; port <= 65535; port++ {
			if r.Judge(netrule.Target{Host: h, Port: uint16(port)}).Action == netrule.Allow {
				reached = true
				break
			}
		}
		if got := r.Reaches(h); got != want || got != reached {
			t.Errorf("Reaches(%s) = %v; Judge allows a port: %v", host, got, reached)
		}
	}
	// A name that is asked about needs an address before it is known which port is wanted.
	for line, want := range map[string]bool{
		"ask example.org": true, "ask *:22": true, "approved example.org:9": true, "ask *.example.org": false,
	} {
		h, err := netrule.ParseHost("example.org")
		if err != nil {
			t.Fatal(err)
		}
		if got := rules(t, netrule.Options{}, line).Reaches(h); got != want {
			t.Errorf("%s: Reaches is %v", line, got)
		}
		if rules(t, netrule.Options{}, line, "deny example.org").Reaches(h) {
			t.Errorf("%s: what is denied is reached", line)
		}
	}
	if r.Reaches(netrule.Host{}) {
		t.Error("no host is reached")
	}
	some, err := netrule.ParseRule(netrule.Allow, "*:443")
	if err != nil {
		t.Fatal(err)
	}
	if r, err = netrule.New([]netrule.Rule{some}, netrule.Options{}); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"example.org": true, "8.8.4.4": true, "127.0.0.1": false} {
		if h, err := netrule.ParseHost(host); err != nil || r.Reaches(h) != want {
			t.Errorf("Reaches(%s) = %v, %v", host, !want, err)
		}
	}
}
