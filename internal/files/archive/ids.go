package archive

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// fileIDVariable is sandbox.FileIDVariable.
const fileIDVariable = "CARREL_FILE_ID"

// TakeFileID sets the file system ids of every thread to the one that the environment names, if it
// names one, and gives up every capability. What the process reads and makes is then the commands' own,
// and its real, effective and saved ids, which decide who may signal and trace it, are not
// (credentials(7)). It comes before anything is read.
func TakeFileID() error {
	named, ok := os.LookupEnv(fileIDVariable)
	if !ok {
		return nil
	}
	id, err := strconv.ParseUint(named, 10, 31)
	if err != nil || id == 0 {
		return fmt.Errorf("cannot use %q as the id for files: %w", named, errdefs.ErrInvalidArgument)
	}
	// Both return the id before, and say nothing of a failure. In a build with cgo neither does anything.
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_SETFSGID, uintptr(id), 0, 0)
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_SETFSUID, uintptr(id), 0, 0)
	if group, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, ^uintptr(0), 0, 0); uint64(group) != id || uint64(fileID()) != id {
		return fmt.Errorf("cannot take id %d for files: the ids are %d and %d: %w", id, fileID(), group, errdefs.ErrPermissionDenied)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&none[0])), 0); e != 0 {
		return fmt.Errorf("cannot give up the capabilities: %w", e)
	}
	return nil
}

// fileID is the id by which the kernel judges what this process does with files.
func fileID() uint32 {
	id, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0) // sets nothing: there is no such id
	return uint32(id)
}
