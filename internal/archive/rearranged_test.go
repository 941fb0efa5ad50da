package archive_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/archive"
)

// A tree that turns files into FIFOs and symbolic links while it is packed neither stops
// the packer nor leads it out.
func TestRearranged(t *testing.T) {
	base := t.TempDir()
	dir, secret := filepath.Join(base, "dir"), filepath.Join(base, "secret")
	must(t, os.MkdirAll(filepath.Join(dir, "spare"), 0o700))
	must(t, os.Mkdir(secret, 0o700))
	const word = "what lies outside"
	must(t, os.WriteFile(filepath.Join(secret, "file"), bytes.Repeat([]byte(word), 10), 0o600))

	ctx, stop := context.WithCancel(t.Context())
	flipped := make(chan int)
	go func() {
		// Each name is a file or directory, then a link outwards or a FIFO, by turns.
		n := 0
		for ; ctx.Err() == nil; n++ {
			a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
			_ = os.Remove(a)
			_ = os.Remove(b)
			switch n % 3 {
			case 0:
				_ = os.WriteFile(a, []byte("mine"), 0o600)
				_ = os.Mkdir(b, 0o700)
			case 1:
				_ = unix.Mkfifo(a, 0o600)
				_ = os.Symlink("../secret", b)
			case 2:
				_ = os.Symlink("../secret/file", a)
				_ = os.WriteFile(b, []byte("mine"), 0o600)
			}
		}
		flipped <- n
	}()
	end := time.Now().Add(2 * time.Second)
	packed := 0
	for ; time.Now().Before(end); packed++ {
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() {
			_, err := archive.Write(t.Context(), &out, open(t, dir), archive.Limits{}, archive.Options{})
			done <- err
		}()
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(20 * time.Second):
			t.Fatal("the packer waits for a FIFO's other end")
		}
		to, _, err := unpack(t, out.Bytes(), archive.Limits{})
		must(t, err)
		for path := range tree(t, to) {
			full := filepath.Join(to, path)
			if info, err := os.Lstat(full); err != nil || !info.Mode().IsRegular() {
				continue
			}
			if b, _ := os.ReadFile(full); bytes.Contains(b, []byte(word)) {
				t.Fatalf("%s has %q in it", path, b)
			}
		}
	}
	stop()
	if n := <-flipped; n < 100 || packed < 10 {
		t.Errorf("%d changes during %d archives are no test", n, packed)
	}
}
