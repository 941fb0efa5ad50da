// Package sealed keeps a program in sealed memory, where nobody can change it. A process that is
// started from there runs exactly what was read, even if the file changes later, and cannot overwrite
// that file (CVE-2019-5736).
//
// It must not choose or check the program.
package sealed

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// attempts is how often a busy copy is sealed.
const attempts = 20

// Copy reads src to its end into a sealed memory file called name. The caller closes
// both.
func Copy(src io.Reader, name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3 have no MFD_EXEC
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot hold %s in memory: %w; if sysctl vm.memfd_noexec is 2, set it to 1 or 0", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot copy %s into memory: %w", name, err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	// EBUSY: another part of the kernel holds a page of it at this moment, and went on holding it for the 150 ms that
	// each attempt waits (memfd_wait_for_pins in mm/memfd.c).
	err = unix.EBUSY
	for try := 0; errors.Is(err, unix.EBUSY) && try < attempts; try++ {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot seal %s: %w", name, err)
	}
	return f, nil
}
