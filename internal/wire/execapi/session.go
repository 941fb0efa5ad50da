package execapi

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// CheckSession checks the name of a session: 1 to MaxSession lower-case letters, digits, '-' and '_', a letter or a digit
// first.
func CheckSession(name string) error {
	ok := name != "" && len(name) <= MaxSession && name[0] != '-' && name[0] != '_'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if !ok {
		return fmt.Errorf("cannot use session name %.40q: give 1 to %d lower-case letters, digits, '-' or '_', and a letter or digit first: %w",
			name, MaxSession, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Recording is the file of a recording, relative to the home: an asciinema v2 file.
func Recording(c id.Command) string { return RecordingDir + "/" + string(c) + ".cast" }

// RecordingDir is the directory of recordings, relative to the home.
const RecordingDir = ".carrel/recordings"
