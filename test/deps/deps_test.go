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

const internal = deps.Module + "/internal/"

// tiers are those of docs/architecture.md. A new package needs a place here.
var tiers = []deps.Tier{
	{Name: "id", Level: 0},
	{Name: "redact", Level: 0},
	{Name: "fault", Level: 0},
	{Name: "build", Level: 0},
	{Name: "crashpoint", Level: 0},
	{Name: "token", Level: 0},
	{Name: "checkpoint", Level: 0},
	{Name: "foreign", Level: 0},
	{Name: "wholefile", Level: 0},
	{Name: "startup", Level: 0},
	{Name: "strictjson", Level: 0},
	{Name: "bucket", Level: 0},
	{Name: "turnstile", Level: 0},
	{Name: "room", Level: 0},
	{Name: "cells", Level: 0},
	{Name: "httprule", Level: 0},
	{Name: "tools", Level: 0},
	{Name: "fanout", Level: 0},
	{Name: "vitals", Level: 0},
	{Name: "words", Level: 0},

	{Name: "budget", Level: 1},
	{Name: "screen", Level: 1},
	{Name: "principal", Level: 1},
	{Name: "workspace", Level: 1},
	{Name: "shell", Level: 1},
	{Name: "netrule", Level: 1},
	{Name: "operation", Level: 1, With: []string{"principal", "workspace"}},
	{Name: "plan", Level: 1, With: []string{"operation"}},
	{Name: "approval", Level: 1, With: []string{"principal", "operation", "policy"}},
	{Name: "policy", Level: 1, With: []string{"shell"}},
	{Name: "runbooks", Level: 1, With: []string{"policy"}},

	{Name: "audit", Level: 2},
	{Name: "store", Level: 2},
	{Name: "archivestore", Level: 2},
	{Name: "secret", Level: 2},
	{Name: "memory", Level: 2},
	{Name: "seat", Level: 2},
	{Name: "sessions", Level: 2},
	{Name: "settings", Level: 2},
	{Name: "recommend", Level: 2},

	{Name: "permit", Level: 3},
	{Name: "record", Level: 3},
	{Name: "judge", Level: 3, With: []string{"record"}},
	{Name: "jsonrpc", Level: 3},
	{Name: "linerpc", Level: 3},
	{Name: "peercred", Level: 3},
	{Name: "pages", Level: 3},
	{Name: "cert", Level: 3},
	{Name: "pidfd", Level: 3},
	{Name: "pollfd", Level: 3},
	{Name: "portconn", Level: 3},
	{Name: "removal", Level: 3},
	{Name: "logfile", Level: 3},
	{Name: "relay", Level: 3, With: []string{"pollfd"}},
	{Name: "attend", Level: 3},
	{Name: "thread", Level: 3},
	{Name: "webhook", Level: 3},
	{Name: "llm", Level: 3},
	{Name: "proxy", Level: 3},
	{Name: "sealed", Level: 3},
	{Name: "execapi", Level: 3},
	{Name: "brokerapi", Level: 3},
	{Name: "egressapi", Level: 3},
	{Name: "egressapi/begin", Level: 2},
	{Name: "egressconf", Level: 3},
	{Name: "grant", Level: 3},
	{Name: "fdapi", Level: 3, With: []string{"jsonrpc", "pollfd"}},
	{Name: "archive", Level: 3},
	{Name: "bridge", Level: 3},
	{Name: "filetree", Level: 3},
	{Name: "fleet", Level: 3},
	{Name: "patch", Level: 3},
	{Name: "fileapi", Level: 3},
	{Name: "fileprog", Level: 3, With: []string{"fileapi", "filetree", "patch", "removal"}},
	{Name: "sandbox", Level: 3, With: []string{"sealed", "thread"}},
	{Name: "hostrun", Level: 3, With: []string{"pidfd", "sandbox"}},
	// What an error is called on the wire: data, beside the API that it is for.
	{Name: "api/errcode", Level: 3},

	{Name: "broker", Level: 4},
	{Name: "executor", Level: 4},
	{Name: "egress", Level: 4},
	{Name: "runtime", Level: 4},
	{Name: "jobs", Level: 4},
	{Name: "remotepatch", Level: 4},
	{Name: "archiver", Level: 4, With: []string{"runtime"}},
	{Name: "filerun", Level: 4, With: []string{"runtime"}},

	{Name: "watch", Level: 5},
	{Name: "chatui", Level: 5},
	{Name: "editor", Level: 5},
	{Name: "linuxagent", Level: 5},
	{Name: "authn", Level: 5},
	{Name: "telemetry", Level: 5},
	{Name: "config", Level: 5},
	{Name: "egress/ways", Level: 5, With: []string{"config"}},
	{Name: "gate", Level: 5},
	{Name: "events", Level: 5, With: []string{"gate"}},
	{Name: "asking", Level: 5, With: []string{"gate", "events"}},
	{Name: "tokens", Level: 5, With: []string{"gate"}},
	{Name: "secrets", Level: 5, With: []string{"gate"}},
	{Name: "models", Level: 5, With: []string{"gate"}},
	{Name: "auditing", Level: 5, With: []string{"gate", "events"}},
	{Name: "lifecycle", Level: 5, With: []string{"gate"}},
	{Name: "archives", Level: 5, With: []string{"gate", "lifecycle"}},
	{Name: "commands", Level: 5, With: []string{"gate", "lifecycle"}},
	{Name: "files", Level: 5, With: []string{"gate", "lifecycle"}},
	{Name: "ports", Level: 5, With: []string{"gate", "lifecycle"}},
	{Name: "turns", Level: 5, With: []string{"commands", "files", "gate", "lifecycle"}},
	{Name: "tasks", Level: 5, With: []string{"commands", "gate", "lifecycle", "turns"}},
	{Name: "single", Level: 5, With: []string{"gate"}},
	{Name: "upkeep", Level: 5, With: []string{"archives", "asking", "auditing", "events", "gate", "lifecycle"}},
	{Name: "flow", Level: 5, With: []string{
		"archives", "asking", "auditing", "commands", "events", "files", "gate", "lifecycle", "models", "ports", "secrets", "tasks", "tokens",
		"turns", "upkeep",
	}},
	{Name: "api", Level: 5, With: []string{"authn"}},
	{Name: "e2b", Level: 5, With: []string{"api", "authn"}},
	{Name: "taskmcp", Level: 5, With: []string{"api", "mcp", "tasks"}},
	{Name: "daemon", Level: 5, With: []string{
		"api", "auditing", "authn", "config", "e2b", "egress/ways", "flow", "gate", "lifecycle", "rootless", "taskmcp", "telemetry",
	}},
	{Name: "rootless", Level: 5, With: []string{"asking", "config", "gate", "single"}},
	{Name: "front", Level: 5, With: []string{"rootless"}},
	{Name: "mcp", Level: 5},
	{Name: "agent", Level: 5},
	{Name: "steps", Level: 5},
	{Name: "cli", Level: 5, With: []string{"chatui", "editor", "front", "linuxagent", "mcp", "rootless", "steps", "watch"}},
}

