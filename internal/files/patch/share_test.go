package patch_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

func TestMerge3(t *testing.T) {
	lines := func(s string) []byte { return []byte(strings.ReplaceAll(s, " ", "\n") + "\n") }
	const base = "a b c d e f g h i j k l m n o p"
	for name, c := range map[string]struct{ ours, theirs, want string }{
		"apart":              {"A b c d e f g h i j k l m n o p", "a b c d e f g h i j k l m n o P", "A b c d e f g h i j k l m n o P"},
		"the same":           {"A b c d e f g h i j k l m n o p", "A b c d e f g h i j k l m n o p", "A b c d e f g h i j k l m n o p"},
		"the same and more":  {"A b c d e f g h i j k l m n o P", "A b c d e f g h i j k l m n o p", "A b c d e f g h i j k l m n o P"},
		"the same line":      {"A b c d e f g h i j k l m n o p", "1 b c d e f g h i j k l m n o p", ""},
		"a line beside":      {"A b c d e f g h i j k l m n o p", "a b C d e f g h i j k l m n o p", ""},
		"an uncertain place": {"a b c d e f g h i j k l m n o p q", "m n o p a b c d e f g h i j k l m n o p", ""},
	} {
		got, err := patch.Merge3(t.Context(), lines(base), lines(c.ours), lines(c.theirs))
		if c.want == "" {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		} else if err != nil || string(got) != string(lines(c.want)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
