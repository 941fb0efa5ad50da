package runtime

import (
	"context"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Hosts carry out commands on hosts. It is a process of the user who asked, with the rights, the keys and the files of that
// user: the daemon has none of them. It must not choose another target than it is told, and what it says of itself is
// believed as far as the user is.
type Hosts interface {
	// Local reports whether commands on this machine are carried out.
	Local() bool
	// Profile is the profile, as package hostrun names it, of commands on this machine that may change something.
	Profile() string
	// Remotes are the names of the remote hosts that there are.
	Remotes() []string
	// Place stands for where steps are carried out: the directory of those on this machine, and what the names of remote hosts mean. It
	// is another text for another place, and "" if that is not known.
	Place() string
	// As says as whom, on which machine and in which directory steps run, as a person reads it: of the remote host with that name, or
	// of this machine for "". It is "" if that is not known.
	As(remote string) string
	// RunOn carries out one command and returns when it has ended. If ctx ends, so does the command.
	RunOn(ctx context.Context, c HostCommand) (HostResult, error)
	// Patches reports whether changes to files on this machine are carried out.
	Patches() bool
	// RemotePatches reports whether changes to files on remote hosts are carried out.
	RemotePatches() bool
	// Patch computes a change to files on this machine or a remote host, or makes it.
	Patch(ctx context.Context, p HostPatch) (HostPatched, error)
}

// HostPatch is a change to files.
type HostPatch struct {
	// Remote is the remote host that they are on, "" for this machine.
	Remote string
	// Text is a unified diff, or in the apply_patch grammar. Modes are permission bits by paths of it.
	Text  string
	Modes map[string]uint32
	// Only are the paths of the text that are meant; none is all of it.
	Only []string
	// Digest is "" to compute what would be done. Else the change is made if that is exactly what it does.
	Digest string
}

// HostPatched is a change that was computed or made.
type HostPatched struct {
	// Digest covers everything that is done, and Diff shows it to a person.
	Digest, Diff string
	// Files are absolute paths, and Risks say why some need a second look.
	Files, Risks []string
	// Parts are what is done to each file, in the order of Diff. Without them the change is made as a whole or not.
	Parts []PatchPart
	// ID is what undoes a change that was made.
	ID string
	// Merged are paths of the patch: files that had changed since it was computed, but nothing that was shown of them. The change
	// was made to what they are now, and Made is the digest of that.
	Merged []string
	Made   string
}

// PatchPart is what a change does to one file.
type PatchPart struct {
	// Path is what the patch calls the file, of a move the old one.
	Path string
	// Digest covers what is done to it; operation.PatchDigest makes that of the change of them.
	Digest string
	// Shown is how many bytes of the diff show it.
	Shown int
	// Files are its absolute paths, of a move both, and Risks say why it needs a second look.
	Files, Risks []string
}

// HostCommand is one command on one host.
type HostCommand struct {
	// Remote: it is for the remote host Name. Otherwise it is for this machine, and Name is empty.
	Remote bool
	Name   string
	Argv   []string
	// ReadOnly: it must not be able to change anything, or must not be run.
	ReadOnly bool
	// Profile holds it on this machine, as a person was shown it; "" if nobody was. It is not run under another one.
	Profile string
	Timeout time.Duration
	// MaxOutput is in bytes for each stream.
	MaxOutput int
	// Path is the file or directory that it reads, "" if it is not for one. The command is run only if no part of Path is a
	// symbolic link and it is below what tools may read on that host.
	Path string
	// Job is not empty if the command is to run in the background, by this name: RunOn returns once it runs, with status 0.
	Job id.Command
	// Limits bound it on this machine.
	Limits HostLimits
}

// HostLimits bound the processes of a command together: their memory in bytes, and their number. 0 is as who runs it bounds
// them, -1 is no bound.
type HostLimits struct {
	Memory    int64
	Processes int
}

// HostResult is what became of a command on a host.
type HostResult struct {
	// Status is nil if it is not known how the command ended.
	Status         *execapi.Status
	Stdout, Stderr []byte
	// Lost are the bytes of output that were not kept.
	Lost int64
	// Held says what held the command, for people.
	Held string
	// Path is that of the command without symbolic links. If it is set, the command was not run, because its own has some.
	Path string
}
