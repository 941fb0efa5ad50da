package rules_test

import (
	"slices"
	"testing"
)

// TestSpoken holds what the words of a program say that nobody knows, and that they say
// nothing else.
func TestSpoken(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		command string
		want    []string
	}{
		{"zzctl delete cluster prod", []string{"cluster.mutate", "program.unknown"}},
		{"zzctl cluster delete prod", []string{"cluster.mutate", "program.unknown"}},
		{"zzctl clusters list", []string{"program.unknown"}},
		{"zzctl get secret db", []string{"secret.read", "program.unknown"}},
		{"zzctl token list", []string{"program.unknown"}},
		{"zzctl api-key create", []string{"secret.read", "program.unknown"}},
		{"zzctl db:drop main", []string{"database.mutate", "program.unknown"}},
		{"zzctl restart", []string{"service.mutate", "program.unknown"}},
		{"zzctl --uninstall x", []string{"package.mutate", "program.unknown"}},
		{"zzctl issue create -m x", []string{"message.send", "program.unknown"}},
		{"zz-proxy 8080", []string{"network.listen", "program.unknown"}},
		{"zzctl a b c d delete cluster", []string{"program.unknown"}},
		{"zz delete.cluster", []string{"filesystem.read", "program.unknown"}},
		{"zzctl $verb cluster", []string{"program.unknown"}},
	} {
		if d := e.Decide(host(c.command)); !slices.Equal(sorted(d.Capabilities), sorted(c.want)) {
			t.Errorf("%s: %v, not %v", c.command, d.Capabilities, c.want)
		}
	}
	// What is known is not read for words that its table speaks of.
	d := e.Decide(host("kubectl create secret generic x"))
	if slices.Contains(d.Capabilities, "secret.read") || !slices.Contains(d.Capabilities, "cluster.mutate") {
		t.Errorf("kubectl create secret: %v", d.Capabilities)
	}
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }
