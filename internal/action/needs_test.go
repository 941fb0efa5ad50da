package action_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/principal"
)

// Every kind has a rule. Login has none: nobody is known yet.
func TestEveryKindNeedsAPermission(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "action.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); !ok || typ.Name != "Kind" {
			return true
		}
		text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		kinds++
		if k := action.Kind(text); (k.Needs() == 0) != (k == action.Login) {
			t.Errorf("%s needs %v", k, k.Needs().Names())
		}
		return true
	})
	if kinds < 30 {
		t.Errorf("only %d kinds were found", kinds)
	}
	if principal.Self().Can(action.Kind("forgotten").Needs()) {
		t.Error("an action without a rule may be done")
	}
}
