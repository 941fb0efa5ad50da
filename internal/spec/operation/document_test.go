package operation_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/operation"
)

var update = flag.Bool("update", false, "write docs/protocols/operations.md anew")

// document is the table for people.
func document() string {
	var b strings.Builder
	b.WriteString("| operation | what it does | permission | class | asks | calls |\n|---|---|---|---|---|---|\n")
	for _, r := range operation.Table {
		var calls, asks []string
		for _, c := range r.Calls {
			calls = append(calls, "`"+c.Path+"`")
		}
		for _, rule := range r.Judged.Rules {
			if rule.Asks {
				asks = append(asks, rule.Reason)
			}
		}
		if r.Judged.Command {
			asks = append(asks, "as the policy judges the command")
		}
		class := r.Class.String()
		if r.Repeatable {
			class += ", id"
		}
		if r.Relieves {
			class += ", also on a full disk"
		}
		permission := strings.Join(r.Needs.Names(), ", ")
		if r.Needs.Has(1<<13 - 1) {
			permission = "all"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.Name, r.Sentence(operation.Target{}), permission, class,
			strings.Join(asks, "; "), strings.Join(calls, ", "))
	}
	return b.String()
}

// The document has the table as it is.
func TestDocument(t *testing.T) {
	path := "../../../docs/protocols/operations.md"
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
		if err := os.WriteFile(path, []byte(head+mark+document()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != document() {
		t.Errorf("%s has another table; run: go test ./internal/spec/operation -run TestDocument -update", path)
	}
}
