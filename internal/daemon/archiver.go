package daemon

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/sealed"
)

const archiverName = "carrel-archive"

// archiverProgram returns a function that opens the program that packs and unpacks inside a
// workspace. The program is read and sealed when it is first needed. fd, if not negative, is the
// program, open, for a daemon that could not open it itself.
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
			err = fmt.Errorf("it is in none of %v: %w", candidates(archiverName), errdefs.ErrFailedPrecondition)
			for _, p := range candidates(archiverName) {
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
		f, err := sealed.Copy(src, archiverName)
		if err != nil {
			return err
		}
		if err := alone(f); err != nil {
			f.Close()
			return err
		}
		// Who may run a program and not read it cannot open what its process has open, or trace
		// it, from its first instruction on: see would_dump in the kernel's fs/exec.c.
		if err := f.Chmod(0o111); err != nil {
			f.Close()
			return err
		}
		kept = f
		return nil
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
		// Each caller gets a descriptor of its own and closes it.
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

// alone checks that a program was built without cgo: one with it cannot give up the rights of all its threads (see
// syscall.AllThreadsSyscall), and would end without a word.
func alone(program io.ReaderAt) error {
	f, err := elf.NewFile(program)
	if err != nil {
		return fmt.Errorf("it is no program for Linux: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("it needs libraries of the host, as a build with cgo does; build all programs with CGO_ENABLED=0, "+
				"as \"make build\" does: %w", errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
