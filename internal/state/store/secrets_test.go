package store_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
)

func addSecret(t *testing.T, s *store.Store, owner, name string) workspace.Secret {
	t.Helper()
	x := workspace.Secret{Owner: owner, Name: name, Hosts: []string{"api.example.org", "*.example.net:8443"}, Headers: []string{"X-Key"}}
	x, err := s.AddSecret(t.Context(), x, []byte("sealed "+name))
	if err != nil {
		t.Fatal(err)
	}
	if kept, _, err := s.Secret(t.Context(), owner, name); err != nil || !cmp.Equal(kept, x) {
		t.Fatalf("%+v, not %+v: %v", kept, x, err)
	}
	return x
}

func TestSecretsAreKept(t *testing.T) {
	s, path := newStore(t)
	before := time.Now()
	a, b := addSecret(t, s, "uid:1000", "B_KEY"), addSecret(t, s, "uid:1000", "A_KEY")
	other := addSecret(t, s, "uid:1001", "A_KEY")
	if _, err := s.AddSecret(t.Context(), workspace.Secret{Owner: "uid:0", Name: "BARE"}, nil); err == nil {
		t.Error("a secret without a value was stored")
	}
	a, err := s.RotateSecret(t.Context(), a, []byte{0, 1, 255})
	if err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, path)
	got, sealed, err := s.Secret(t.Context(), "uid:1000", "B_KEY")
	if err != nil || string(sealed) != "\x00\x01\xff" || got.Created.Before(before) || !got.Rotated.After(got.Created) {
		t.Errorf("%+v, %q, %v", got, sealed, err)
	}
	for owner, want := range map[string][]workspace.Secret{"uid:1000": {b, a}, "uid:1001": {other}, "uid:1002": nil, "": {b, a, other}} {
		list, err := s.Secrets(t.Context(), owner)
		if d := cmp.Diff(want, list); d != "" || err != nil {
			t.Errorf("%q: %v %s", owner, err, d)
		}
	}
}

func TestOneSecretOfAName(t *testing.T) {
	s, _ := newStore(t)
	a := addSecret(t, s, "uid:1000", "A_KEY")
	_, err := s.AddSecret(t.Context(), a, []byte("x"))
	if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "carrel secret rotate A_KEY") {
		t.Error(err)
	}
	if _, sealed, err := s.Secret(t.Context(), "uid:1000", "A_KEY"); err != nil || string(sealed) != "sealed A_KEY" {
		t.Errorf("%q, %v", sealed, err)
	}
	_, _, err = s.Secret(t.Context(), "uid:1001", "A_KEY")
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "carrel secret set A_KEY") {
		t.Error(err)
	}
}

// What was looked at is what is changed: not another one that has taken its name since, whose hosts may be others.
func TestASecretThatWasReplaced(t *testing.T) {
	s, _ := newStore(t)
	a := addSecret(t, s, "uid:1000", "A_KEY")
	if err := s.RemoveSecret(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.RotateSecret(t.Context(), a, []byte("late")); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		if err := s.RemoveSecret(t.Context(), a); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		if list, err := s.Secrets(t.Context(), ""); err != nil || len(list) > 0 {
			break // the second time
		}
		addSecret(t, s, "uid:1000", "A_KEY")
	}
	if _, sealed, err := s.Secret(t.Context(), "uid:1000", "A_KEY"); err != nil || string(sealed) != "sealed A_KEY" {
		t.Errorf("%q, %v", sealed, err)
	}
}

// An owner has as many as may be, however many are stored at once, and takes no place of another's.
func TestSecretsAreBounded(t *testing.T) {
	s, _ := newStore(t)
	var all sync.WaitGroup
	var stored atomic.Int32
	for i := range store.MaxSecrets + 10 {
		all.Go(func() {
			_, err := s.AddSecret(t.Context(), workspace.Secret{Owner: "uid:1000", Name: fmt.Sprint("KEY_", i)}, []byte("x"))
			switch {
			case err == nil:
				stored.Add(1)
			case !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "carrel secret rm"):
				t.Error(err)
			}
		})
	}
	all.Wait()
	list, err := s.Secrets(t.Context(), "uid:1000")
	if err != nil || len(list) != store.MaxSecrets || stored.Load() != store.MaxSecrets {
		t.Errorf("%d are there, %d were stored, %v", len(list), stored.Load(), err)
	}
	addSecret(t, s, "uid:1001", "A_KEY")
	if err := s.RemoveSecret(t.Context(), list[0]); err != nil {
		t.Fatal(err)
	}
	addSecret(t, s, "uid:1000", "A_KEY")
}
