package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// Every expression that is compiled late compiles.
func TestLazyExpressions(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	found := 0
	look := func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.Ident); !ok || f.Name != "lazy" {
			return true
		}
		text, ok := literal(call.Args[0])
		if !ok {
			t.Errorf("%s: the expression is no constant text", fset.Position(call.Pos()))
			return true
		}
		found++
		if _, err := regexp.Compile(text); err != nil {
			t.Errorf("%s: %v", fset.Position(call.Pos()), err)
		}
		return true
	}
	for _, name := range names {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, look)
	}
	if found < 20 {
		t.Errorf("only %d expressions were found", found)
	}
}

// literal is the text of string literals and sums of them.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		a, ok := literal(e.X)
		b, ok2 := literal(e.Y)
		return a + b, ok && ok2 && e.Op == token.ADD
	}
	return "", false
}
