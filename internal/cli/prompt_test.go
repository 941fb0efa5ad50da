package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
)

// A person goes through the files of a change one by one. All of them are the whole plan, none of them denies it, and what is no
// answer three times is none. Where there is nothing to choose f is no answer.
func TestPromptForFiles(t *testing.T) {
	files := []string{"a", "b\x1b[2J", "c"}
	for name, c := range map[string]struct {
		files []string
		typed string
		kind  string
		want  []string
	}{
		"some":         {files, "f\ny\nn\nY\n", "files", []string{"a", "c"}},
		"all":          {files, "f\ny\ny\ny\n", "once", nil},
		"none":         {files, "f\nn\nn\nn\n", "deny", nil},
		"asked again":  {files, "f\nmaybe\ny\nn\nn\n", "files", []string{"a"}},
		"no answer":    {files, "f\ny\n\n\n\ny\ny\n", "", nil},
		"an end":       {files, "f\ny\nn\n", "", nil},
		"not offered":  {nil, "f\nf\nf\ny\n", "", nil},
		"as a whole":   {files, "y\n", "once", nil},
		"f once again": {files, "x\nf\nn\nn\ny\n", "files", []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			in, typing, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if _, err := typing.WriteString(c.typed); err != nil {
				t.Fatal(err)
			}
			typing.Close()
			out, err := os.Create(filepath.Join(t.TempDir(), "screen"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			m := &carrelv1.Approval{Id: "ap-1", State: "pending", Kind: "plan.run", Files: c.files}
			kind, chosen, err := cli.Ask(t.Context(), in, out, m)
			if kind != c.kind || !slices.Equal(chosen, c.want) || (err == nil) != (c.kind != "") {
				t.Errorf("%q of %q, %v", kind, chosen, err)
			}
			screen, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(screen), "\x1b") || strings.Contains(string(screen), "[f]") != (len(c.files) > 0) {
				t.Errorf("%q", screen)
			}
		})
	}
}
