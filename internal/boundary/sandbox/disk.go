package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// DiskPlaces are the directories inside to which a limit on disk space applies.
func DiskPlaces(s *Spec) []string { return []string{workspace.Home, "/tmp", "/var/tmp"} }

// checkDisk checks that what commands write lies in one file system no larger than the
// limit, and that it holds no more than its size. The space used for that is free again at
// once: its file has no name and ends with the child.
func (s *stage) checkDisk(m *selfcheck.Memory) []check {
	limit := s.spec.Limits.DiskBytes
	if limit == 0 {
		return nil
	}
	const past = "fallocate past the limit"
	list := []check{
		try(disk, past, []unix.Errno{unix.ENOSPC}, unix.SYS_OPENAT, atFDCWD, m.String(workspace.Home),
			unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600).
			then(unix.SYS_FALLOCATE, selfcheck.Last, 0, 0, uintptr(limit)+1),
	}
	var first *unix.Statfs_t
	for _, place := range DiskPlaces(s.spec) {
		b, p := m.Buffer(int(unsafe.Sizeof(unix.Statfs_t{})))
		fs := (*unix.Statfs_t)(unsafe.Pointer(&b[0]))
		if first == nil {
			first = fs
		}
		one := first
		c := try(disk, "", nil, unix.SYS_STATFS, m.String(place), p)
		c.judge = func(r selfcheck.Result) (bool, string) {
			size := int64(fs.Blocks) * fs.Bsize
			return r.Errno == 0 && size > 0 && size <= limit && fs.Fsid == one.Fsid,
				fmt.Sprintf("%s holds %d bytes of at most %d", place, size, limit)
		}
		list = append(list, c)
	}
	return list
}
