package secret_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"filippo.io/age"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/state/secret"
)

func newKey(t testing.TB) string {
	t.Helper()
	i, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return i.String()
}

// openWith returns a sealer with a key.
func openWith(t testing.TB, key string) *secret.Sealer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := secret.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpenMakesAKeyOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secrets.key")
	s, err := secret.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode() != 0o600 || fi.Sys().(*syscall.Stat_t).Nlink != 1 || s.Path() != path {
		t.Fatal(fi.Mode(), s.Path(), err)
	}
	sealed := seal(t, s, about, value)
	again, err := secret.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := again.Unseal(about, sealed); err != nil || v.Reveal() != value {
		t.Error(err)
	}
	if only(t, dir) != "secrets.key" {
		t.Error(only(t, dir))
	}
	// age-keygen writes what Open takes, and the other way round.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := age.ParseIdentities(strings.NewReader(string(b))); err != nil || len(ids) != 1 {
		t.Error(err)
	}
}

func only(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestOpenAtOnce(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		path := filepath.Join(dir, "secrets.key")
		var all sync.WaitGroup
		sealers := make([]*secret.Sealer, 8)
		for i := range sealers {
			all.Go(func() {
				var err error
				if sealers[i], err = secret.Open(path); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		sealed := seal(t, sealers[0], about, value)
		for _, s := range sealers {
			if _, err := s.Unseal(about, sealed); err != nil {
				t.Fatal(err)
			}
		}
		if only(t, dir) != "secrets.key" {
			t.Fatal(only(t, dir))
		}
	}
}

// A process that ended while it made a key leaves none, or a whole one, and what else it leaves is removed.
func TestOpenAfterACrash(t *testing.T) {
	key := newKey(t)
	for name, before := range map[string]func(path string) error{
		"half a key that was being made": func(path string) error { return os.WriteFile(path+".new-1", []byte(key[:20]), 0o600) },
		"a whole one without its name":   func(path string) error { return os.WriteFile(path+".new-1", []byte(key+"\n"), 0o600) },
		"both names": func(path string) error {
			return errors.Join(os.WriteFile(path+".new-1", []byte(key+"\n"), 0o600), os.Link(path+".new-1", path))
		},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "a[b]*.key")
		if err := errors.Join(before(path), os.WriteFile(path+".newer", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := secret.Open(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if only(t, dir) != "a[b]*.key a[b]*.key.newer" {
			t.Errorf("%s: %s", name, only(t, dir))
		}
		again, err := secret.Open(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := again.Unseal(about, seal(t, s, about, value)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is refused is not replaced either.
func TestOpenRefuses(t *testing.T) {
	key := newKey(t)
	write := func(text string, mode fs.FileMode) func(path string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode))
		}
	}
	for name, c := range map[string]struct {
		make func(path string) error
		why  string
	}{
		"that the group can read":    {write(key+"\n", 0o640), "others can read or write it (mode 0640)"},
		"that others can read":       {write(key+"\n", 0o604), "others can read or write it"},
		"that others can write":      {write(key+"\n", 0o602), "others can read or write it"},
		"half written":               {write(key[:len(key)-10]+"\n", 0o600), "holds no whole key"},
		"empty":                      {write("", 0o600), "holds no whole key"},
		"with a comment only":        {write("# made\n", 0o600), "holds no whole key"},
		"with two keys":              {write(key+"\n"+newKey(t)+"\n", 0o600), "holds no whole key"},
		"with a recipient":           {write("age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p\n", 0o600), "holds no whole key"},
		"very long":                  {write(key+"\n"+strings.Repeat("#\n", 4<<10), 0o600), "holds no whole key"},
		"that is a symbolic link":    {func(path string) error { return os.Symlink("/dev/null", path) }, "symbolic link"},
		"that is a dangling link":    {func(path string) error { return os.Symlink("nowhere", path) }, "symbolic link"},
		"that is a directory":        {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		"that is a pipe":             {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"of another user":            {owned(t, key, 64999, 0o600), "belongs to uid 64999"},
		"of another user, for group": {owned(t, key, 64999, 0o660), "belongs to uid 64999"},
	} {
		if c.make == nil {
			continue
		}
		path := filepath.Join(t.TempDir(), "secrets.key")
		if err := c.make(path); err != nil {
			t.Fatal(name, err)
		}
		before, _ := os.Lstat(path)
		s, err := secret.Open(path)
		after, _ := os.Lstat(path)
		if s != nil || !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.why) || strings.Contains(err.Error(), key[20:40]) {
			t.Errorf("a key %s: %v", name, err)
		}
		if before.Mode() != after.Mode() || before.Size() != after.Size() {
			t.Errorf("a key %s is another one afterwards", name)
		}
	}
	if _, err := secret.Open("secrets.key"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if _, err := secret.Open(filepath.Join(t.TempDir(), "no", "secrets.key")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// owned makes a key that belongs to a user; nil if this process cannot.
func owned(t *testing.T, key string, uid int, mode fs.FileMode) func(path string) error {
	if os.Geteuid() != 0 {
		t.Log("not tried without root: a key of another user")
		return nil
	}
	return func(path string) error {
		return errors.Join(os.WriteFile(path, []byte(key+"\n"), 0o600), os.Chmod(path, mode), os.Chown(path, uid, uid))
	}
}

// A key that systemd hands over takes the place of the file, which is neither made nor looked at.
func TestCredential(t *testing.T) {
	key, dir := newKey(t), t.TempDir()
	same := openWith(t, key)
	path, credential := filepath.Join(dir, "secrets.key"), filepath.Join(dir, secret.Credential)
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	if secret.KeyPath(path) != path { // there are other credentials only
		t.Error(secret.KeyPath(path))
	}
	for _, mode := range []fs.FileMode{0o400, 0o440, 0o600} { // 0440 is how systemd lets one user read a file of root's
		_ = os.Remove(credential)
		if err := errors.Join(os.WriteFile(credential, []byte(key), 0o600), os.Chmod(credential, mode)); err != nil {
			t.Fatal(err)
		}
		s, err := secret.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := same.Unseal(about, seal(t, s, about, value)); err != nil || s.Path() != credential {
			t.Errorf("%#o: the key of %s: %v", mode, s.Path(), err)
		}
	}
	for _, mode := range []fs.FileMode{0o444, 0o460, 0o402} {
		if err := os.Chmod(credential, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := secret.Open(path); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%#o: %v", mode, err)
		}
	}
	if err := errors.Join(os.Remove(credential), os.Symlink("nowhere", credential)); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.Open(path); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key was made beside the credential: %v", err)
	}
}
