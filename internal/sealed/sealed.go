// Package sealed holds a program in memory so that nobody can change it any more: what is
// started from there is what was read, whoever can write the file that it came from, and
// a process that runs it cannot overwrite that file (CVE-2019-5736).
//
// It must not choose or check what it is given.
package sealed

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Copy reads src to its end into a sealed memory file called name. The caller closes
// both.
func Copy(src io.Reader, name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3 do not know MFD_EXEC
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
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot seal %s: %w", name, err)
	}
	return f, nil
}
