package deps_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/deps"
)

const own = deps.Module + "/"

// privileged is what both processes with rights of their own may link.
var privileged = []deps.Rule{
	{own + "internal/base/id", "names are validated again on this side"},
	{own + "internal/base/fanout", "a member of the form of a task, in package workspace: it is pure"},
	{own + "internal/base/build", "says which release answers"},
	{own + "internal/base/errtext", "the text of an error"},
	{own + "internal/base/crashpoint", "empty calls where tests of another build end the process"},
	{own + "internal/spec/workspace", "limits, states and the report"},
	{own + "internal/spec/hostfiles", "the names that stay read-only in project mounts"},
	{own + "internal/linux/thread", "a start gives up rights, or keeps some, on a thread of its own"},
	{own + "internal/wire/jsonrpc", "the protocol's framing"},
	{own + "internal/base/strictjson", "its decoder"},
	{own + "internal/linux/peercred", "who is at the other end"},
	{own + "internal/boundary/sandbox/oom", "the order in which the kernel ends processes"},
	{own + "internal/boundary/sandbox", "the first stage and the control table"},
	{own + "internal/boundary/sandbox/drop", "rights that are given up for good"},
	{own + "internal/boundary/sandbox/seccomp", "the system call filter"},
	{own + "internal/boundary/sandbox/selfcheck", "what is tried inside"},
	{own + "internal/boundary/sandbox/netns", "the redirect and the sockets of the way out"},
	{"github.com/containerd/errdefs", "the kinds of error"},
	{"github.com/landlock-lsm/go-landlock/", "the Landlock rules"},
	{"kernel.org/pub/linux/libs/security/libcap/psx", "Landlock and capabilities on every thread"},
	{"golang.org/x/sys/unix", "system calls"},
}

// notWithRights are packages that a process with rights of its own must do without.
var notWithRights = []deps.Rule{
	{"net/http", "a privileged process speaks JSON-RPC on its own socket only"},
	{"net/rpc/", "a privileged process speaks JSON-RPC on its own socket only"},
	{"net/smtp", "no business of a privileged process"},
	{"crypto/tls", "nothing here leaves the machine"},
	{"crypto/x509", "nothing here leaves the machine"},
	{"text/template", "no templates, which call methods by name"},
	{"html/template", "no templates, which call methods by name"},
	{"encoding/gob", "outside input is JSON with known fields"},
	{"encoding/xml", "outside input is JSON with known fields"},
	{"archive/", "archives are unpacked as the workspace's own id"},
	{"compress/", "archives are unpacked as the workspace's own id"},
	{"database/sql/", "state is the daemon's; the ledger is a file"},
	{"go/", "no source is parsed"},
	{"plugin", "no code is loaded"},
	{"testing/", "no test code in the product"},
	{"expvar", "opens an HTTP handler"},
	{"os/user", "looks names up through the C library where there is one"},
	{"runtime/cgo", "no C code"},
	{"runtime/pprof", "nothing is served but the table"},
	{"regexp/", "names are checked by hand; a pattern is easily wrong"},
}

