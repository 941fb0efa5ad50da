package patch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// What undoes changes of a workspace is where its programs may write. A pipe in the place of a journal, a record or a backup has nobody
// wait, and a link is not followed: each is an error that names the file.
func TestNobodyWaitsForAPipe(t *testing.T) {
	for _, what := range []string{"pipe", "link", "directory"} {
		for name, x := range map[string]struct {
			file string
			does func(dir, id string) error
		}{
			"a journal": {"journal.json", func(dir, _ string) error {
				_, err := patch.Recover(t.Context(), dir)
				return err
			}},
			"a record": {"record.json", func(dir, _ string) error {
				_, err := patch.Records(dir)
				return err
			}},
			"a record to undo": {"record.json", func(dir, id string) error {
				_, err := patch.Undo(t.Context(), dir, id)
				return err
			}},
			"a backup": {"backup", func(dir, id string) error {
				_, err := patch.Undo(t.Context(), dir, id)
				return err
			}},
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				files, dir := lay(t, map[string]string{"f": "a\n"}), t.TempDir()
				must(t, os.Chmod(dir, 0o700))
				p, err := read(t, files, "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n")
				must(t, err)
				id, err := p.Apply(t.Context(), dir)
				must(t, err)
				at := filepath.Join(dir, id, x.file)
				if x.file == "backup" {
					at = backupIn(t, filepath.Join(dir, id))
				}
				_ = os.Rename(at, at+".was")
				switch what {
				case "pipe":
					must(t, unix.Mkfifo(at, 0o600))
				case "link":
					must(t, os.Symlink(filepath.Base(at)+".was", at))
				default:
					must(t, os.Mkdir(at, 0o700))
				}
				ended := make(chan error, 1)
				go func() { ended <- x.does(dir, id) }()
				select {
				case err := <-ended:
					if err == nil || !strings.Contains(err.Error(), filepath.Base(at)) {
						t.Errorf("%v", err)
					}
				case <-time.After(10 * time.Second):
					t.Error("it waits for the pipe")
					f, err := os.OpenFile(at, os.O_WRONLY|unix.O_NONBLOCK, 0) // which ends the wait
					must(t, err)
					_ = f.Close()
					<-ended
				}
			})
		}
	}
}

// backupIn is the backup that a change has kept.
func backupIn(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		if !strings.HasSuffix(e.Name(), ".json") {
			return filepath.Join(dir, e.Name())
		}
	}
	t.Fatalf("there is no backup in %q", all)
	return ""
}
