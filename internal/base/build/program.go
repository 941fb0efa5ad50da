package build

import (
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Program names the process, for ps, top and the messages of the kernel: one that was executed by
// its descriptor, from sealed memory or below a closed directory, has the number of that for a
// name. It is called from an init function of main, which runs on the first thread, whose name
// that of the process is. Threads take theirs from the one that starts them; those that there
// are already are named as far as /proc is there. name has at most 15 bytes.
func Program(name string) {
	text, err := unix.BytePtrFromString(name)
	var now [16]byte // with its NUL: PR_GET_NAME(2const)
	if err != nil || unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&now)), 0, 0, 0) == nil && unix.ByteSliceToString(now[:]) == name {
		return // it names nothing, or was executed by this name
	}
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0) // a process without a name works too
	threads, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, t := range threads {
		_ = os.WriteFile(t, []byte(name), 0) // as above
	}
}
