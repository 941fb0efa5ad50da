package conf_test

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The file asks as it allows and denies, sets included, and the texts of a caller join it.
func TestAskInTheFile(t *testing.T) {
	const text = "allow: ['*.example.org']\nask: ['@mine', b.example.org]\nsets: {mine: [a.example.org]}\n"
	c, err := conf.Parse("egress.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	more, err := c.Read(conf.Texts{
		Allow: []string{"c.example"}, Ask: []string{"*.example"}, Approved: []string{"d.example:443"}, Deny: []string{"e.example"},
	})
	if err != nil {
		t.Fatal(err)
	}
	judge, err := netrule.New(slices.Concat(c.Rules, more), netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]netrule.Verdict{
		"a.example.org:443": {Action: netrule.Ask, Rule: "@mine: a.example.org"},
		"b.example.org:80":  {Action: netrule.Ask, Rule: "b.example.org"},
		"x.example.org:443": {Action: netrule.Allow, Rule: "*.example.org"}, "c.example:443": {Action: netrule.Ask, Rule: "*.example"},
		"d.example:443": {Action: netrule.Allow, Rule: "d.example:443"}, "e.example:443": {Action: netrule.Deny, Rule: "e.example"},
	} {
		to, err := netrule.ParseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := judge.Judge(to); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	if _, err := conf.Parse("egress.yaml", []byte("ask: ['http://x', 'a.example']\n")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a rule that is none: %v", err)
	}
	if _, err := c.Read(conf.Texts{Ask: []string{"@nope"}}); !errdefs.IsNotFound(err) {
		t.Errorf("a set that is none: %v", err)
	}
}

// The rules of profiles are read with the file, sets and all, and hold for nobody by themselves.
func TestProfilesInTheFile(t *testing.T) {
	const text = "sets: {mine: [a.example]}\nprofiles:\n  chat: {allow: ['@mine'], ask: [b.example], deny: [c.example]}\n"
	c, err := conf.Parse("egress.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	chat := c.Profiles["chat"]
	if len(c.Rules) != 0 || len(c.Profiles) != 1 || !slices.Equal(chat.Allow, []string{"@mine"}) ||
		!slices.Equal(chat.Ask, []string{"b.example"}) || !slices.Equal(chat.Deny, []string{"c.example"}) {
		t.Errorf("%+v, %+v", c.Rules, c.Profiles)
	}
	for _, wrong := range []string{
		"chat: {allow: ['https://x']}", "chat: {allow: ['@nope']}", "chat: {approved: [a.example]}", "chat: [a.example]",
	} {
		if _, err := conf.Parse("egress.yaml", []byte("profiles:\n  "+wrong+"\n")); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}
