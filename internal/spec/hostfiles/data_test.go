package hostfiles_test

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

var update = flag.Bool("update", false, "write docs/hostfiles.md anew")

// The data has at least what it had, and each entry says why it is there.
func TestData(t *testing.T) {
	all := hostfiles.All()
	if len(all) < 150 {
		t.Errorf("%d entries are few", len(all))
	}
	for _, e := range all {
		if !strings.Contains(e.Source, "https://") && !strings.Contains(e.Source, "(") && !strings.HasPrefix(e.Source, "`") {
			t.Errorf("%s: the source %q is no address and no manual page", e.Pattern, e.Source)
		}
	}
	all[0].Pattern = "changed"
	if hostfiles.All()[0].Pattern == "changed" {
		t.Error("a caller can change the data")
	}
}

// What the processes with rights link is what the data says.
func TestProtected(t *testing.T) {
	want := map[string]hostfiles.TopName{}
	for _, e := range hostfiles.All() {
		if e.Act >= hostfiles.HeldPresent {
			// A name that is placed in homes is held everywhere: it costs nothing, and was so before.
			want[e.Pattern] = hostfiles.TopName{Name: e.Pattern, Absent: e.Absent, Home: e.Home && e.Act == hostfiles.HeldPresent}
		}
	}
	have := map[string]hostfiles.TopName{}
	for _, p := range hostfiles.Protected() {
		have[p.Name] = p
	}
	if len(have) != len(hostfiles.Protected()) {
		t.Error("a protected name stands twice")
	}
	for name := range maps.Keys(want) {
		if have[name] != want[name] {
			t.Errorf("protected.go has %+v, and names.txt %+v", have[name], want[name])
		}
	}
	for name := range maps.Keys(have) {
		if _, ok := want[name]; !ok {
			t.Errorf("protected.go has %s, which names.txt has not", name)
		}
	}
}

// The checks inside try the first names of a mount.
func TestOrderOfProtected(t *testing.T) {
	all := hostfiles.Protected()
	if all[0].Name != ".git" || all[1].Name != "HEAD" {
		t.Errorf("%s and %s come first, and not .git and HEAD", all[0].Name, all[1].Name)
	}
	kept := slices.IndexFunc(all, func(p hostfiles.TopName) bool { return p.Absent == hostfiles.Never })
	if slices.ContainsFunc(all[kept:], func(p hostfiles.TopName) bool { return p.Absent != hostfiles.Never }) {
		t.Error("names that are placed do not come first")
	}
}

// The document has the table as it is.
func TestDocument(t *testing.T) {
	path := "../../../docs/hostfiles.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const mark = "-->\n"
	head, table, ok := strings.Cut(string(b), mark)
	if !ok {
		t.Fatal("the mark before the table is gone")
	}
	if *update {
		if err := os.WriteFile(path, []byte(head+mark+hostfiles.Markdown()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != hostfiles.Markdown() {
		t.Errorf("%s has another table; run: go test ./internal/spec/hostfiles -run TestDocument -update", path)
	}
}
