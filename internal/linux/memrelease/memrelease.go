// Package memrelease reduces the memory of an idle process: it gives back pages that can be restored.
//
// It must not touch written pages: only free heap and clean pages of the program's file are dropped.
package memrelease

import (
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GiveBack returns free heap to the kernel and drops the pages of the program itself. Most of them
// were needed only to start; the others come back from its file, or from the sealed copy in memory,
// by a minor fault each. It takes about a millisecond and a garbage collection. Errors are ignored,
// because they only cost memory.
func GiveBack() {
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	// Last and together, because any code in between brings pages back.
	for _, s := range own(string(maps), uint64(reflect.ValueOf(GiveBack).Pointer())) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(s.From), uintptr(s.To-s.From), unix.MADV_DONTNEED)
	}
}

type span struct{ From, To uint64 }

// own returns the mappings of the program's file (proc_pid_maps(5)) except writable ones.
func own(maps string, code uint64) (spans []span) {
	file := ""
	for range 2 { // the file is known once its code was found
		spans = nil
		for line := range strings.Lines(maps) {
			// 00400000-0056f000 r-xp 00000000 00:01 1025                /memfd:carrel-executor (deleted)
			f := strings.Fields(line)
			if len(f) < 6 {
				continue // of no file
			}
			from, to, _ := strings.Cut(f[0], "-")
			a, err1 := strconv.ParseUint(from, 16, 64)
			b, err2 := strconv.ParseUint(to, 16, 64)
			if err1 != nil || err2 != nil || a >= b {
				continue
			}
			id := f[3] + " " + f[4] // device and inode
			if a <= code && code < b {
				file = id
			}
			if id == file && strings.HasPrefix(f[1], "r") && f[1][1] != 'w' && f[1][3] == 'p' {
				spans = append(spans, span{a, b})
			}
		}
	}
	return spans
}
