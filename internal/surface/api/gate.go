// Package api serves carrel.v1. It translates between the wire and the gate and must
// not decide, record or carry out anything itself.
package api

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// Workspace is a workspace as a surface shows it.
type Workspace = workspace.Workspace

// Gate is what the surfaces need of the gate. ref is a key or a derived name. Every
// method authorises p first; a workspace that p may not reach is reported
// as permission_denied if it exists, and as not_found if not.
type Gate interface {
	// Hold returns a context for a request of a token, which ends, with a permission_denied error as
	// its cause, when the token does not reach any more what was asked for under it. release is for
	// the end of the request.
	Hold(ctx context.Context) (held context.Context, release func())

	// Create takes the grant of mounts, if any are wanted.
	Create(ctx context.Context, p principal.Principal, want workspace.Wanted, grant ...*os.File) (w Workspace, created bool, err error)
	Get(ctx context.Context, p principal.Principal, ref string) (Workspace, error)
	List(ctx context.Context, p principal.Principal) ([]Workspace, error)
	// Retained lists the homes that were kept of destroyed workspaces.
	Retained(ctx context.Context, p principal.Principal) ([]workspace.Retained, error)
	// Mended is what the broker put right at its start, for admins.
	Mended(ctx context.Context, p principal.Principal) ([]workspace.Mended, error)
	Start(ctx context.Context, p principal.Principal, ref string) (Workspace, error)
	Stop(ctx context.Context, p principal.Principal, ref string) (Workspace, error)
	Destroy(ctx context.Context, p principal.Principal, ref string, purge bool, request string) (retained string, err error)
	Revive(ctx context.Context, p principal.Principal, ref string) (Workspace, error)
	Pause(ctx context.Context, p principal.Principal, ref string) (Workspace, error)
	Resume(ctx context.Context, p principal.Principal, ref string) (Workspace, error)
	Update(ctx context.Context, p principal.Principal, ref string, c workspace.Change) (Workspace, error)
	// Connections returns what a workspace is connected to, and its newest connections with a number greater than after.
	Connections(ctx context.Context, p principal.Principal, ref string, after uint64) (workspace.Connections, error)
	// ExplainReach says what the network rules of a workspace say of hosts.
	ExplainReach(ctx context.Context, p principal.Principal, ref string, hosts []string) ([]workspace.ReachVerdict, error)
	// Stats of no refs is of all that run and p may reach.
	Stats(ctx context.Context, p principal.Principal, refs []string) ([]workspace.Usage, error)
	// Watch calls emit with what happens to refs, or to all that p may reach, until ctx
	// ends or the daemon stops; first, unless after is 0, with what is kept since then.
	Watch(ctx context.Context, p principal.Principal, refs []string, after int64, emit func(ev workspace.Event, lost int64) error) error

	// Archive keeps the home of a workspace, or writes its archive to out if that is not
	// nil. It ends with ctx.
	Archive(ctx context.Context, p principal.Principal, ref string, want workspace.ArchiveWanted, out io.Writer,
		progress func(workspace.Progress)) (workspace.Archive, error)
	// Restore makes a workspace from the archive that want names, or from in. Until it is
	// whole it ends with ctx.
	Restore(ctx context.Context, p principal.Principal, want workspace.RestoreWanted, in io.Reader,
		progress func(workspace.Progress)) (Workspace, error)
	ListArchives(ctx context.Context, p principal.Principal) ([]workspace.Archive, error)
	ReadArchive(ctx context.Context, p principal.Principal, ref string, out io.Writer) (workspace.Archive, error)
	RemoveArchive(ctx context.Context, p principal.Principal, ref string) error

	// OnFiles works on files of a workspace, which is started if it does not run. s.In is closed before it returns.
	OnFiles(ctx context.Context, p principal.Principal, ref string, r fileapi.Request, s fileapi.Streams) (fileapi.Result, error)

	// PublishPort keeps a port of a workspace's loopback open for p until release; held ends earlier, with the reason as its
	// cause, if the workspace stops. DialPort connects to one, until ctx ends.
	PublishPort(ctx context.Context, p principal.Principal, ref string, port int) (held context.Context, release func(), err error)
	DialPort(ctx context.Context, p principal.Principal, ref string, port int) (*portconn.Conn, error)

	// Run, Spawn and Detach start a stopped workspace first. e.ID is set by the gate.
	Run(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams) (id.Command, execapi.ExecResult, error)
	Spawn(
		ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool, fds ...*os.File,
	) (id.Command, runtime.Process, error)
	Detach(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool) (id.Command, error)
	// Explain says how a command would be judged, and runs nothing; assumed says that verified is not seen but
	// what it will be, because the workspace does not run.
	Explain(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams) (
		d rules.Decision, verified, assumed bool, err error)
	ListCommands(ctx context.Context, p principal.Principal, ref string) ([]execapi.Command, error)
	Output(
		ctx context.Context, p principal.Principal, ref string, o execapi.OutputParams, attach bool,
	) (execapi.OutputResult, []*os.File, error)
	// Wait returns how a command ended or, if cmd is empty, the state of a workspace that
	// does not run.
	Wait(ctx context.Context, p principal.Principal, ref string, cmd id.Command) (*execapi.Status, workspace.State, error)
	Signal(ctx context.Context, p principal.Principal, ref string, s execapi.StopTaskParams) error
	Resize(ctx context.Context, p principal.Principal, ref string, r execapi.ResizeParams) error

	// RunTask starts a task. The id of a task is its command's.
	RunTask(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, spec workspace.TaskSpec) (workspace.Task, error)
	// ServeHosts has h carry out the steps on hosts of an agent's task, until leave is called. over is closed when the task has ended.
	ServeHosts(ctx context.Context, p principal.Principal, ref string, task id.Command, h runtime.Hosts) (leave func(), over <-chan struct{},
		err error)
	ListTasks(ctx context.Context, p principal.Principal, ref string) ([]workspace.Task, error)
	Task(ctx context.Context, p principal.Principal, ref string, task id.Command) (workspace.Task, error)
	// StopTask returns when the task has ended.
	StopTask(ctx context.Context, p principal.Principal, ref string, task id.Command) (workspace.Task, error)
	// FollowTask calls emit with the messages after a number, and unless now is set with new ones until the task ends. lost
	// is how many before a message are not kept.
	FollowTask(ctx context.Context, p principal.Principal, ref string, task id.Command, after int64, now bool,
		emit func(m workspace.TaskMessage, lost int64) error) (workspace.Task, error)

	// Approvals and those after it are of questions that people answer. p sees their own and
	// what is about their workspaces, admins see all.
	Approvals(ctx context.Context, p principal.Principal, f approval.Filter) (list []approval.View, next string, err error)
	Approval(ctx context.Context, p principal.Principal, name id.Approval) (approval.View, error)
	// Answer: terminal is p's word that they are a person who has seen it at a terminal.
	// files are those of an answer of kind files.
	Answer(ctx context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string,
		terminal bool, files ...string) (approval.View, error)
	// WatchApprovals calls emit with what is pending, once with nil, and then with what
	// changes, until ctx ends.
	WatchApprovals(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error
	// AllowCommand lets commands of a shape pass unasked: in one workspace, in all of p's or in everybody's.
	AllowCommand(ctx context.Context, p principal.Principal, ref string, argv []string, everybody bool) (approval.Permission, error)
	Permissions(ctx context.Context, p principal.Principal, ref, thread string) ([]approval.Permission, error)
	RevokePermission(ctx context.Context, p principal.Principal, name id.Approval) error

	// ReloadPolicy reads the rules again, for admins. It returns the digests of those before
	// and now, and how many there are; an error leaves those before in force.
	ReloadPolicy(ctx context.Context, p principal.Principal) (was, now string, rules int, err error)

	// CreateToken makes a token that gives no more than p has, and returns its secret.
	CreateToken(ctx context.Context, p principal.Principal, want principal.Wanted) (principal.Issued, token.Secret, error)
	// ListTokens, Token and RevokeToken are about those that p may see; any other is not_found.
	ListTokens(ctx context.Context, p principal.Principal) ([]principal.Issued, error)
	Token(ctx context.Context, p principal.Principal, ref string) (principal.Issued, error)
	RevokeToken(ctx context.Context, p principal.Principal, ref string) (ended []string, err error)
	// Issued is the token with an id, for who holds it.
	Issued(ref token.ID) (principal.Issued, bool)
	// Now is the time that tokens are judged by.
	Now() time.Time

	// SetSecret keeps a secret for p's owner: want has its name, hosts and headers. RotateSecret gives it another value.
	SetSecret(ctx context.Context, p principal.Principal, want workspace.Secret, value redact.Value) (workspace.Secret, error)
	RotateSecret(ctx context.Context, p principal.Principal, name string, value redact.Value) (workspace.Secret, error)
	// ListSecrets returns those that p may see, without their values.
	ListSecrets(ctx context.Context, p principal.Principal) ([]workspace.Secret, error)
	// RemoveSecret removes one of owner's, "" for p's.
	RemoveSecret(ctx context.Context, p principal.Principal, owner, name string) error

	// ListModels returns the models of the host as p's owner may use them, and what all workspaces of that owner have used.
	ListModels(ctx context.Context, p principal.Principal) ([]workspace.ModelOffer, workspace.ModelUsage, error)
	// ModelUsage of no ref is of all that p reaches, with sums by owner.
	ModelUsage(ctx context.Context, p principal.Principal, ref string) ([]workspace.ModelUsage, error)

	// The audit log is for those who may read it.
	MayRead(ctx context.Context, p principal.Principal) error
	VerifyAudit(ctx context.Context, p principal.Principal) (AuditVerdict, error)
	// ShowAudit calls emit with raw lines in order, from sequence number from (or
	// the last n if n > 0), and goes on with new ones if follow until ctx ends. Only those that f names count.
	ShowAudit(ctx context.Context, p principal.Principal, from, n int64, follow bool, f AuditFilter, emit func(lines [][]byte) error) error
	// Checkpoint says how far the log is signed, and signs it first if asked to.
	Checkpoint(ctx context.Context, p principal.Principal, sign bool) (AuditState, error)
	// ProveAudit calls emit with records and their proofs, all by one checkpoint.
	ProveAudit(ctx context.Context, p principal.Principal, from, to int64, f AuditFilter, emit func([]checkpoint.Proof) error) error
}

// AuditFilter names records, and AuditState says how far they are signed.
type (
	AuditFilter = audit.Filter
	AuditState  = audit.CheckpointState
)

// AuditVerdict is what walking the chain found.
type AuditVerdict = audit.Finding
