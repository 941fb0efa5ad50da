package secret

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"filippo.io/age"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

const (
	// Credential is what a key that systemd hands over is called, with LoadCredential= or LoadCredentialEncrypted=
	// (systemd.exec(5)).
	Credential = "carrel-secrets-key"
	// credentialsEnv names the directory where systemd puts it.
	credentialsEnv = "CREDENTIALS_DIRECTORY"
	// maxKey bounds a file with a key, in bytes. One that Open makes has less than 300.
	maxKey = 4 << 10
	// tempMark is in the name of a key that is being made.
	tempMark = ".new-"
)

// KeyPath is the file that Open takes the key from: the credential of systemd, if there is one, or else path.
func KeyPath(path string) string {
	if dir := os.Getenv(credentialsEnv); filepath.IsAbs(dir) {
		credential := filepath.Join(dir, Credential)
		if _, err := os.Lstat(credential); !errors.Is(err, fs.ErrNotExist) { // one that cannot be looked at is not ignored
			return credential
		}
	}
	return path
}

// Open returns a Sealer with the key at path, an absolute path, which it makes if there is none: a file in the form of
// age-keygen(1), with mode 0600. Whoever opens a path at the same time gets the same key, and a crash leaves either no
// key or a whole one.
//
// If systemd hands over a credential of the name Credential, that is the key, and path is not looked at.
//
// Refused, as failed_precondition, is a file that others can read or write, that is not this user's, that is a symbolic
// link or no regular file, or that holds no whole key.
func Open(path string) (*Sealer, error) {
	if at := KeyPath(path); at != path {
		return read(at, true)
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot open the key of the secrets %q: its path must be absolute: %w", path, errdefs.ErrInvalidArgument)
	}
	for {
		s, err := read(path, false)
		if errors.Is(err, fs.ErrNotExist) {
			if err = create(path); err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, errRemoved) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		// Also if another process made it: what is sealed with it must not be durable before it is.
		return s, settle(path)
	}
}

// read reads a key. credential says that systemd put it there.
func read(path string, credential bool) (*Sealer, error) {
	f, err := untrustedfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key of the secrets: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read the key of the secrets in %s: %w", path, err)
	}
	refuse := func(format string, v ...any) (*Sealer, error) {
		return nil, fmt.Errorf("cannot use the key of the secrets in %s: "+format+": %w",
			append(append([]any{path}, v...), errdefs.ErrFailedPrecondition)...)
	}
	mode, me, owner := fi.Mode().Perm(), uint32(os.Geteuid()), fi.Sys().(*syscall.Stat_t).Uid
	// Root makes credentials, and lets the service read one by an access control list, whose mask stands where the
	// mode has the group.
	open, ofOther := mode&0o077 != 0, owner != me
	if credential {
		open, ofOther = mode&0o027 != 0, owner != me && owner != 0
	}
	switch {
	case ofOther:
		return refuse("it belongs to uid %d, and this process runs as uid %d; see who put it there, and chown it", owner, me)
	case open:
		return refuse("others can read or write it (mode %#o); if nobody did: chmod 600 %s; otherwise make another key and store the "+
			"secrets anew", mode, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	defer clear(b)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key of the secrets in %s: %w", path, err)
	}
	key, ok := parse(b)
	if !ok {
		return refuse("it holds no whole key; put it back from a backup, or move it away and store the secrets anew")
	}
	return &Sealer{of: &identity{key: key, path: path}}, nil
}

// parse reads a key: one line, beside empty ones and comments.
func parse(b []byte) (*age.X25519Identity, bool) {
	if len(b) > maxKey {
		return nil, false
	}
	var key *age.X25519Identity
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		next, err := age.ParseX25519Identity(line) // its error quotes the key
		if err != nil || key != nil {
			return nil, false
		}
		key = next
	}
	return key, key != nil
}

// errRemoved is why a key that was made could not be given its name.
var errRemoved = errors.New("another process that opened the key has removed it")

// create makes a key at path. ErrExist: somebody else was faster.
func create(path string) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, errRemoved) {
			err = fmt.Errorf("cannot make the key of the secrets: %w", err)
		}
	}()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tempMark+"*") // O_EXCL and 0600
	if err != nil {
		return err
	}
	temp := f.Name()
	_, err = fmt.Fprintf(f, "# The key of the secrets that carrel keeps. Back it up apart from them: they cannot be read without it.\n%s\n",
		key)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	crashpoint.Here("daemon.up.secrets-key-written")
	// A link replaces no key, unlike a rename.
	err = os.Link(temp, path)
	if errors.Is(err, fs.ErrNotExist) { // settle of another process
		return errRemoved
	}
	if err == nil {
		crashpoint.Here("daemon.up.secrets-key-linked")
	}
	if rerr := os.Remove(temp); err == nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = rerr
	}
	return err
}

// settle removes what processes left that ended while they made a key, and makes the name of the key durable.
func settle(path string) error {
	in := filepath.Dir(path)
	dir, err := os.Open(in)
	if errors.Is(err, fs.ErrPermission) {
		return nil // an administrator put the key there; this process makes no file beside it
	}
	if err != nil {
		return fmt.Errorf("cannot open the directory of the key of the secrets: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("cannot read the directory of the key of the secrets: %w", err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, filepath.Base(path)+tempMark) {
			continue
		}
		if err := os.Remove(filepath.Join(in, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove what is left of a key that was being made: %w; remove it", err)
		}
	}
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("cannot sync the directory of the key of the secrets: %w", err)
	}
	return nil
}
