package compose_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

const module = "github.com/carrel-dev/carrel"

// guard is what only some packages may use: functions and methods by their full name.
type guard struct {
	of  []string
	may []string
}

func in(names ...string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, module+"/"+n)
	}
	return out
}

// guards keep every effect in the gate: a runtime changes nothing without a permit, and only
// the gate issues permits; only it and the packages around it write records; and only what
// puts a daemon or a run together makes a runtime or opens a record. Values of secrets that are kept go to ways out alone.
var guards = []guard{
	{[]string{module + "/internal/spec/permit.Issue"}, in("internal/gate")},
	{[]string{
		"(*" + module + "/internal/state/audit.Log).Append", "(*" + module + "/internal/state/audit.Log).AppendAsync",
		"(*" + module + "/internal/state/audit.Shared).Append", "(*" + module + "/internal/state/audit.Shared).AppendAsync",
		"(" + module + "/internal/state/record.Recorder).Append", "(" + module + "/internal/state/record.Recorder).AppendAsync",
	}, in("internal/state/audit", "internal/state/record", "internal/service/audits")},
	{[]string{
		"(*" + module + "/internal/state/record.Writer).Append", "(*" + module + "/internal/state/record.Of).Append",
		"(*" + module + "/internal/state/record.Of).AppendAsync",
	}, in(
		"internal/gate", "internal/service/approvals", "internal/service/tokens", "internal/service/audits", "internal/service/upkeep",
		"internal/service/oneshot",
	)},
	{[]string{"(*" + module + "/internal/state/secret.Sealer).Unseal"}, in("internal/service/secrets", "internal/daemon/compose")},
	{
		[]string{"(*" + module + "/internal/service/secrets.Secrets).Held"},
		in("internal/daemon/compose", "internal/service/lifecycle", "internal/egress/ways"),
	},
	{[]string{
		module + "/internal/boundary/runtime/namespace.New", module + "/internal/state/audit.Open", module + "/internal/state/audit.OpenShared",
	}, in("internal/daemon", "internal/rootless")},
}

type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ Path string }
}

// Every effect goes through the gate: no package of what is shipped, which is all that the
// commands link, calls, or takes as a value, what the guards keep from it. The suites and the
// benchmark, which do, are not shipped.
func TestOnlyTheGateActs(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module", "./cmd/...")
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as they are shipped, and so compiled already
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	var ours []listed
	for d := json.NewDecoder(out); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Path == module {
			ours = append(ours, p)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	imp := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(exports[path])
	})
	checked := 0
	for _, p := range ours {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		found, err := violations(fset, imp, p.ImportPath, files)
		if err != nil && p.Export != "" { // one that does not compile is the compiler's to report
			t.Errorf("cannot check %s: %v", p.ImportPath, err)
		}
		for _, v := range found {
			t.Errorf("%s, which is for the gate and the packages around it", v)
		}
		checked++
	}
	if checked < 10 {
		t.Errorf("looked at %d packages only", checked)
	}

	// The check sees violations that are planted: a permit made behind the gate's back, and one
	// taken as a value; a record appended directly, hidden in an embedding, by the writer and
	// through its interface; a runtime made behind the daemon's back; and values of secrets.
	const planted = `package planted

import (
	"context"

	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/state/secret"
	"github.com/carrel-dev/carrel/internal/service/secrets"
)

type hidden struct{ *audit.Log }

func f(ctx context.Context, r runtime.Runtime, h hidden, w *record.Writer, to record.Recorder) {
	p, _ := permit.Issue("x")
	r.Stop(ctx, p)
	_ = permit.Issue
	h.AppendAsync(audit.Record{})
	w.Append(ctx, audit.Record{})
	to.AppendAsync(audit.Record{})
	_ = namespace.New
	r.Ping(ctx, "x")
}

func g(ctx context.Context, s *secrets.Secrets, of *secret.Sealer) {
	_ = s.Held
	of.Unseal("x", nil)
}
`
	f, err := parser.ParseFile(fset, "planted.go", planted, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := violations(fset, imp, module+"/internal/planted", []*ast.File{f}); len(got) != 8 || err != nil {
		t.Errorf("found %d of 8 planted violations: %v (%v)", len(got), got, err)
	}
	// Without a permit it does not compile.
	const forgotten = `package planted

import (
	"context"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

func f(ctx context.Context, r runtime.Runtime) { r.Stop(ctx, "x") }
`
	if f, err = parser.ParseFile(fset, "forgotten.go", forgotten, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := violations(fset, imp, module+"/internal/planted", []*ast.File{f}); err == nil {
		t.Error("an effect without a permit compiles")
	}
}

func violations(fset *token.FileSet, imp types.Importer, path string, files []*ast.File) (found []string, err error) {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: imp}
	_, err = conf.Check(path, fset, files, info)
	for ident, o := range info.Uses {
		f, ok := o.(*types.Func)
		if !ok {
			continue
		}
		for _, g := range guards {
			if slices.Contains(g.of, f.FullName()) && !slices.Contains(g.may, path) {
				found = append(found, fmt.Sprintf("%s uses %s", fset.Position(ident.Pos()), f.FullName()))
			}
		}
	}
	return found, err
}
