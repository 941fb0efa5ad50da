package daemon

import (
	"bufio"
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// giveBack has the kernel take the pages of the program out of the daemon that its start has mapped: nearly all are, as each page
// that is touched brings its neighbours. What is used again is mapped again, from the kernel's copy of the file. Where it fails they
// stay.
func giveBack() {
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	var from, to uintptr
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		line := lines.Bytes()
		var a, z uintptr
		var perms string
		switch n, _ := fmt.Sscanf(string(line), "%x-%x %s", &a, &z, &perms); {
		case n == 3:
			from, to = 0, 0
			if (perms == "r-xp" || perms == "r--p") && bytes.HasSuffix(line, []byte(" "+self)) {
				from, to = a, z
			}
		case to > from && bytes.HasPrefix(line, []byte("Anonymous:")):
			// What is not the file's is not there again.
			if f := bytes.Fields(line); len(f) == 3 && string(f[1]) == "0" {
				_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
			}
		}
	}
}
