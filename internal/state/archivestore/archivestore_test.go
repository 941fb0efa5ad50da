package archivestore_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/archivestore"
)

func open(t *testing.T, dir string) *archivestore.Store {
	t.Helper()
	s, err := archivestore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func ids(t *testing.T, s *archivestore.Store) []string {
	t.Helper()
	list, err := s.IDs()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func TestShelf(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archives")
	s := open(t, dir)
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	d, err := s.Create("a-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s); len(got) != 0 {
		t.Errorf("a draft is listed: %v", got)
	}
	sum, size, err := d.Commit()
	want := sha256.Sum256([]byte("hello"))
	if err != nil || size != 5 || sum != hex.EncodeToString(want[:]) {
		t.Errorf("%s, %d, %v", sum, size, err)
	}
	d.Discard() // too late
	if got := ids(t, s); !slices.Equal(got, []string{"a-1"}) {
		t.Errorf("%v", got)
	}
	if _, err := s.Create("a-1"); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second one of that id: %v", err)
	}
	f, err := s.Open("a-1")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	f.Close()
	for _, bad := range []string{"", "../x", "a/b", ".hidden", "a\x00"} {
		if _, err := s.Create(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for range 2 {
		if err := s.Remove("a-1"); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Open("a-1"); !errdefs.IsDataLoss(err) {
		t.Errorf("one that is gone: %v", err)
	}
}

// Who reads from the disk does not get what is in memory.
func TestFromTheDisk(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "archives"))
	d, err := s.Create("a-1")
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 3<<20)
	if _, err := d.Write(text); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Commit(); err != nil {
		t.Fatal(err)
	}
	cached := func(open func(string) (*os.File, error)) bool {
		f, err := open("a-1")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		rc, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var pages unix.Cachestat_t
		b := make([]byte, 4096)
		cerr := rc.Control(func(fd uintptr) {
			if err = unix.Cachestat(uint(fd), &unix.CachestatRange{Off: 1 << 20, Len: 4096}, &pages, 0); err == nil {
				return
			}
			// Before Linux 6.5. It starts to read ahead, and what a fast disk has read by then it takes for cached.
			_, err = unix.Preadv2(int(fd), [][]byte{b}, 1<<20, unix.RWF_NOWAIT)
			pages.Cache = 1
		})
		if cerr != nil || err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Skipf("this file system does not say what is in memory: %v, %v", cerr, err)
		}
		return err == nil && pages.Cache > 0
	}
	if !cached(s.Open) {
		t.Skip("what was just written is not in memory")
	}
	if cached(s.OpenFromDisk) {
		t.Error("it would be read from memory")
	}
}

func TestDrafts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archives")
	s := open(t, dir)
	d, err := s.Create("a-1")
	if err != nil {
		t.Fatal(err)
	}
	d.Discard()
	if _, err := s.Create("a-1"); err != nil { // given up, so free; and cut off by a crash
		t.Fatal(err)
	}
	open(t, dir)
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "evil.tar.zst")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open("evil"); err == nil {
		t.Error("a link out of the directory was followed")
	}
}