// privileged is what both processes with rights of their own may link.
var privileged = []deps.Rule{
	{internal + "id", "names are validated again on this side"},
	{internal + "fanout", "a member of the form of a task, in package workspace: it is pure"},
	{internal + "build", "says which release answers"},
	{internal + "fault", "the text of an error"},
	{internal + "crashpoint", "empty calls where tests of another build end the process"},
	{internal + "workspace", "limits, states and the report"},
	{internal + "thread", "a start gives up rights, or keeps some, on a thread of its own"},
	{internal + "jsonrpc", "the protocol's framing"},
	{internal + "strictjson", "its decoder"},
	{internal + "peercred", "who is at the other end"},
	{internal + "sandbox/oom", "the order in which the kernel ends processes"},
	{internal + "sandbox", "the first stage and the control table"},
	{internal + "sandbox/drop", "rights that are given up for good"},
	{internal + "sandbox/seccomp", "the system call filter"},
	{internal + "sandbox/selfcheck", "what is tried inside"},
	{internal + "sandbox/netns", "the redirect and the sockets of the way out"},
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

func TestTiers(t *testing.T) {
	g := load(t)
	for _, bad := range g.Upward(tiers) {
		t.Error(bad)
	}
	if by := g.Importers(internal + "daemon"); !slices.Equal(by, []string{deps.Module + "/cmd/carreld"}) {
		t.Errorf("internal/daemon is imported by %v: only cmd/carreld may", by)
	}
}

// The command line and the SDK reach a daemon through the wire: nothing of the daemon
// is linked into them. The command line has the flow for "carrel run" without root, by
// package rootless alone.
func TestClientsLinkNoServer(t *testing.T) {
	g := load(t)
	for _, root := range []string{"cmd/carrel-cli", "sdk/go"} {
		linked := g.Linked(deps.Module + "/" + root)
		for path := range linked {
			if strings.HasPrefix(path, "modernc.org/") {
				t.Errorf("%s links %s: it opens no database, and would start half a millisecond later", root, path)
			}
		}
		for _, p := range []string{"gate", "store", "audit", "runtime", "runtime/namespace", "broker", "executor", "daemon", "api"} {
			if way, ok := linked[internal+p]; ok && !slices.Contains(way, internal+"rootless") {
				t.Errorf("%s links internal/%s: %s", root, p, strings.Join(way, " → "))
			}
		}
	}
}

// notPure is what a decision may not look at.
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

// pureLibraries are those that a decision may link.
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

func TestTier1IsPure(t *testing.T) {
	g := load(t)
	for _, tier := range tiers {
		if tier.Level != 1 {
			continue
		}
		p, ok := g[internal+tier.Name]
		if !ok {
			t.Errorf("tier 1 names %s, which is not there", tier.Name)
			continue
		}
		for _, bad := range impure(t, p.Dir, p.GoFiles) {
			t.Errorf("%s: %s", tier.Name, bad)
		}
		for path := range g.Linked(p.ImportPath) {
			if g[path].Standard || strings.HasPrefix(path, deps.Module) {
				continue
			}
			if _, ok := deps.Match(pureLibraries, path); !ok {
				t.Errorf("%s links %s: not among the libraries of tier 1", tier.Name, path)
			}
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
			"net/http: ", "crypto/tls: ", "github.com/spf13/cobra: not on the list", internal + "cli: not on the list",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q was not caught in\n%s", want, got)
			}
		}
	})
	t.Run("tiers", func(t *testing.T) {
		for want, g := range map[string]deps.Graph{
			"id (tier 0) imports gate (tier 5)":               {internal + "id": {Imports: []string{internal + "gate"}}},
			"gate (tier 5) imports api (tier 5)":              {internal + "gate": {Imports: []string{internal + "api"}}},
			"sandbox/launch (tier 3) imports broker (tier 4)": {internal + "sandbox/launch": {Imports: []string{internal + "broker"}}},
			internal + "handy: stands in no tier":             {internal + "handy": {}},
			"store (tier 2) imports jsonrpc (tier 3)":         {internal + "store": {Imports: []string{internal + "jsonrpc"}}},
			"runtime (tier 4) imports broker (tier 4)":        {internal + "runtime": {Imports: []string{internal + "broker"}}},
		} {
			if got := g.Upward(tiers); !slices.Equal(got, []string{want}) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		fine := deps.Graph{internal + "sandbox/launch": {Imports: []string{internal + "sandbox", internal + "workspace", "os"}}}
		if got := fine.Upward(tiers); len(got) != 0 {
			t.Errorf("refused %q", got)
		}
		g := deps.Graph{
			deps.Module + "/cmd/carreld": {Imports: []string{internal + "daemon"}},
			internal + "cli":             {Imports: []string{internal + "daemon"}},
		}
		if by := g.Importers(internal + "daemon"); len(by) != 2 {
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
