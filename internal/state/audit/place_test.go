package audit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// A log that was removed, or replaced by an older copy of itself, is not verified and not written.
func TestFileIsTakenAway(t *testing.T) {
	for name, harm := range map[string]func(path string, old []byte) error{
		"removed": func(path string, _ []byte) error { return os.Remove(path) },
		"replaced": func(path string, old []byte) error {
			if err := os.WriteFile(path+".copy", old, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".copy", path)
		},
		"a link to itself": func(path string, _ []byte) error {
			if err := os.Rename(path, path+".real"); err != nil {
				return err
			}
			return os.Symlink(path+".real", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit", "audit.jsonl")
			l, err := audit.Open(t.Context(), audit.Options{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			add := func() error {
				_, err := l.Append(t.Context(), audit.Record{Type: audit.Denial})
				return err
			}
			if err := add(); err != nil {
				t.Fatal(err)
			}
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := add(); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Verify(t.Context()); err != nil {
				t.Fatalf("unharmed: %v", err)
			}
			if err := harm(path, old); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Verify(t.Context()); !errdefs.IsDataLoss(err) {
				t.Errorf("verify: %v", err)
			}
			select {
			case <-l.Failed():
			default:
				t.Error("the daemon is not told")
			}
			if err := add(); err == nil {
				t.Error("a record was written where nobody looks")
			}
		})
	}
}
