package launch

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// leastFiles is what programs count on: it is the soft limit that hosts give. Nothing is lowered below it.
const leastFiles = 1024

// shareFiles lowers the limit of open files so that the processes of one workspace together leave half of
// those that the host can have open (fs.file-max), which the kernel counts in one sum for everybody. It
// returns what to report, nil if nothing was lowered.
func shareFiles(l *workspace.Limits, fileMax uint64) *sandbox.Finding {
	share := max(fileMax/2/uint64(max(l.Pids, 1)), leastFiles)
	if uint64(l.OpenFiles) <= share {
		return nil
	}
	f := &sandbox.Finding{Control: "process-limits", OK: true, Evidence: fmt.Sprintf(
		"outside: open files lowered from %d to %d, so that %d processes leave half of fs.file-max, %d", l.OpenFiles, share, l.Pids, fileMax,
	)}
	l.OpenFiles = int64(share)
	return f
}

// fileMax reads how many files the host can have open. A host that does not say is not bounded by it.
func fileMax() uint64 {
	text, err := readFile("/proc/sys/fs/file-max")
	if err != nil {
		return 1 << 63
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 1 << 63
	}
	return n
}
