package netrule_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestBuiltInSets(t *testing.T) {
	sets := netrule.BuiltIn()
	if got := slices.Sorted(maps.Keys(sets)); !slices.Equal(got, []string{"bitbucket", "github", "gitlab", "huggingface", "llm"}) {
		t.Errorf("sets %q", got)
	}
	for name := range sets {
		for _, a := range []netrule.Action{netrule.Allow, netrule.Ask, netrule.Deny} {
			got, err := sets.Expand(a, "@"+name)
			if err != nil || len(got) == 0 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			for _, r := range got {
				if r.Action != a || r.Name == "" || !strings.HasPrefix(r.Text, "@"+name+": ") {
					t.Errorf("%s: %+v", name, r)
				}
			}
		}
	}
	set, err := sets.Expand(netrule.Allow, "@github")
	if err != nil {
		t.Fatal(err)
	}
	r, err := netrule.New(set, netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"github.com:443": "@github: github.com", "github.com:22": "@github: github.com:22",
		"raw.githubusercontent.com:443": "@github: *.githubusercontent.com",
		"github.com:9418":               "", "evil-github.com:443": "", "github.com.evil.example:443": "",
	} {
		if v := r.Judge(target(t, text)); v.Rule != want || (v.Action == netrule.Allow) != (want != "") {
			t.Errorf("%s: %+v", text, v)
		}
	}
	// Of a rule that stands in a set and alone, one is named whatever the order.
	alone := parsed(t, "allow github.com", "allow github.com:22")
	for _, all := range [][]netrule.Rule{slices.Concat(set, alone), slices.Concat(alone, set)} {
		if r, err = netrule.New(all, netrule.Options{}); err != nil {
			t.Fatal(err)
		}
		if v := r.Judge(target(t, "github.com:443")); v.Rule != "@github: github.com" {
			t.Errorf("%+v", v)
		}
	}
	// The caller's change stays the caller's.
	delete(sets, "llm")
	netrule.BuiltIn()["github"][0] = "evil.example"
	if again := netrule.BuiltIn(); again["llm"] == nil || again["github"][0] != "github.com" {
		t.Errorf("%q", again)
	}
}

func TestExpand(t *testing.T) {
	sets := netrule.Sets{"a": {"EXAMPLE.org", "10.0.0.0/8:22"}, "b": nil, "broken": {"127.1"}}
	got, err := sets.Expand(netrule.Deny, "@a")
	if err != nil || !slices.Equal(texts(got), []string{"deny @a: example.org", "deny @a: 10.0.0.0/8:22"}) {
		t.Errorf("%v, %v", got, err)
	}
	for text, is := range map[string]func(error) bool{
		"@c": errdefs.IsNotFound, "@": errdefs.IsNotFound, "@A": errdefs.IsNotFound, "@a ": errdefs.IsNotFound, "@a:443": errdefs.IsNotFound,
		"a": errdefs.IsInvalidArgument, "": errdefs.IsInvalidArgument, "@broken": errdefs.IsInvalidArgument,
	} {
		if got, err := sets.Expand(netrule.Allow, text); !is(err) || got != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := sets.Expand(netrule.Allow, "@c"); !strings.Contains(err.Error(), "there are @a, @b, @broken") {
		t.Error(err)
	}
	if _, err := netrule.Sets(nil).Expand(netrule.Allow, "@c"); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if _, err := sets.Expand("", "@a"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no action: %v", err)
	}
}

func TestParseSets(t *testing.T) {
	got, err := netrule.ParseSets("# words\n\na-1: example.org *.example.org:22\nb: 10.0.0.0/8")
	if err != nil || !maps.EqualFunc(got, netrule.Sets{"a-1": {"example.org", "*.example.org:22"}, "b": {"10.0.0.0/8"}}, slices.Equal) {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{
		"a", "a:", "a: ", ": example.org", "a:example.org", "a: example.org ", "a:  example.org", " a: example.org", "a: example.org\r\n",
		"A: example.org",
		"a b: example.org", "@a: example.org", "a: example.org\na: example.com", "a: example.org example.org", "a: Example.org",
		"a: example.org:80-80",
		"a: @b", "a: 127.1", "a: example.org\tb.example", "a: b.example # words", "\x00", "a_b: example.org",
	} {
		if got, err := netrule.ParseSets("#\n" + text); got != nil || !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "at line ") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
