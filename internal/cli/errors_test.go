package cli_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/cli"
)

// testdata/errors.txt is every error that the command line makes by itself, for people to read through. A changed or a new
// one is put there with: CARREL_UPDATE=1 go test -run TestErrors ./internal/cli
func TestErrors(t *testing.T) {
	const file = "testdata/errors.txt"
	table := errorTable(t)
	text := strings.Join(table, "\n") + "\n"
	if os.Getenv("CARREL_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil || string(b) != text {
		t.Errorf("%s is not what the source has: %v; run CARREL_UPDATE=1 go test -run TestErrors ./internal/cli and read what changes", file, err)
	}
	for _, row := range table {
		for _, problem := range wrongWith(row) {
			t.Errorf("%s: %s", problem, row)
		}
	}
}

// wrongWith checks what can be checked of the form of an error.
func wrongWith(text string) (problems []string) {
	bad := func(is bool, what string) {
		if is {
			problems = append(problems, what)
		}
	}
	bad(strings.ContainsAny(text, "\t"), "it has a tab")
	bad(strings.HasSuffix(text, "."), "it ends with a full stop")
	bad(strings.HasSuffix(text, shownKind), "the kind is shown behind it: say why after a colon")
	for sentence := range strings.SplitSeq(text, ". ") {
		bad(strings.Count(sentence, "cannot ") > 1, "a sentence has cannot twice")
	}
	bad(regexp.MustCompile(`^[A-Z][a-z]`).MatchString(text), "it begins with a capital letter")
	bad(regexp.MustCompile(`^cannot [^:;]*$`).MatchString(text), "it does not say why, or what to do")
	several := regexp.MustCompile(`%d (workspaces|records|events|rules|commands|homes|archives|tokens)`)
	bad(several.MatchString(text), "it counts one as several")
	return problems
}

// The checks see what they are for.
func TestWrongWith(t *testing.T) {
	for _, text := range []string{
		"cannot x: a\tb", "cannot x: y.", "cannot x: cannot y: z", "Cannot x: y", "cannot find %s", "cannot x: %d workspaces live there",
		"cannot x; try z" + shownKind,
	} {
		if len(wrongWith(text)) == 0 {
			t.Errorf("%q passes", text)
		}
	}
	if p := wrongWith("cannot x: y; try z"); p != nil {
		t.Errorf("a good one: %v", p)
	}
}

// errorTable reads the formats of all errors out of the source, without the kinds at their ends.
func errorTable(t *testing.T) (rows []string) {
	t.Helper()
	var sources []string
	var err error
	for _, dir := range []string{".", "../../internal/cli/attach", "../../internal/cli/fast", "../../internal/wire/fdapi/client"} {
		var here []string
		here, err = filepath.Glob(filepath.Join(dir, "*.go"))
		sources = append(sources, here...)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, arg := range call.Args[:min(2, len(call.Args))] {
				if text := literal(arg); makesError(call.Fun) && text != "" {
					if strings.HasPrefix(name(call.Args[len(call.Args)-1]), "errdefs.Err") {
						// As it is shown: the kind of an error goes, unless it seems to be all that explains it.
						if rest, ok := strings.CutSuffix(text, ": %w"); ok && strings.Contains(rest, ":") {
							text = rest
						} else if ok && strings.HasPrefix(rest, "cannot ") { // others are parts of one
							text = rest + shownKind
						} else {
							text = rest
						}
					}
					rows = append(rows, strings.ReplaceAll(text, "\n", `\n`))
					break
				}
			}
			return true
		})
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// shownKind stands for a kind that is shown behind a text that says what to do.
const shownKind = ": KIND"

func makesError(f ast.Expr) bool {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name == "usage"
	case *ast.SelectorExpr:
		return f.Sel.Name == "Errorf" || f.Sel.Name == "New" && fmt.Sprint(f.X) == "errors"
	}
	return false
}

// literal is a string of literals and, in braces, constants, "" for another expression.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		left, right := literal(e.X), literal(e.Y)
		if left == "" && right == "" {
			return ""
		}
		for x, s := range map[ast.Expr]*string{e.X: &left, e.Y: &right} {
			if *s == "" {
				*s = "{" + name(x) + "}"
			}
		}
		return left + right
	}
	return ""
}

func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return name(e.X) + "." + e.Sel.Name
	default:
		return "…"
	}
}

func TestErrorText(t *testing.T) {
	inner := fmt.Errorf("cannot open /x: %w", os.ErrNotExist)
	for want, err := range map[string]error{
		"cannot make demo: open /x: file does not exist": fmt.Errorf("cannot make demo: %w", inner),
		"cannot make demo: there is none":                fmt.Errorf("cannot make demo: there is none: %w", errdefs.ErrFailedPrecondition),
		"cannot x; it said:\n  y: cannot z":              fmt.Errorf("cannot x; it said:\n  y: cannot z"),
	} {
		if got := cli.ErrorText(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
