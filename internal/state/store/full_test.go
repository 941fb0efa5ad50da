package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/state/store"
	"github.com/carrel-dev/carrel/test/smalldisk"
)

// fill takes all that is free. It is called again after each step, as by who takes each block at once.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filling"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

func numbered(n int) store.Workspace { return ws(id.Key(fmt.Sprint("full ", n)), 0) }

// On a full disk what lives can be ended, over several starts, and what was taken back of the room is
// held again when there is some.
func TestEndsOnAFullDisk(t *testing.T) {
	dir := smalldisk.Mount(t, "64m")
	path := filepath.Join(dir, "carrel.db")
	s := open(t, path)
	const living = 300
	for i := range living {
		if err := s.Insert(t.Context(), numbered(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Room(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range living {
		fill(t, dir)
		if i%100 == 50 { // a start needs no room
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			fill(t, dir)
			s = open(t, path)
		}
		name := numbered(i).Name
		if err := s.SetDestroying(t.Context(), name, true); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		if err := s.SetDestroyed(t.Context(), name, ""); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		if _, err := s.Begin(t.Context(), store.RequestID{Principal: "uid:0", ID: string(name)}, "sha256:0", ""); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
	}
	if _, err := os.Stat(path + "-shm"); err == nil {
		t.Error("there is an index of the write-ahead log that a start would fill anew")
	}
	// Where no room is left at all, a change says why.
	var err error
	for i := 0; err == nil; i++ {
		err = s.SetMeta(t.Context(), "large", string(bytes.Repeat([]byte{'a'}, i<<18)))
	}
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("without room: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "filling")); err != nil {
		t.Fatal(err)
	}
	if err := s.SetMeta(t.Context(), "large", ""); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}
