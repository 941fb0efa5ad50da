package steps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

// A change is made if it is still the one that was computed, below its roots alone, and never where its own backups are.
func TestPatches(t *testing.T) {
	root := t.TempDir()
	keep := filepath.Join(root, "state", "patches")
	p, err := steps.OpenPatches(t.Context(), keep, root)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "f")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%q, %v", b, err)
		}
	}
	change := runtime.HostPatch{Text: "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"}
	write(file, "a\n")
	shown, err := p.Do(t.Context(), change)
	if err != nil || shown.ID != "" || len(shown.Files) != 1 || !strings.HasSuffix(shown.Files[0], "/f") ||
		!strings.Contains(shown.Diff, "b") {
		t.Fatalf("%+v, %v", shown, err)
	}
	is("a\n")
	for _, digest := range []string{"sha256:00", shown.Digest + "0"} {
		change.Digest = digest
		if _, err := p.Do(t.Context(), change); err == nil {
			t.Errorf("another change was made for %s", digest)
		}
	}
	change.Digest = shown.Digest
	write(file, "a\nc\n") // the patch fits still, and does something else
	if done, err := p.Do(t.Context(), change); err == nil {
		t.Errorf("a file that changed since was changed: %+v", done)
	}
	is("a\nc\n")
	write(file, "a\n")
	done, err := p.Do(t.Context(), change)
	if err != nil || done.ID == "" {
		t.Fatalf("%+v, %v", done, err)
	}
	is("b\n")
	if all, err := steps.Changes(keep); err != nil || len(all) != 1 || all[0].ID != done.ID {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := steps.Undo(t.Context(), keep, done.ID); err != nil {
		t.Error(err)
	}
	is("a\n")
	for _, name := range []string{"state/patches/x", "../x", "/etc/carrel-test-x"} {
		_, err := p.Do(t.Context(), runtime.HostPatch{Text: "--- /dev/null\n+++ b/" + name + "\n@@ -0,0 +1 @@\n+x\n"})
		if err == nil {
			t.Errorf("%s can be made", name)
		}
	}
	var long strings.Builder
	for range 4000 {
		long.WriteString("+a line of a file that is new and long\n")
	}
	text := "--- /dev/null\n+++ b/long\n@@ -0,0 +1,4000 @@\n" + long.String()
	if _, err := p.Do(t.Context(), runtime.HostPatch{Text: text}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("more than a person reads can be approved: %v", err)
	}
}
