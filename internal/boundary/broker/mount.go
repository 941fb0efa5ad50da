package broker

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Mount is a project mount in the ledger.
type Mount struct {
	workspace.Mount
	// Identity identifies the source as its caller opened it.
	Identity
	// StageIdentity identifies the stage of a staged copy likewise.
	StageIdentity *Identity `json:"stage_identity,omitempty"`
	// Held are the paths below a writable source that its caller wants read-only where there is something.
	Held []string `json:"held,omitempty"`
	// OwnerGID goes with OwnerUID: whose files the commands' are on the host.
	OwnerGID uint32 `json:"owner_gid"`
	// CallerUID and CallerGID asked for the mount. At each start the source is opened
	// with that user's rights.
	CallerUID uint32 `json:"caller_uid"`
	CallerGID uint32 `json:"caller_gid"`
}

// Identity distinguishes a directory from any other.
type Identity struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Born is when it was made, in nanoseconds since 1970; 0 where the file system does
	// not say.
	Born int64 `json:"born,omitempty"`
	// Boot is the boot in which Device was read: LVM, Btrfs and others renumber devices at
	// each boot.
	Boot string `json:"boot"`
}

// Is reports whether i and before identify the same directory.
func (i Identity) Is(before Identity) bool {
	if i.Inode != before.Inode || i.Born != before.Born {
		return false
	}
	return i.Device == before.Device || i.Boot != before.Boot && i.Born != 0
}

// Identify looks at an open directory in this boot of the host.
func Identify(dir *os.File, boot string) (i Identity, err error) {
	err = withFD(dir, func(fd int) error {
		var st unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return fmt.Errorf("it is not a directory: %w", errdefs.ErrInvalidArgument)
		}
		i = Identity{Device: unix.Mkdev(st.Dev_major, st.Dev_minor), Inode: st.Ino, Boot: boot}
		if st.Mask&unix.STATX_BTIME != 0 {
			i.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		}
		return nil
	})
	return i, err
}
