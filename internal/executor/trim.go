package executor

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// idleAfter is how long nothing must have run before memory is given back.
const idleAfter = 3 * time.Second

// rest gives memory back once the workspace is idle. It is called when a command ended.
func (e *Executor) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle == nil {
		e.idle = time.AfterFunc(idleAfter, e.trim)
		return
	}
	e.idle.Reset(idleAfter)
}

func (e *Executor) trim() {
	e.mu.Lock()
	busy := false
	for _, c := range e.commands {
		select {
		case <-c.done:
		default:
			busy = true
		}
	}
	e.mu.Unlock()
	if !busy {
		giveBack()
	}
}

// giveBack returns free heap to the kernel and unmaps the pages of our own binary: most
// were needed by the first stage or for one command, the rest come back from the sealed
// memfd, which stays in memory anyway, or from the file, by a minor fault each.
func giveBack() {
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return // only memory is at stake
	}
	var spans [][2]uintptr
	for line := range strings.Lines(string(maps)) {
		// 00400000-0056f000 r-xp 00000000 00:01 1025 /memfd:carrel-executor (deleted)
		span, rest, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(rest, "r") || rest[1] == 'w' || !strings.Contains(rest, "carrel-executor") {
			continue // written pages are ours alone and would be lost
		}
		from, to, _ := strings.Cut(span, "-")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil && a < b {
			spans = append(spans, [2]uintptr{uintptr(a), uintptr(b - a)})
		}
	}
	// Last and together, as whatever runs in between brings pages back.
	for _, s := range spans {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, s[0], s[1], unix.MADV_DONTNEED) // only memory is at stake
	}
}
