package workspace

import (
	"time"

	"github.com/carrel-dev/carrel/internal/id"
)

// Archive is a home that was put away, with what it takes to make the workspace again.
type Archive struct {
	ID        string
	Workspace id.Workspace
	Key       id.Key
	Owner     string
	Profile   string
	Limits    Limits
	// SHA256 is that of the file, in lower-case hexadecimal; Size is in bytes.
	SHA256 string
	Size   int64
	// Entries and Bytes are what is in it.
	Entries, Bytes int64
	CreatedAt      time.Time
}

// Progress is how far an archive or a restore has come.
type Progress struct{ Entries, Bytes int64 }

// ArchiveWanted is how a home is to be put away.
type ArchiveWanted struct {
	// Live archives while commands run; files that change meanwhile are taken as they
	// are read.
	Live bool
	// Destroy ends the workspace once its archive is safe.
	Destroy bool
	Request string
}

// RestoreWanted is what an archive is to become.
type RestoreWanted struct {
	// From is the archive's id, or the key or name of the workspace that it is of; ""
	// where the archive comes with the request.
	From string
	// Key is the new workspace's; "" is that of the archive.
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
