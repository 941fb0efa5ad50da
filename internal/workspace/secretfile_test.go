package workspace_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/workspace"
)

// A file of a placeholder is below the home, however its path is written.
func TestSecretFilePaths(t *testing.T) {
	for text, want := range map[string]string{
		"A=.config/app/key": "A=.config/app/key", "A=~/key": "A=key", "A=/home/work/a//b/./c": "A=a/b/c", "A=é": "A=é", "A=a=b": "A=a=b",
		"A=..key": "A=..key",
	} {
		if f, err := workspace.ParseSecretFile(text); err != nil || f.String() != want {
			t.Errorf("%q: %v %v", text, f, err)
		}
	}
	for _, text := range []string{
		"A", "=x", "9A=x", "A=", "A=.", "A=~/", "A=/home/work/", "A=../x", "A=a/../../x", "A=/etc/passwd", "A=/home/work/../x", "A=/home/workx/y",
		"A=a/", "A=a\nb", "A=a\x00b", "A=\xff", "A=//home/work/x", "A=" + strings.Repeat("x", 513), "A=~//etc/x", "A=a/..",
	} {
		if f, err := workspace.ParseSecretFile(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %q %v", text, f, err)
		}
	}
}

// Two files that cannot be there together are refused, and those of secrets that are used no more are remembered to be removed.
func TestSecretFilesOfAWorkspace(t *testing.T) {
	s := workspace.Secrets{Uses: []workspace.SecretUse{{Name: "A", Placeholder: "pa"}, {Name: "B", Placeholder: "pb"}, {Name: "INJECTED"}}}
	file := func(name, path string) []workspace.SecretFile {
		return []workspace.SecretFile{{Name: name, Path: path}}
	}
	one, err := s.WithFiles(file("A", "dir/key"))
	if err != nil || !slices.Equal(one.FileTexts(), []string{"A=dir/key"}) || len(s.Files()) != 0 {
		t.Fatalf("%+v %v, and before %+v", one, err, s)
	}
	if again, err := one.WithFiles(file("A", "dir/key")); err != nil || len(again.Files()) != 1 {
		t.Errorf("said twice: %+v %v", again, err)
	}
	for _, f := range [][]workspace.SecretFile{
		file("B", "dir/key"), file("B", "dir"), file("B", "dir/key/x"), file("A", "other"), file("INJECTED", "x"), file("NONE", "x"),
	} {
		if got, err := one.WithFiles(f); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%v: %+v %v", f, got, err)
		}
	}
	if _, err := workspace.ParseSecretFiles([]string{"A=x", "B=x"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("two names for one path: %v", err)
	}
	if _, err := workspace.ParseSecretFiles(slices.Repeat([]string{"A=x"}, 17)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("17 files: %v", err)
	}
	less, err := one.Without([]string{"A", "B"})
	if err != nil || len(less.Gone) != 1 || less.Gone[0].Placeholder != "pa" || less.Gone[0].File != "dir/key" || len(one.Gone) != 0 {
		t.Errorf("%+v %v", less, err)
	}
}
