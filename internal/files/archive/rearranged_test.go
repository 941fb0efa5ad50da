package archive_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive"
)

// A tree in which files become FIFOs and symbolic links during packing neither blocks the packer
// nor leads it outside.
func TestRearranged(t *testing.T) {
	base := t.TempDir()
	dir, secret := filepath.Join(base, "dir"), filepath.Join(base, "secret")
	must(t, os.Mkdir(dir, 0o700))
	// The changing names come last, long after they were listed.
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d", i)), []byte("mine"), 0o600))
	}
	must(t, os.Mkdir(secret, 0o700))
	const word = "what lies outside"
	must(t, os.WriteFile(filepath.Join(secret, "file"), bytes.Repeat([]byte(word), 10), 0o600))

	ctx, stop := context.WithCancel(t.Context())
	flipped := make(chan int)
	go func() {
		// Each name is alternately a file or directory, and a link to the outside or a FIFO.
		n := 0
		for ; ctx.Err() == nil; n++ {
			path := filepath.Join(dir, string(rune('a'+n%7)))
			_ = os.Remove(path)
			switch n % 5 {
			case 0, 1:
				_ = os.WriteFile(path, []byte("mine"), 0o600)
			case 2:
				_ = unix.Mkfifo(path, 0o600)
			case 3:
				_ = os.Symlink([]string{"../secret/file", "../secret"}[n/5%2], path)
			case 4:
				_ = os.Mkdir(path, 0o700)
			}
		}
		flipped <- n
	}()
	end := time.Now().Add(2 * time.Second)
	packed := 0
	for ; packed < 20 || time.Now().Before(end); packed++ {
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
		d, err := zstd.NewReader(bytes.NewReader(out.Bytes()))
		must(t, err)
		content, err := io.ReadAll(d)
		must(t, err)
		d.Close()
		if bytes.Contains(content, []byte(word)) {
			t.Fatalf("%q was packed", word)
		}
		if packed%16 == 0 {
			_, _, err := unpack(t, out.Bytes(), archive.Limits{})
			must(t, err)
		}
	}
	stop()
	if n := <-flipped; n < 100 {
		t.Errorf("%d changes during %d archives are no test", n, packed)
	}
}
