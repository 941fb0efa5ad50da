package workspace_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
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

func withTemplates(texts []string, templates map[string]string) ([]workspace.SecretFile, error) {
	files, err := workspace.ParseSecretFiles(texts)
	if err != nil {
		return nil, err
	}
	return workspace.WithTemplates(files, templates)
}

// A file by a template has the placeholder at each marker of its own secret, and is told from one that somebody wrote to.
func TestSecretTemplates(t *testing.T) {
	const text = "a = {{A}}\nagain = \"{{A}}\"\nother = {{B}} {A}\n"
	files, err := withTemplates([]string{"A=x", "B=y"}, map[string]string{"A": text})
	if err != nil || files[0].Template != text || files[1].Template != "" {
		t.Fatalf("%+v %v", files, err)
	}
	s := workspace.Secrets{Uses: []workspace.SecretUse{{Name: "A", Placeholder: "pa"}, {Name: "B", Placeholder: "pb"}}}
	s, err = s.WithFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	const want = "a = pa\nagain = \"pa\"\nother = {{B}} {A}\n"
	if got := s.Uses[0].Content(); got != want {
		t.Errorf("%q", got)
	}
	if got := s.Uses[1].Content(); got != "pb" {
		t.Errorf("without a template: %q", got)
	}
	other := []workspace.SecretFile{{Name: "A", Path: "x", Template: "{{A}}"}}
	if got, err := s.WithFiles(other); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another template for the same file: %+v %v", got, err)
	}
	if got, err := s.WithFiles(files); err != nil || !slices.Equal(got.Uses, s.Uses) {
		t.Errorf("said twice: %+v %v", got, err)
	}
	gone, err := s.Without([]string{"A", "B"})
	if err != nil || len(gone.Gone) != 2 || gone.Gone[0].Template != "" {
		t.Fatalf("%+v %v", gone, err)
	}
	for i, wrote := range []string{want, "pb"} {
		for _, have := range []string{wrote, wrote + "\n", wrote + "\r\n"} {
			if !gone.Gone[i].Wrote([]byte(have)) || !s.Uses[i].Wrote([]byte(have)) {
				t.Errorf("%q is not what was written", have)
			}
		}
		for _, have := range []string{"", "more" + wrote, wrote + "more", text} {
			if gone.Gone[i].Wrote([]byte(have)) || s.Uses[i].Wrote([]byte(have)) {
				t.Errorf("%q is taken for what was written", have)
			}
		}
	}
	if err := files[0].Holds("A", "again"); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "again") {
		t.Errorf("with a value in it: %v", err)
	}
	if err := files[0].Holds("A", "{{A}} "); err != nil {
		t.Errorf("with none: %v", err)
	}
}

// What makes no file, or too much of it, is refused.
func TestSecretTemplatesThatAreWrong(t *testing.T) {
	fill := func(n int) string { return "{{A}}" + strings.Repeat("x", n-len("{{A}}")) }
	for name, c := range map[string]map[string]string{
		"no marker": {"A": "x"}, "empty": {"A": ""}, "no file": {"C": "{{C}}"}, "no name": {"9": "{{9}}"}, "no text": {"A": "{{A}}\xff"},
		"a NUL": {"A": "{{A}}\x00"}, "too long": {"A": fill(64<<10 + 1)}, "too long together": {"A": fill(60 << 10), "B": "{{B}}" + fill(5<<10)},
	} {
		if files, err := withTemplates([]string{"A=x", "B=y"}, c); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v %v", name, files, err)
		}
	}
	most, err := withTemplates([]string{"A=x"}, map[string]string{"A": fill(64 << 10)})
	if err != nil {
		t.Fatal(err)
	}
	with := func(placeholder string) workspace.Secrets {
		return workspace.Secrets{Uses: []workspace.SecretUse{{Name: "A", Placeholder: placeholder}, {Name: "B", Placeholder: "pb"}}}
	}
	if _, err := with("12345").WithFiles(most); err != nil {
		t.Errorf("one that just fits: %v", err)
	}
	if _, err := with("123456").WithFiles(most); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one that is too long with the placeholder: %v", err)
	}
	one, err := with("12345").WithFiles(most)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.WithFiles([]workspace.SecretFile{{Name: "B", Path: "y", Template: "{{B}}"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too much in two changes: %v", err)
	}
	mounts := []workspace.Mount{{Source: "/srv/x", Destination: "~/a/b"}}
	for path, bad := range map[string]bool{"a/b/c": true, "a/b": true, "a": true, "a/bc": false, "x": false} {
		err := workspace.CheckSecretFiles([]workspace.SecretFile{{Name: "A", Path: path}}, mounts)
		if errdefs.IsInvalidArgument(err) != bad {
			t.Errorf("%s beside a mount: %v", path, err)
		}
	}
}
