package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Effects is what the broker does to the host. Every path in it is composed from the
// settings and a validated name. Each method may be repeated: it is no error if it has been done
// already, or if there is nothing to undo.
type Effects interface {
	// IDsFree reports whether none of ids is the id of a user or group of the host or
	// handed out by subuid or subgid.
	IDsFree(ids workspace.IDs) (bool, error)
	// NameFree is an error of kind already_exists if the host has a user or group name.
	NameFree(name id.Workspace) error
	// Home is where the home of name is.
	Home(name id.Workspace) string
	// AddUser makes user and group and sees that they are exactly as asked.
	AddUser(ctx context.Context, name id.Workspace, ids workspace.IDs) error
	// RemoveUser removes the user and group that AddUser made, and no others.
	RemoveUser(ctx context.Context, name id.Workspace, ids workspace.IDs) error
	// Whole reports whether user and directories of a workspace are all there, as a create leaves them.
	Whole(e Entry) bool
	// Found lists the workspaces that the user database shows, with what can be learnt from the host, and
	// the highest id that a home or a kept home has.
	Found() (all []Entry, spent uint32, err error)
	// MakeDirs makes the home and the private temporary directories.
	MakeDirs(name id.Workspace, ids workspace.IDs) error
	// HoldsDisk reports what this host lacks for a limit on disk space.
	HoldsDisk() error
	// GrowsDisk reports what it lacks to raise one.
	GrowsDisk() error
	// MakeImage makes the file system that a workspace with such a limit lies in.
	MakeImage(ctx context.Context, name id.Workspace, ids workspace.IDs, limit int64) error
	// UnmakeDirs removes what MakeDirs and MakeImage made, as long as nothing has been put there.
	UnmakeDirs(ctx context.Context, name id.Workspace, ids workspace.IDs) error
	// KeepHome moves the home, or the image, to where only root can read it, and returns where.
	KeepHome(name id.Workspace, ids workspace.IDs) (string, error)
	// TakeHome moves back what KeepHome kept, and makes the temporary directories.
	TakeHome(name id.Workspace, ids workspace.IDs) error
	// HomeEmpty reports whether nothing has been put into the home. A home in an image counts as
	// not empty.
	HomeEmpty(name id.Workspace, ids workspace.IDs) (bool, error)
	// ForgetHome removes what KeepHome kept. It, PurgeHome and RemoveTemporary fail with kind
	// unavailable when ctx ends first, and have removed a part then.
	ForgetHome(ctx context.Context, name id.Workspace, ids workspace.IDs) error
	// PurgeHome removes the home, the image and all that is in it.
	PurgeHome(ctx context.Context, name id.Workspace, ids workspace.IDs) error
	// RemoveTemporary removes the temporary directories and all that is in them, and the
	// link to the home.
	RemoveTemporary(ctx context.Context, name id.Workspace) error
	// Egress starts carrel-egress for a workspace that runs with a way out, and returns its control socket. The one
	// before has ended then.
	Egress(ctx context.Context, e Entry) (*os.File, error)
	// EndProcesses kills every process that has one of ids, and returns when /proc lists none.
	EndProcesses(ctx context.Context, ids workspace.IDs) error
	// HeldUp says which processes with one of ids the kernel cannot end at this moment, why,
	// and what to do; "" if there are none.
	HeldUp(ids workspace.IDs) string
	// InForce are the ids of a workspace that the ledger gave ids.
	InForce(ids workspace.IDs) workspace.IDs
	// TakeMounts reads a grant, once, and sees that it is about p.Mounts and that its caller may
	// open them.
	TakeMounts(ctx context.Context, p brokerapi.CreateParams, grant *os.File) ([]Mount, error)
	// Start starts an executor and returns when its isolation is proved. Its programs trust the certificate trust.
	Start(ctx context.Context, e Entry, trust string) (Running, workspace.Report, error)
	// Adopt finds the executor of an earlier broker; it is an error of kind not_found if
	// that process is no more.
	Adopt(e Entry) (Running, error)
	// Freeze freezes the commands of a running workspace, or thaws them. A freeze that fails
	// thaws them.
	Freeze(ctx context.Context, name id.Workspace, frozen bool) error
	// Limit puts other limits in force for a running workspace and into its proof; if it
	// fails the limits of e hold.
	Limit(e Entry, limits workspace.Limits) error
	// Stats reads what the commands of a running workspace use.
	Stats(e Entry) (workspace.Stats, error)
	// Reclaim gives back the memory that the kernel keeps for a workspace whose executor has ended, as far as
	// that takes no longer than an instant.
	Reclaim(ctx context.Context, name id.Workspace)
	// CleanUp ends what is left of a workspace's processes and removes its control
	// groups, socket and report, and what protected names in its project mounts.
	CleanUp(ctx context.Context, name id.Workspace) error
	// Report returns the proof that Start kept.
	Report(name id.Workspace) (workspace.Report, error)
	// Leftovers lists the names that have control groups, protected names, a socket or a
	// report, or a part of one.
	Leftovers() ([]id.Workspace, error)
	// Mended says what was put right when the host was opened.
	Mended() []workspace.Mended
	// Close closes descriptors; executors go on running.
	Close() error
}

// Running is an executor that was started or adopted.
type Running struct {
	Executor brokerapi.Executor
	// Exited is closed when the process has ended and has been waited for.
	Exited <-chan struct{}
	// Kill ends it; it is safe against reuse of the pid.
	Kill func() error
}

// Bounds of the steps, so that no request holds its workspace for ever.
const (
	startTimeout = 20 * time.Second
	stopTimeout  = 20 * time.Second
	// freezeTimeout bounds the wait for commands to stand still. One that the kernel cannot
	// interrupt, for a file system that does not answer, keeps the rest from counting as
	// frozen.
	freezeTimeout = 5 * time.Second
	// removeTimeout bounds an operation that removes a home, which can be large: what it has not
	// come to is left for the next such request.
	removeTimeout = 5 * time.Minute
	// At its start the broker waits for the processes of one workspace to end for at most
	// recoverTimeout, and recoverLeast once all together have taken recoverAll. What takes
	// longer is left for the next request or the next start.
	recoverTimeout = 5 * time.Second
	recoverLeast   = time.Second
	recoverAll     = 15 * time.Second
	// userTimeout bounds the wait for /etc/passwd, which others may have locked.
	userTimeout = 30 * time.Second
)

// each runs all steps of an undoing and joins their errors.
func each(steps ...func() error) error {
	var errs []error
	for _, s := range steps {
		errs = append(errs, s())
	}
	return errors.Join(errs...)
}

// alsoFailed adds the error of an undoing to the error that led to it.
func alsoFailed(err, undo error) error {
	if undo == nil {
		return err
	}
	return fmt.Errorf("%w; undoing it failed too: %w; the next start of the broker tries again", err, undo)
}
