package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sealed"
)

const archiverName = "carrel-archive"

// archiverPlaces are where the archiver is looked for: beside this program, then where
// packages put it.
func archiverPlaces() []string {
	var places []string
	if self, err := os.Executable(); err == nil {
		places = append(places, filepath.Join(filepath.Dir(self), archiverName))
	}
	return append(places, "/usr/libexec/carrel/"+archiverName)
}

// archiverProgram is the program that packs and unpacks inside a workspace, read and sealed when
// it is first needed. fd, if not negative, is where it was handed over open, for a
// daemon that could not open it.
func archiverProgram(fd int) func() (*os.File, error) {
	var given *os.File
	if fd >= 0 {
		unix.CloseOnExec(fd)
		given = os.NewFile(uintptr(fd), archiverName)
	}
	var mu sync.Mutex
	var kept *os.File
	load := func() error {
		src, err := given, error(nil)
		if src == nil {
			err = fmt.Errorf("it is in none of %v: %w", archiverPlaces(), errdefs.ErrFailedPrecondition)
			for _, p := range archiverPlaces() {
				if f, e := os.Open(p); e == nil {
					src, err = f, nil
					break
				}
			}
		}
		if err != nil {
			return err
		}
		defer src.Close()
		kept, err = sealed.Copy(src, archiverName)
		return err
	}
	return func() (*os.File, error) {
		mu.Lock()
		defer mu.Unlock()
		if kept == nil {
			if err := load(); err != nil {
				return nil, fmt.Errorf("cannot use the program %s: %w; install all of carrel's programs in one place and start the daemon again",
					archiverName, err)
			}
		}
		// One of its own for each user, who closes it.
		rc, err := kept.SyscallConn()
		if err != nil {
			return nil, err
		}
		n := -1
		cerr := rc.Control(func(fd uintptr) { n, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
		if err := errors.Join(cerr, err); err != nil {
			return nil, fmt.Errorf("cannot hand out the program %s: %w", archiverName, err)
		}
		return os.NewFile(uintptr(n), archiverName), nil
	}
}
