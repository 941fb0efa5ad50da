package store_test

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// The id of an archive that is gone means no other archive, whatever keys there are: keys of that
// form are refused today, but an earlier build took them.
func TestAnIDIsNoKey(t *testing.T) {
	s, _ := newStore(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	add := func(name id.Workspace, key id.Key, at time.Time) workspace.Archive {
		a := workspace.Archive{ID: id.NewArchive(name, at), Workspace: name, Key: key, Owner: "uid:1000", CreatedAt: at}
		if err := s.AddArchive(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := add("ws-2a97516c", "demo", at)
	second := add("ws-2a97516c", "demo", at.Add(time.Second))
	hostile := add("ws-00000001", id.Key(first.ID), at.Add(2*time.Second))
	for ref, want := range map[string]string{
		first.ID: first.ID, second.ID: second.ID, hostile.ID: hostile.ID, "demo": second.ID, "ws-2a97516c": second.ID,
	} {
		if a, err := s.Archive(t.Context(), ref); err != nil || a.ID != want {
			t.Errorf("%s is %s, %v; want %s", ref, a.ID, err, want)
		}
	}
	for _, there := range []bool{true, false} {
		if was, err := s.RemoveArchive(t.Context(), first.ID); err != nil || was != there {
			t.Fatal(was, err)
		}
	}
	if a, err := s.Archive(t.Context(), first.ID); !errdefs.IsNotFound(err) {
		t.Errorf("the id of an archive that is gone is %s with the key %s, %v", a.ID, a.Key, err)
	}
}
