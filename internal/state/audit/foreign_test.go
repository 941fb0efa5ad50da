package audit_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// Whoever can write where the log is cannot make its verification, which root may run, wait for them, or read
// another file instead.
func TestVerifyWaitsForNobody(t *testing.T) {
	for name, in := range map[string]func(path string) error{
		"a pipe":        func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a link":        func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a device":      func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory":   func(path string) error { return os.Mkdir(path, 0o700) },
		"without bound": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		for _, file := range []string{"audit.jsonl", "checkpoints", "removed", "audit-000000000001-000000000002.jsonl"} {
			t.Run(name+" for "+file, func(t *testing.T) {
				d := newFixture(t)
				d.fill(t, 3, d.options())
				trust := audit.Trust{Keys: d.keys(t)}
				at := filepath.Join(filepath.Dir(d.path), file)
				if err := os.RemoveAll(at); err != nil {
					t.Fatal(err)
				}
				if err := in(at); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				said := make(chan error, 1)
				go func() {
					v, err := audit.VerifyLog(ctx, d.path, trust)
					if err == nil && v.Bad != nil {
						err = errors.New(v.Bad.Detail)
					}
					said <- err
				}()
				select {
				case err := <-said:
					// What was kept of removed records is not needed while none was.
					if err == nil && file != "removed" || err != nil && strings.Contains(err.Error(), "root:") {
						t.Errorf("%v", err)
					}
				case <-ctx.Done():
					t.Error("it waits")
				}
			})
		}
	}
}