func load(t *testing.T) deps.Graph {
	t.Helper()
	g, err := deps.Load(t.Context(), deps.Module+"/...")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestPrivilegedBinaries(t *testing.T) {
	g := load(t)
	for _, b := range binaries {
		root := deps.Module + "/" + b.command
		if _, ok := g[root]; !ok {
			t.Errorf("%s is not there", root)
			continue
		}
		for _, bad := range g.Outside(root, b.allowed, b.forbidden) {
			t.Errorf("%s links %s", b.command, bad)
		}
		for _, idle := range g.Unused(root, b.allowed) {
			t.Errorf("%s does not link %s: take it off the list", b.command, idle)
		}
	}
}

func TestRooms(t *testing.T) {
	g := load(t)
	for _, bad := range g.Breaches(rows) {
		t.Error(bad)
	}
	for _, idle := range g.Idle(rows) {
		t.Errorf("the row %s is about no package: take it off the table", idle)
	}
	if by := g.Importers(own + "internal/daemon"); !slices.Equal(by, []string{own + "cmd/carreld"}) {
		t.Errorf("internal/daemon is imported by %v: only cmd/carreld may", by)
	}
}

// The command line and the SDK reach a daemon through the wire: nothing of the daemon
// is linked into them. The command line has the flow for "carrel run" without root, by
// package rootless alone, which is taken out here. It links the terms of package runtime
// too, as steps on hosts have them, and no runtime.
func TestClientsLinkNoServer(t *testing.T) {
	g := load(t)
	for _, root := range []string{"cmd/carrel-cli", "sdk/go"} {
		for path := range g.Linked(deps.Module + "/" + root) {
			if strings.HasPrefix(path, "modernc.org/") {
				t.Errorf("%s links %s: it opens no database, and would start half a millisecond later", root, path)
			}
		}
	}
	delete(g, own+"internal/rootless")
	for _, root := range []string{"cmd/carrel-cli", "sdk/go"} {
		linked := g.Linked(deps.Module + "/" + root)
		for _, p := range []string{
			"internal/gate", "internal/state/store", "internal/state/audit", "internal/boundary/runtime/namespace",
			"internal/boundary/broker", "internal/boundary/executor", "internal/daemon", "internal/surface/api",
		} {
			if _, ok := g[deps.Module+"/"+p]; !ok {
				t.Errorf("%s is not there", p)
			}
			if way, ok := linked[deps.Module+"/"+p]; ok {
				t.Errorf("%s links %s: %s", root, p, strings.Join(way, " → "))
			}
		}
	}
}

// notPure is what the pure packages may not look at.
var notPure = []deps.Rule{
	{"os/", "the machine"},
	{"net", "the network"},
	{"net/http", "the network"},
	{"net/url", "parse outside, pass the parts in"},
	{"syscall", "the machine"},
	{"golang.org/x/sys/", "the machine"},
	{"crypto/rand", "chance"},
	{"math/rand/", "chance"},
	{"log/", "a decision returns what there is to say"},
	{"runtime/", "the process"},
}

// pureLibraries are those that the pure packages may link.
var pureLibraries = []deps.Rule{
	{"github.com/containerd/errdefs", "the kinds of error"},
	{"mvdan.cc/sh/v3/syntax", "parses shell text, and neither runs nor expands it"},
	{"mvdan.cc/sh/v3/fileutil", "what syntax imports for the names of its dialects"},
	{"github.com/goccy/go-yaml/", "reads rules and command knowledge from bytes, with lines and columns"},
	{"golang.org/x/net/idna", "maps names to A-labels by its tables, and resolves nothing"},
	{"golang.org/x/text/", "what idna imports: normalization and the direction of scripts"},
}

// clocks are what package time offers beside its types.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "LoadLocation"}

func TestPure(t *testing.T) {
	g := load(t)
	for _, name := range pure {
		found := false
		for path, p := range g {
			if path != own+name && !strings.HasPrefix(path, own+name+"/") {
				continue
			}
			found = true
			for _, bad := range impure(t, p.Dir, p.GoFiles) {
				t.Errorf("%s: %s", path, bad)
			}
			for linked := range g.Linked(path) {
				if g[linked].Standard || strings.HasPrefix(linked, deps.Module) {
					continue
				}
				if _, ok := deps.Match(pureLibraries, linked); !ok {
					t.Errorf("%s links %s: not among the libraries of what is pure", path, linked)
				}
			}
		}
		if !found {
			t.Errorf("%s is not there", name)
		}
	}
}

// impure looks at what files import and which clock they ask.
func impure(t *testing.T, dir string, files []string) []string {
	t.Helper()
	var bad []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if r, hit := deps.Match(notPure, p); hit {
				bad = append(bad, name+" imports "+p+": "+r.Reason)
			}
			if p == "time" && imp.Name != nil {
				bad = append(bad, name+" imports time under another name")
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, s.Sel.Name) {
				bad = append(bad, name+" uses time."+s.Sel.Name+": take the time as an argument")
			}
			return true
		})
	}
	return bad
}

