package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// FileIDVariable is the environment variable that tells a program started by StartTrusted which id
// it has to use for files: the commands'. TakeFileID of package archive reads it.
const FileIDVariable = "CARREL_FILE_ID"

// StartTrusted runs start, which starts one program that works for carrel inside the workspace, on a
// thread that has the commands' limits and nothing else of theirs. The program keeps the executor's
// ids, so that commands can neither signal nor trace it nor open what it has open, and it keeps
// CAP_SETUID and CAP_SETGID over exec, to set its file system ids. It must give up both before it reads
// anything. An exec sets the saved and the file system id to the effective one, so that no choice of
// ids made before it would do.
func (s *Spec) StartTrusted(start func() error) error {
	return thread.Throwaway(func() error {
		for i, fd := range s.FDs.V1Tasks {
			if _, err := unix.Write(fd, []byte("0")); err != nil {
				return fmt.Errorf("cannot join the commands' group of %s: %w", s.Cgroup.V1[i], err)
			}
		}
		if err := raiseAmbient(unix.CAP_SETUID, unix.CAP_SETGID); err != nil {
			return err
		}
		return start()
	})
}

// raiseAmbient has what the calling thread starts keep capabilities that the thread has.
func raiseAmbient(caps ...int) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if _, _, e := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		return fmt.Errorf("cannot read the capabilities: %w", e)
	}
	for _, c := range caps {
		data[c/32].Inheritable |= 1 << (c % 32)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		return fmt.Errorf("cannot make capabilities inheritable: %w", e)
	}
	for _, c := range caps {
		if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0, 0); e != 0 {
			return fmt.Errorf("cannot keep capability %d over exec: %w", c, e)
		}
	}
	return nil
}
