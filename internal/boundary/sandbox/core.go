package sandbox

import (
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
)

// CoreLimit leaves no image of memory on disk, because none is so small. With exactly this soft limit the
// kernel starts no handler where core_pattern pipes to one, which is a process of the host's
// root for each crash; with 0 it does (coredump_pipe in fs/coredump.c).
const CoreLimit = 1

// checkCoreLimit tries to change that limit. A host whose hard limit is lower leaves nothing to try: the control is
// unavailable.
func checkCoreLimit(m *selfcheck.Memory) []check {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || core.Max < CoreLimit {
		return nil
	}
	_, zero := m.Buffer(16)
	return []check{
		keepsCoreLimit(m, "setrlimit", unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, zero),
		keepsCoreLimit(m, "prlimit64", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, zero, 0),
	}
}

func keepsCoreLimit(m *selfcheck.Memory, name string, nr uintptr, args ...uintptr) check {
	b, p := m.Buffer(16)
	c := try("core-dumps", "RLIMIT_CORE after "+name, nil, nr, args...).then(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, 0, p)
	c.judge = func(r selfcheck.Result) (bool, string) {
		soft := binary.NativeEndian.Uint64(b)
		return r.Ran && r.Errno == 0 && soft == CoreLimit, strconv.FormatUint(soft, 10)
	}
	return c
}