// TestNames holds the words that name nothing out of package names, and main short.
func TestNames(t *testing.T) {
	for p, pkg := range load(t) {
		if !strings.HasPrefix(p, deps.Module) {
			continue
		}
		switch base := path.Base(p); base {
		case "util", "utils", "common", "core", "manager", "types", "helpers", "misc":
			t.Errorf("%s: a package is named by what it is for, not %q", p, base)
		}
		if !strings.HasPrefix(p, deps.Module+"/cmd/") {
			continue
		}
		for _, f := range pkg.GoFiles {
			b, err := os.ReadFile(filepath.Join(pkg.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(b, []byte("\n")); n > 60 {
				t.Errorf("%s/%s has %d lines: main hands over within 60", p, f, n)
			}
		}
	}
}

// TestPlanted sees each of the checks above catch a violation.
func TestPlanted(t *testing.T) {
	t.Run("a forbidden package, three steps away", func(t *testing.T) {
		g := deps.Graph{
			"m/cmd":    {ImportPath: "m/cmd", Imports: []string{"m/a"}},
			"m/a":      {ImportPath: "m/a", Imports: []string{"strings", "m/b"}},
			"m/b":      {ImportPath: "m/b", Imports: []string{"net/http"}},
			"strings":  {ImportPath: "strings", Standard: true},
			"net/http": {ImportPath: "net/http", Standard: true},
		}
		want := []string{"net/http: no web (m/cmd → m/a → m/b → net/http)"}
		if got := g.Outside("m/cmd", []deps.Rule{{"m/", "ours"}}, []deps.Rule{{"net/http", "no web"}}); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		want = []string{"m/b: not on the list (m/cmd → m/a → m/b)"}
		if got := g.Outside("m/cmd", []deps.Rule{{"m/a", "ours"}}, nil); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := g.Unused("m/cmd", []deps.Rule{{"m/a", ""}, {"m/c", ""}}); !slices.Equal(got, []string{"m/c"}) {
			t.Errorf("got %q as rules without use", got)
		}
	})
	t.Run("a name that starts like an allowed one", func(t *testing.T) {
		g := deps.Graph{"m/cmd": {Imports: []string{"m/abc"}}, "m/abc": {}}
		if got := g.Outside("m/cmd", []deps.Rule{{"m/ab", "ours"}}, nil); len(got) != 1 {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the daemon, held to the list of the executor", func(t *testing.T) {
		g := load(t)
		got := strings.Join(g.Outside(deps.Module+"/cmd/carrel-cli", binaries[0].allowed, binaries[0].forbidden), "\n")
		for _, want := range []string{
			"net/http: ", "crypto/tls: ", "github.com/spf13/cobra: not on the list", own + "internal/cli: not on the list",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q was not caught in\n%s", want, got)
			}
		}
	})
	t.Run("each row", func(t *testing.T) {
		g := load(t)
		for _, r := range rows {
			var planted []string
			for _, to := range rows {
				if r.Level > 0 && to.Level >= r.Level && to.Path != r.Path {
					planted = append(planted, own+to.Path+"/planted")
				}
			}
			if r.Only != nil {
				planted = append(planted, own+"internal/planted")
			}
			for _, n := range r.Not {
				if strings.HasPrefix(n, "internal/") || strings.HasPrefix(n, "sdk") {
					n = own + n
				}
				planted = append(planted, strings.TrimSuffix(n, "/"))
			}
			if len(planted) == 0 && r.Level == 0 {
				t.Errorf("the row %s forbids nothing", r.Path)
			}
			for _, imp := range planted {
				one := deps.Graph{own + r.Path + "/planted": {Imports: []string{imp}}}
				if !slices.ContainsFunc(one.Breaches(rows), func(s string) bool { return strings.HasSuffix(s, ": "+r.Path+": "+r.Why) }) {
					t.Errorf("%s may import %s", r.Path, imp)
				}
			}
		}
		if got := (deps.Graph{own + "internal/handy": {}}).Breaches(rows); !slices.Equal(got, []string{"internal/handy stands in no room"}) {
			t.Errorf("got %q", got)
		}
		fine := deps.Graph{own + "internal/boundary/sandbox/launch": {Imports: []string{
			own + "internal/boundary/sandbox", own + "internal/spec/workspace", "os",
		}}}
		if got := fine.Breaches(rows); len(got) != 0 {
			t.Errorf("refused %q", got)
		}
		if got := g.Idle([]deps.Row{{Path: "internal/gone"}, {Path: "internal/gate"}}); !slices.Equal(got, []string{"internal/gone"}) {
			t.Errorf("idle are %q", got)
		}
		by := deps.Graph{
			own + "cmd/carreld":  {Imports: []string{own + "internal/daemon"}},
			own + "internal/cli": {Imports: []string{own + "internal/daemon"}},
		}.Importers(own + "internal/daemon")
		if len(by) != 2 {
			t.Errorf("an importer of daemon was overlooked: %v", by)
		}
	})
	t.Run("a decision that looks around", func(t *testing.T) {
		dir := t.TempDir()
		src := "package p\n\nimport (\n\t\"os\"\n\t\"net/netip\"\n\t\"time\"\n)\n\nvar _ netip.Addr\nvar _ = os.Args\nvar _ = time.Now()\nvar " +
			"_ time.Duration\n"
		if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		want := []string{"p.go imports os: the machine", "p.go uses time.Now: take the time as an argument"}
		if got := impure(t, dir, []string{"p.go"}); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
