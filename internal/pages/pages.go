// Package pages makes a process that waits small: it gives back the memory that it can have
// again without a loss.
//
// It must not touch what was written: only free heap and clean pages of the program's file go.
package pages

import (
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GiveBack returns free heap to the kernel and unmaps the pages of the program itself: most
// were needed to start, the rest come back from its file, or the sealed copy in memory that
// it was started from, by a minor fault each. It takes about a millisecond, and a collection.
// An error would concern memory alone, so there is none.
func GiveBack() {
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	// Last and together, as whatever runs in between brings pages back.
	for _, s := range own(string(maps), uint64(reflect.ValueOf(GiveBack).Pointer())) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(s.From), uintptr(s.To-s.From), unix.MADV_DONTNEED)
	}
}

type span struct{ From, To uint64 }

// own are the mappings of the file that code is mapped from, as proc_pid_maps(5) lists them,
// but for those that are written to.
func own(maps string, code uint64) (spans []span) {
	file := ""
	for range 2 { // the file is known when its code has been met
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
