package gate_test

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

// guarded are the methods that only the gate may call, by the type that has them.
var guarded = map[string][]string{
	module + "/internal/runtime.Runtime":           {"Create", "Start", "Stop", "Destroy", "Discard", "Pause", "Resume", "Limit", "Run", "Spawn", "Detach", "Output", "Signal", "Resize"},
	module + "/internal/runtime/namespace.Runtime": {"Create", "Start", "Stop", "Destroy", "Discard", "Pause", "Resume", "Limit", "Run", "Spawn", "Detach", "Output", "Signal", "Resize"},
	module + "/internal/audit.Log":                 {"Append", "AppendAsync"},
	module + "/internal/audit.Shared":              {"Append", "AppendAsync"},
}

// mayCall are the packages that may: the gate, and the two types themselves.
var mayCall = []string{
	module + "/internal/gate",
	module + "/internal/audit",
	module + "/internal/runtime/namespace",
}

// makers return values of those types; only the composition root may call them.
var makers = []string{
	module + "/internal/runtime/namespace.New",
	module + "/internal/audit.Open",
	module + "/internal/audit.OpenShared",
}

// compositionRoots put a gate, a runtime and a record together: the daemon, and a run
// without one.
var compositionRoots = []string{module + "/internal/daemon", module + "/internal/rootless"}

type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ Path string }
}

// Every effect goes through the gate: no other package of what is shipped, which is all
// that the commands link, calls, or takes as a value, a method that has an effect or
// writes a record. The suites and the benchmark, which do, are not shipped.
func TestOnlyTheGateActs(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module", "./cmd/...")
	cmd.Dir = filepath.Join("..", "..")
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
		if slices.Contains(mayCall, p.ImportPath) {
			continue
		}
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
			t.Errorf("%s: only the gate may do that", v)
		}
		checked++
	}
	if checked < 10 {
		t.Errorf("looked at %d packages only", checked)
	}

	// The check sees violations that are planted: a call through the interface, one
	// on the backend, one hidden in an embedding, one taken as a value, and a value
	// made behind the daemon's back.
	const planted = `package planted

import (
	"context"

	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/runtime/namespace"
)

type hidden struct{ *audit.Log }

func f(ctx context.Context, r runtime.Runtime, n *namespace.Runtime, h hidden) {
	r.Stop(ctx, "x")
	n.Stop(ctx, "x")
	h.AppendAsync(audit.Record{})
	_ = runtime.Runtime.Destroy
	_ = namespace.New
	r.Ping(ctx, "x")
}
`
	f, err := parser.ParseFile(fset, "planted.go", planted, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := violations(fset, imp, module+"/internal/planted", []*ast.File{f}); len(got) != 5 || err != nil {
		t.Errorf("found %d of 5 planted violations: %v (%v)", len(got), got, err)
	}
}

func violations(fset *token.FileSet, imp types.Importer, path string, files []*ast.File) (found []string, err error) {
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: imp}
	_, err = conf.Check(path, fset, files, info)
	for expr, sel := range info.Selections {
		m, ok := sel.Obj().(*types.Func)
		if !ok {
			continue
		}
		recv := m.Signature().Recv().Type()
		if ptr, ok := recv.(*types.Pointer); ok {
			recv = ptr.Elem()
		}
		if slices.Contains(guarded[recv.String()], m.Name()) {
			found = append(found, fmt.Sprintf("%s uses %s of %s", fset.Position(expr.Pos()), m.Name(), recv))
		}
	}
	for ident, o := range info.Uses {
		if f, ok := o.(*types.Func); ok && !slices.Contains(compositionRoots, path) && slices.Contains(makers, f.FullName()) {
			found = append(found, fmt.Sprintf("%s uses %s", fset.Position(ident.Pos()), f.FullName()))
		}
	}
	return found, err
}
