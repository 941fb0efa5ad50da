package staged_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/internal/files/staged"
)

// While a copy is mounted what it changed is applied again and again, also what it removed of what was applied.
func TestApplyWhileMounted(t *testing.T) {
	l := newLab(t, map[string]string{"old": "1", "dir/kept": "k"})
	apply := func(want ...string) error {
		c := l.copy(t)
		made, err := staged.Made(t.Context(), c.Lower, l.keep)
		if err != nil {
			return err
		}
		c.Made = made
		r, err := staged.Apply(t.Context(), c, staged.Options{Choice: staged.Choice{All: true}, Since: l.since}, l.keep)
		if got, asked := fmt.Sprint(r.Applied), fmt.Sprint(want); err == nil && got != asked {
			err = fmt.Errorf("applied %s, not %s", got, asked)
		}
		return err
	}
	l.run(t, func(m string) error {
		at := func(p string) string { return filepath.Join(m, p) }
		return errors.Join(
			os.MkdirAll(at("new/sub"), 0o755), os.WriteFile(at("new/sub/a"), []byte("1"), 0o644), os.WriteFile(at("new/b"), []byte("1"), 0o644),
			os.WriteFile(at("old"), []byte("2"), 0o644),
			apply("new", "new/b", "new/sub", "new/sub/a", "old"),
			apply(),
			// A file that was applied is changed again, one is removed, and one is renamed.
			os.WriteFile(at("old"), []byte("3"), 0o644), os.Remove(at("new/b")), os.Rename(at("new/sub/a"), at("c")),
			apply("c", "new/b", "new/sub/a", "old"),
			os.Rename(at("new"), at("dir/moved")),
			apply("dir/moved", "dir/moved/sub", "new", "new/sub"),
			os.RemoveAll(at("dir/moved")), os.Remove(at("old")),
			apply("dir/moved", "dir/moved/sub", "old"),
			os.WriteFile(at("c"), []byte("2"), 0o644),
			// What the host changes meanwhile is the host's.
			os.WriteFile(filepath.Join(l.lower, "c"), []byte("host"), 0o644),
		)
	})
	var conflict *staged.ConflictError
	if err := apply("c"); !errors.As(err, &conflict) || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Path != "c" {
		t.Errorf("a conflict: %v", err)
	}
	list, err := os.ReadDir(l.lower)
	must(t, err)
	names := ""
	for _, e := range list {
		names += e.Name() + " "
	}
	if names != "c dir " {
		t.Errorf("left: %s", names)
	}
}
