package pollfd_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/pollfd"
)

func TestCopy(t *testing.T) {
	data := make([]byte, 3<<20+17)
	rand.Read(data)
	dir := t.TempDir()
	for name, open := range map[string]func(t *testing.T) (dst *os.File, result func() []byte){
		"pipe": func(t *testing.T) (*os.File, func() []byte) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			return w, readAll(t, r, w)
		},
		"blocking pipe": func(t *testing.T) (*os.File, func() []byte) {
			r, w := blockingPipe(t)
			return w, readAll(t, r, w)
		},
		"file": func(t *testing.T) (*os.File, func() []byte) {
			return file(t, filepath.Join(dir, "file"), os.O_WRONLY|os.O_CREATE)
		},
		"file for appending": func(t *testing.T) (*os.File, func() []byte) {
			return file(t, filepath.Join(dir, "append"), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dst, result := open(t)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			go func() {
				defer w.Close()
				_, _ = w.Write(data)
			}()
			pieces := 0
			n, err := pollfd.Copy(dst, r, func() { pieces++ })
			dst.Close()
			if got := result(); err != nil || n != int64(len(data)) || !bytes.Equal(got, data) || pieces == 0 {
				t.Errorf("copied %d of %d in %d pieces (%v), equal %v", n, len(data), pieces, err, bytes.Equal(got, data))
			}
		})
	}
}

// readAll reads r beside the copy; the pipes' buffers are smaller than the data.
func readAll(t *testing.T, r, w *os.File) func() []byte {
	t.Helper()
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r)
		got <- b
	}()
	t.Cleanup(func() { w.Close(); r.Close() })
	return func() []byte { return <-got }
}

func file(t *testing.T, path string, flag int) (*os.File, func() []byte) {
	t.Helper()
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f, func() []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func TestCopyToAClosedPipe(t *testing.T) {
	dstR, dstW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer dstW.Close()
	dstR.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if _, err := pollfd.Copy(dstW, r, nil); !errors.Is(err, unix.EPIPE) {
		t.Errorf("err = %v", err)
	}
}

func TestCopyEndsAtADeadline(t *testing.T) {
	_, dst, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := pollfd.Copy(dst, r, nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}
