package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// withoutCommand are the operations that no command asks for on its own.
var withoutCommand = []operation.Name{
	operation.Login, operation.Mended, operation.Recover, operation.RemoveHome, operation.ResizeCommand, operation.ConnectOut,
	operation.ConnectPort, operation.AskTask, operation.KeyTask, operation.RunPlan, operation.ChangeFiles,
	operation.ReadForPatch, operation.ListPatches,
}

// The one-line help of a command is in the row of its operation, and only there.
func TestHelpIsInTheRows(t *testing.T) {
	shorts := map[string]string{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if other, ok := shorts[c.Short]; ok {
			t.Errorf("%s and %s have the same help", other, c.CommandPath())
		}
		if c.Short == "" || strings.ContainsAny(c.Short, "\n") || strings.HasSuffix(c.Short, ".") {
			t.Errorf("the help of %s is not one line without a full stop: %q", c.CommandPath(), c.Short)
		}
		shorts[c.Short] = c.CommandPath()
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk(cli.Command())
	texts := literals(t)
	for _, row := range operation.Table {
		switch has := shorts[row.Help] != ""; {
		case slices.Contains(withoutCommand, row.Name):
			if row.Help != "" {
				t.Errorf("%s has the help %q and no command", row.Name, row.Help)
			}
		case !has:
			t.Errorf("no command has the help %q of %s", row.Help, row.Name)
		case slices.Contains(texts, row.Help):
			t.Errorf("the help of %s is repeated in this package: %q", row.Name, row.Help)
		}
	}
}

// literals are the strings in the source of this package.
func literals(t *testing.T) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil {
					all = append(all, s)
				}
			}
			return true
		})
	}
	return all
}

// The help of every command fits 80 columns.
func TestHelpFits(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		var b strings.Builder
		c.SetOut(&b)
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk(cli.Command())
}
