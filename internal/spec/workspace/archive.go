package workspace

import (
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Archive is an archived home, with everything needed to make the workspace again.
type Archive struct {
	ID        string
	Workspace id.Workspace
	Key       id.Key
	Owner     string
	Profile   string
	Limits    Limits
	// Life is what was left of its life, Reach what its commands might reach, and Models which models they might use. A
	// restore gives it all three.
	Life   Life
	Reach  Reach
	Models Models
	// SHA256 is the checksum of the file, in lower-case hexadecimal; Size is in bytes.
	SHA256 string
	Size   int64
	// Entries and Bytes are the size of its content.
	Entries, Bytes int64
	CreatedAt      time.Time
	// Expires is when it is removed, zero if it is kept without an end.
	Expires time.Time
}

// Progress is the progress of an archive or a restore.
type Progress struct{ Entries, Bytes int64 }

// ArchiveWanted describes a requested archive.
type ArchiveWanted struct {
	// Live archives while commands run; files that change meanwhile are archived as they are
	// read.
	Live bool
	// Destroy ends the workspace once its archive is safe.
	Destroy bool
	Request string
}

// RestoreWanted describes a requested restore.
type RestoreWanted struct {
	// From is the archive's id, or the key or name of its workspace; "" if the archive comes
	// with the request.
	From string
	// Key is the key of the new workspace; "" is the key in the archive.
	Key     id.Key
	Profile string
	Limits  Limits
	Life    Life
	Request string
}

// Validate reports the first field that cannot be used. The key was parsed before.
func (w *RestoreWanted) Validate() error {
	if err := w.Limits.OrDefault().Validate(); err != nil {
		return err
	}
	return ValidateLife(w.Life.TTL, w.Life.Idle, w.Request)
}
