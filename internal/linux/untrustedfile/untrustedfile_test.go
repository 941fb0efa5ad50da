package untrustedfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

// other is a user whom nothing here belongs to.
const other = 64999

// Each is what a user with a directory of their own can put into it for root to read.
func TestOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user's files take root to make")
	}
	dir, err := os.MkdirTemp("/var/tmp", "carrel-foreign")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	secret := filepath.Join(dir, "secret") // root's, in root's directory
	theirs := filepath.Join(dir, "theirs")
	in := func(name string) string { return filepath.Join(theirs, name) }
	own := func(path string) error { return os.Lchown(path, other, other) }
	file := func(path string) error { return os.WriteFile(path, []byte("text"), 0o600) }
	for _, err := range []error{
		os.Chmod(dir, 0o755), file(secret), os.Mkdir(theirs, 0o700), own(theirs),
		file(in("plain")), own(in("plain")),
		file(in("roots")),
		os.Link(secret, in("hard")),
		file(in("third")), os.Chown(in("third"), other+1, other+1),
		os.Symlink(secret, in("soft")), own(in("soft")),
		unix.Mkfifo(in("pipe"), 0o666), own(in("pipe")),
		os.Mkdir(in("dir"), 0o700), own(in("dir")),
		os.Symlink(dir, in("way")), own(in("way")),
		file(filepath.Join(dir, "given")), own(filepath.Join(dir, "given")),
		os.Symlink(theirs, filepath.Join(dir, "mine")), // root's own
		os.Truncate(in("plain"), 4),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, refused := range map[string]bool{
		in("plain"): false, in("roots"): false, filepath.Join(dir, "given"): false, filepath.Join(dir, "mine/plain"): false, secret: false,
		in("hard"): true, in("third"): true, in("soft"): true, in("pipe"): true, in("dir"): true,
		in("way/secret"): true, filepath.Join(dir, "mine/way/secret"): true,
	} {
		b, err := untrustedfile.Read(name, 4)
		if refused != errdefs.IsFailedPrecondition(err) || !refused && string(b) != "text" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := untrustedfile.Read(in("plain"), 3); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a longer file: %v", err)
	}
	if _, err := untrustedfile.Open(in("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
