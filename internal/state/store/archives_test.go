package store_test

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// An archive has what its workspace might reach, and what the workspace of an earlier build might: nothing.
func TestArchiveKeepsReach(t *testing.T) {
	s, path := newStore(t)
	reach := workspace.Reach{Allow: []string{"a.example", "b.example"}, Deny: []string{"c.example"}}
	for n, r := range []workspace.Reach{{}, reach} {
		name := id.Derive("ws", "demo", n)
		a := workspace.Archive{
			ID: id.NewArchive(name, time.Unix(1, 0)), Workspace: name, Key: "demo", CreatedAt: time.Unix(int64(n), 0), Reach: r,
		}
		if err := s.AddArchive(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s, path)
	all, err := s.Archives(t.Context())
	if err != nil || len(all) != 2 || !all[0].Reach.Equal(reach) || !all[1].Reach.Empty() {
		t.Errorf("%+v, %v", all, err)
	}
}

// A destroyed workspace that is brought back may reach what it might before.
func TestReviveKeepsReach(t *testing.T) {
	s, path := newStore(t)
	w := ws("demo", 0)
	w.Reach = workspace.Reach{Allow: []string{"a.example"}, Deny: []string{"c.example"}}
	if err := s.Insert(t.Context(), w, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.SetDestroyed(t.Context(), w.Name, "/kept"); err != nil {
		t.Fatal(err)
	}
	kept, _, err := s.Kept(t.Context(), "demo")
	if err != nil || !kept.Reach.Equal(w.Reach) {
		t.Fatalf("%+v, %v", kept, err)
	}
	if err := s.Revive(t.Context(), kept, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if back, ok := s.ByName(w.Name); !ok || !back.Reach.Equal(w.Reach) {
			t.Errorf("%+v", back)
		}
		s = reopen(t, s, path)
	}
}

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
