package rootless_test

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A carrel of one user keeps secrets too: over the end of its daemon, sealed with a key that is the user's alone, and in no
// file and no process of theirs.
func TestOwnSecrets(t *testing.T) {
	u := newOwner(t)
	const first, second = "copper funnel 61 first", "copper funnel 61 second"
	set := func(code int, value string, args ...string) string {
		t.Helper()
		r := finish(u.own(append([]string{"secret"}, args...)...), value)
		if r.code != code || strings.Contains(r.out+r.err, "funnel") {
			t.Errorf("secret %v: %+v", args, r)
		}
		return r.out + r.err
	}
	u.must("create", "demo") // which keeps the daemon, and has an executor
	set(0, first+"\n", "set", "API_KEY", "--host", "a.example")
	if got := set(1, second, "set", "API_KEY", "--host", "a.example"); !strings.Contains(got, "carrel secret rotate API_KEY") {
		t.Error(got)
	}
	look := func() (found []string, files int) {
		hidden := [][]byte{[]byte("funnel"), []byte(base64.RawStdEncoding.EncodeToString([]byte(first))[:20])}
		at := func(where string, b []byte) {
			files++
			for _, h := range hidden {
				if bytes.Contains(b, h) {
					found = append(found, where)
				}
			}
		}
		err := filepath.WalkDir(u.home, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // it went away, or is a workspace's
			}
			b, err := os.ReadFile(path)
			at(path, b)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		procs, err := filepath.Glob("/proc/[0-9]*/*")
		if err != nil {
			t.Error(err)
		}
		for _, path := range procs {
			if name := filepath.Base(path); name == "cmdline" || name == "environ" || name == "comm" || name == "status" {
				b, _ := os.ReadFile(path) // it may have ended
				at(path, b)
			}
		}
		return found, files
	}
	if found, files := look(); len(found) > 0 || files < 50 {
		t.Errorf("the value is in %v of %d", found, files)
	}
	key := filepath.Join(u.home, ".local/state/carrel/daemon/secrets.key")
	if fi, err := os.Stat(key); err != nil || fi.Mode() != 0o600 {
		t.Error(fi, err)
	}
	u.must("down")
	set(0, second, "rotate", "API_KEY") // which opens what the daemon before has sealed
	if got := u.must("secret", "ls"); !strings.Contains(got, "API_KEY  a.example") {
		t.Error(got)
	}
	if found, _ := look(); len(found) > 0 {
		t.Errorf("the value is in %v", found)
	}
	u.must("secret", "rm", "API_KEY")
	// The search finds what is there.
	if err := os.WriteFile(filepath.Join(u.home, "project", "planted"), []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, _ := look(); len(found) != 1 {
		t.Errorf("the search finds %v", found)
	}
}
