package crash_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/test/built"
)

// pointsInSource lists the points that the source names.
func pointsInSource(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, root := range []string{"../../internal", "../../cmd", "../../sdk"} {
		must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			found, bad := pointsIn(t, path, nil)
			for _, b := range bad {
				t.Errorf("%s: the name of a crash point must be a literal", b)
			}
			all = append(all, found...)
			return nil
		}))
	}
	slices.Sort(all)
	return all
}

// pointsIn parses one file, or its text.
func pointsIn(t *testing.T, path string, text any) (points, bad []string) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	must(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := c.Fun.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Here" {
			return true
		}
		if x, ok := s.X.(*ast.Ident); !ok || x.Name != "crashpoint" {
			return true
		}
		lit, ok := c.Args[0].(*ast.BasicLit)
		if !ok {
			bad = append(bad, files.Position(c.Pos()).String())
			return true
		}
		name, err := strconv.Unquote(lit.Value)
		must(t, err)
		if !strings.HasPrefix(name, "userbroker.") && !strings.HasPrefix(name, "run.") { // test/rootless has those
			points = append(points, name)
		}
		return true
	})
	return points, bad
}

// Every point that the source names is exercised, and the source names every point that
// is. A name stands at one place, so that the test means that one.
func TestEveryPointIsExercised(t *testing.T) {
	source := pointsInSource(t)
	if len(source) < 50 {
		t.Fatalf("the source names only %d points", len(source))
	}
	for i, p := range source {
		if i > 0 && source[i-1] == p {
			t.Errorf("%s stands at two places", p)
		}
	}
	for _, miss := range missing(source, exercised()) {
		t.Errorf("no scenario passes %s: give it a place in the table", miss)
	}
	for _, stale := range missing(exercised(), source) {
		t.Errorf("the source has no point %s", stale)
	}
}

// Every operation that may be repeated with an id is killed around the note of its request.
func TestEveryRepeatableIsKilled(t *testing.T) {
	var killed, want []string
	for _, s := range scenarios {
		args := s.operation("KEY")
		if slices.Contains(args, "--request-id") && slices.Contains(s.points, "daemon.request.begun") &&
			slices.Contains(s.points, "daemon.request.done") {
			killed = append(killed, "workspace."+args[0])
		}
	}
	for _, row := range operation.Table {
		if row.Repeatable {
			want = append(want, string(row.Name))
		}
	}
	for _, miss := range missing(want, killed) {
		t.Errorf("no scenario repeats %s with an id: give it a place in the table", miss)
	}
}

// missing lists what of want is not in have.
func missing(want, have []string) []string {
	var out []string
	for _, w := range want {
		if !slices.Contains(have, w) {
			out = append(out, w)
		}
	}
	return slices.Compact(out)
}

func TestAPointWithoutAScenarioIsSeen(t *testing.T) {
	const text = `package x
	func f(name string) {
		crashpoint.Here("daemon.planted.here")
		crashpoint.Here(name)
	}`
	points, bad := pointsIn(t, "x.go", text)
	if !slices.Equal(points, []string{"daemon.planted.here"}) || len(bad) != 1 {
		t.Errorf("found %q and %q", points, bad)
	}
	if m := missing(points, exercised()); !slices.Equal(m, points) {
		t.Errorf("not missed: %q", m)
	}
}

// The programs that are shipped know nothing of the points.
func TestShippedProgramsHaveNoPoint(t *testing.T) {
	needRoot(t) // the crash build is there to compare with
	dir := t.TempDir()
	must(t, built.Programs(t.Context(), dir))
	has := func(path string, text string) bool {
		b, err := os.ReadFile(path)
		must(t, err)
		return bytes.Contains(b, []byte(text))
	}
	programs := map[string]string{"broker": "carrel-broker", "daemon": "carreld", "executor": "carrel-executor", "cli": "carrel-cli"}
	for _, p := range append(pointsInSource(t), "CARREL_CRASHPOINTS") {
		for part, program := range programs {
			if has(filepath.Join(dir, program), p) {
				t.Errorf("%s knows of %s", program, p)
			}
			if strings.HasPrefix(p, part+".") && !has(filepath.Join(bin, program), p) {
				t.Errorf("the crash build of %s does not know of %s: this test would see nothing", program, p)
			}
		}
	}
}
