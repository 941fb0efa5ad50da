package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
)

// configFile reads a file of the ssh configuration. One that a user other than root and the caller may write is an error, as
// for OpenSSH: it would choose where a step runs.
func configFile(name string) (File, error) {
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, fmt.Errorf("cannot read %s: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return File{}, fmt.Errorf("cannot read the ssh configuration: %w", err)
	}
	owner := -1
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		owner = int(sys.Uid)
	}
	if owner != 0 && owner != os.Geteuid() || st.Mode().Perm()&0o022 != 0 {
		return File{}, fmt.Errorf("cannot use %s: other users may write it (uid %d, mode %04o); chown it or chmod 600 it: %w",
			name, owner, st.Mode().Perm(), errdefs.ErrFailedPrecondition)
	}
	b, err := readFile(name, maxConfig)
	return File{name, b}, err
}
