package staged

import (
	"time"

	"golang.org/x/sys/unix"
)

// stamp tells one state of a file from every other one, as far as the kernel knows them.
type stamp struct {
	Dev   uint64   `json:"dev"`
	Ino   uint64   `json:"ino"`
	Mode  uint32   `json:"mode"` // with the type
	UID   uint32   `json:"uid"`
	GID   uint32   `json:"gid"`
	Nlink uint64   `json:"nlink"`
	Size  int64    `json:"size"`
	MTime [2]int64 `json:"mtime"` // seconds and nanoseconds
	CTime [2]int64 `json:"ctime"`
}

func stampOf(st *unix.Stat_t) stamp {
	ms, mn := st.Mtim.Unix()
	cs, cn := st.Ctim.Unix()
	return stamp{
		Dev: uint64(st.Dev), Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: st.Size,
		MTime: [2]int64{ms, mn}, CTime: [2]int64{cs, cn},
	}
}

func (s stamp) kind() uint32 { return s.Mode & unix.S_IFMT }

func (s stamp) isDir() bool { return s.kind() == unix.S_IFDIR }

func (s stamp) is(o stamp) bool { return s.Dev == o.Dev && s.Ino == o.Ino }

// unchanged reports whether two stamps are of the same state. A rename changes the time of change and nothing else, so
// renamed leaves that out; so it is for a file with several names, of which another one may be renamed by the same change. Of a
// directory the names in it are compared one by one, not by its times.
func (s stamp) unchanged(o stamp, renamed bool) bool {
	if !s.is(o) || s.Mode != o.Mode || s.UID != o.UID || s.GID != o.GID {
		return false
	}
	renamed = renamed || s.Nlink > 1
	return s.isDir() || s.Size == o.Size && s.MTime == o.MTime && (renamed || s.CTime == o.CTime)
}

// before reports whether content and state are older than a time.
func (s stamp) before(t time.Time) bool {
	old := func(v [2]int64) bool { return time.Unix(v[0], v[1]).Before(t) }
	return old(s.MTime) && old(s.CTime)
}

var types = map[uint32]Type{
	unix.S_IFREG: File, unix.S_IFDIR: Dir, unix.S_IFLNK: Symlink, unix.S_IFIFO: FIFO, unix.S_IFSOCK: Socket,
	unix.S_IFCHR: Device, unix.S_IFBLK: Device,
}

// special is the bits beside the permissions.
const special = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX

// entryOf is what a stamp says.
func entryOf(s stamp) Entry {
	e := Entry{Type: types[s.kind()], Mode: s.Mode & 0o7777, stamp: s}
	if e.Type == File {
		e.Size = s.Size
	}
	return e
}
