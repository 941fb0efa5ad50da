package sessions_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/sessions"
)

// A session is found as it was kept last, by nobody but its user, and one that there is not is an error.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sessions")
	id := sessions.NewID()
	if _, err := sessions.Find(dir, id); !errdefs.IsNotFound(err) {
		t.Errorf("before it is kept: %v", err)
	}
	for _, task := range []string{"c-1", "c-2"} {
		want := sessions.Session{Workspace: "w", Task: task}
		if err := sessions.Keep(dir, id, want); err != nil {
			t.Fatal(err)
		}
		if got, err := sessions.Find(dir, id); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, id+".json"): 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, fi, err)
		}
	}
}

// What is no id names no file, and a file of another form is no session.
func TestFindNothingElse(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside.json")
	if err := os.WriteFile(outside, []byte(`{"workspace":"w","task":"c-1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(dir, "in")
	id, link := sessions.NewID(), sessions.NewID()
	if err := sessions.Keep(inside, id, sessions.Session{Workspace: "w", Task: "c-1"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(inside, link+".json")); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "../outside", strings.ToLower(id), id + "A", "../" + id[3:], link, sessions.NewID()} {
		if s, err := sessions.Find(inside, bad); err == nil {
			t.Errorf("%q is %+v", bad, s)
		}
		if bad != link && bad != "" && len(bad) != len(id) && sessions.Keep(inside, bad, sessions.Session{}) == nil {
			t.Errorf("%q is kept", bad)
		}
	}
	if err := os.WriteFile(filepath.Join(inside, id+".json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sessions.Find(inside, id); !errdefs.IsNotFound(err) {
		t.Errorf("of another form: %v", err)
	}
}

// The newest are kept, and no more than there may be.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	var ids []string
	for i := range 130 {
		id := sessions.NewID()
		if err := sessions.Keep(dir, id, sessions.Session{Workspace: "w", Task: fmt.Sprint("c-", i)}); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(filepath.Join(dir, id+".json"), at, at); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 128 {
		t.Errorf("%d are kept, %v", len(all), err)
	}
	if _, err := sessions.Find(dir, ids[0]); !errdefs.IsNotFound(err) {
		t.Errorf("the oldest: %v", err)
	}
	if _, err := sessions.Find(dir, ids[129]); err != nil {
		t.Errorf("the newest: %v", err)
	}
}
