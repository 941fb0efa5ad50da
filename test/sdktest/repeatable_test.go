package sdktest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// What a client sends again by itself changes nothing: no method that it calls repeatable is one of an operation that does.
func TestWhatIsSentAgainChangesNothing(t *testing.T) {
	class := map[string]operation.Class{}
	for i := range operation.Table {
		for _, c := range operation.Table[i].Calls {
			class[c.Path] = operation.Table[i].Class
		}
	}
	for _, c := range []struct{ file, pattern string }{
		{"python/carrel/messages.py", `= Method\("(\w+/\w+)", \w+, \w+, "(\w+)", True\)`},
		{"typescript/src/messages.js", `path: '(\w+/\w+)', request: '\w+', response: '\w+', streams: '(\w+)', repeatable: true`},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "sdk", c.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(c.pattern).FindAllSubmatch(text, -1)
		if len(found) < 20 {
			t.Errorf("%s has %d methods that are repeatable", c.file, len(found))
		}
		for _, m := range found {
			if is, known := class[string(m[1])]; !known || is == operation.Change || string(m[2]) != "unary" {
				t.Errorf("%s: %s is sent again, and is of class %v", c.file, m[1], is)
			}
		}
	}
}
