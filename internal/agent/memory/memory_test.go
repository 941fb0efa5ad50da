package memory_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/memory"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func add(t *testing.T, file, text string) memory.Note {
	t.Helper()
	n, err := memory.Add(file, text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func texts(t *testing.T, file string) string {
	t.Helper()
	all, err := memory.List(file)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(all)
}

// Notes are kept in their order, for their user alone, and a number is never another note's.
func TestNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "carrel", "memory.json")
	if got := texts(t, file); got != "[]" {
		t.Error(got)
	}
	add(t, file, "  backups run at 3 ")
	add(t, file, "db-1 is the primary")
	if n := add(t, file, "backups run at 3"); n.Number != 1 {
		t.Errorf("the same is kept twice: %+v", n)
	}
	if err := memory.Remove(file, 2); err != nil {
		t.Fatal(err)
	}
	if n := add(t, file, "数据库在 db-2"); n.Number != 3 {
		t.Errorf("%+v", n)
	}
	if err := memory.Remove(file, 1, 2); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if got := texts(t, file); got != "[{1 backups run at 3} {3 数据库在 db-2}]" {
		t.Error(got)
	}
	fi, err := os.Stat(file)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	all, err := memory.Texts(file)
	if err != nil || !slices.Equal(all, []string{"backups run at 3", "数据库在 db-2"}) {
		t.Errorf("%q, %v", all, err)
	}
	left, _ := os.ReadDir(filepath.Dir(file))
	if len(left) != 1 {
		t.Errorf("left %v", left)
	}
}

func TestBounds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.json")
	for _, bad := range []string{"", "  ", strings.Repeat("字", workspace.MaxNote+1), "a\nb", "a\x1b[2J", "a\u202eb", "\xff"} {
		if _, err := memory.Add(file, bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for i := range workspace.MaxNotes {
		add(t, file, fmt.Sprintf("%03d", i)+strings.Repeat("\U0001F4BE", workspace.MaxNote-3))
	}
	if _, err := memory.Add(file, "one more"); !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
	if all, err := memory.List(file); err != nil || len(all) != workspace.MaxNotes {
		t.Errorf("%d, %v", len(all), err)
	}
}

// A secret is not kept, and a note that does not fit without it is refused.
func TestSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.json")
	secret := "ghp_" + strings.Repeat("aB3dE6gH9", 4)
	n := add(t, file, "the token is "+secret)
	b, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(b), secret) || strings.Contains(n.Text, secret) || !strings.Contains(n.Text, "[redacted:") {
		t.Errorf("%+v, kept %q, %v", n, b, err)
	}
}

// What others may have written is not told as the person's word, and neither is what is of another form.
func TestNotTaken(t *testing.T) {
	const good = `{"last":1,"notes":[{"number":1,"text":"a"}]}`
	for name, x := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"others write": {good, 0o602}, "others read": {good, 0o604}, "the group writes": {good, 0o620},
		"no JSON": {"{", 0o600}, "a line end": {`{"last":1,"notes":[{"number":1,"text":"a\nb"}]}`, 0o600},
		"long":   {`{"last":1,"notes":[{"number":1,"text":"` + strings.Repeat("a", workspace.MaxNote+1) + `"}]}`, 0o600},
		"number": {`{"last":0,"notes":[{"number":1,"text":"a"}]}`, 0o600},
		"twice":  {`{"last":1,"notes":[{"number":1,"text":"a"},{"number":1,"text":"b"}]}`, 0o600},
		"many": {
			`{"last":65,"notes":[` + strings.Repeat(`{"number":1,"text":"a"},`, 64) + `{"number":65,"text":"a"}]}`, 0o600,
		},
	} {
		file := filepath.Join(t.TempDir(), "memory.json")
		if err := os.WriteFile(file, []byte(x.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, x.mode); err != nil {
			t.Fatal(err)
		}
		if all, err := memory.Texts(file); !errdefs.IsFailedPrecondition(err) || len(all) > 0 {
			t.Errorf("%s: %q, %v", name, all, err)
		}
		if _, err := memory.Add(file, "more"); err == nil {
			t.Errorf("%s: it is written to", name)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "memory.json")
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("other", file); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.List(file); err == nil {
		t.Error("a link is followed")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.List(file); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
}

// Two carrels do not lose each other's notes: one of them is told to try again.
func TestOneAtATime(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "memory.json")
	add(t, file, "a")
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.Add(file, "b"); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	if got := texts(t, file); got != "[{1 a}]" {
		t.Error(got)
	}
}
