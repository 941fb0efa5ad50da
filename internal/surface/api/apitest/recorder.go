package apitest

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Recorder is a gate that notes what it is asked for and refuses it, so that a request has no effect
// and one answer. Tokens are those of the Gate in it.
type Recorder struct {
	*Gate

	mu    sync.Mutex
	calls []Call
}

// Call is one call of a gate. Its arguments are those that a request decides: not the context and the
// principal, and of what carries data only whether it is there. Descriptors are counted.
type Call struct {
	Method string
	Args   []any
}

var _ api.Gate = (*Recorder)(nil)

// Take returns the calls since the last Take.
func (r *Recorder) Take() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// note notes a call. Its error is the answer.
func (r *Recorder) note(method string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, Call{Method: method, Args: args})
	return fmt.Errorf("cannot carry out %s: it is only noted: %w", method, errdefs.ErrAborted)
}

// Create implements api.Gate.
func (r *Recorder) Create(
	_ context.Context, _ principal.Principal, want workspace.Wanted, grant ...*os.File,
) (api.Workspace, bool, error) {
	return api.Workspace{}, false, r.note("Create", want, len(grant))
}

// Get implements api.Gate.
func (r *Recorder) Get(_ context.Context, _ principal.Principal, ref string) (api.Workspace, error) {
	return api.Workspace{}, r.note("Get", ref)
}

// List implements api.Gate. It has an answer, because more may be asked for with the same request.
func (r *Recorder) List(context.Context, principal.Principal) ([]api.Workspace, error) {
	_ = r.note("List")
	return nil, nil
}

// Retained implements api.Gate.
func (r *Recorder) Retained(_ context.Context, _ principal.Principal) ([]workspace.Retained, error) {
	return nil, r.note("Retained")
}

// Mended implements api.Gate.
func (r *Recorder) Mended(_ context.Context, _ principal.Principal) ([]workspace.Mended, error) {
	return nil, r.note("Mended")
}

// Start implements api.Gate.
func (r *Recorder) Start(_ context.Context, _ principal.Principal, ref string) (api.Workspace, error) {
	return api.Workspace{}, r.note("Start", ref)
}

// Stop implements api.Gate.
func (r *Recorder) Stop(_ context.Context, _ principal.Principal, ref string) (api.Workspace, error) {
	return api.Workspace{}, r.note("Stop", ref)
}

// Destroy implements api.Gate.
func (r *Recorder) Destroy(_ context.Context, _ principal.Principal, ref string, purge bool, request string) (string, error) {
	return "", r.note("Destroy", ref, purge, request)
}

// Revive implements api.Gate.
func (r *Recorder) Revive(_ context.Context, _ principal.Principal, ref string) (api.Workspace, error) {
	return api.Workspace{}, r.note("Revive", ref)
}

// Pause implements api.Gate.
func (r *Recorder) Pause(_ context.Context, _ principal.Principal, ref string) (api.Workspace, error) {
	return api.Workspace{}, r.note("Pause", ref)
}

// Resume implements api.Gate.
func (r *Recorder) Resume(_ context.Context, _ principal.Principal, ref string) (api.Workspace, error) {
	return api.Workspace{}, r.note("Resume", ref)
}

// Update implements api.Gate.
func (r *Recorder) Update(_ context.Context, _ principal.Principal, ref string, c workspace.Change) (api.Workspace, error) {
	return api.Workspace{}, r.note("Update", ref, c)
}

// Connections implements api.Gate.
func (r *Recorder) Connections(_ context.Context, _ principal.Principal, ref string, after uint64) (workspace.Connections, error) {
	return workspace.Connections{}, r.note("Connections", ref, after)
}

// ExplainReach implements api.Gate.
func (r *Recorder) ExplainReach(_ context.Context, _ principal.Principal, ref string, hosts []string) ([]workspace.ReachVerdict, error) {
	return nil, r.note("ExplainReach", ref, hosts)
}

// Stats implements api.Gate.
func (r *Recorder) Stats(_ context.Context, _ principal.Principal, refs []string) ([]workspace.Usage, error) {
	return nil, r.note("Stats", slices.Clone(refs))
}

// Watch implements api.Gate.
func (r *Recorder) Watch(
	_ context.Context, _ principal.Principal, refs []string, after int64, _ func(workspace.Event, int64) error,
) error {
	return r.note("Watch", slices.Clone(refs), after)
}

// Archive implements api.Gate.
func (r *Recorder) Archive(
	_ context.Context, _ principal.Principal, ref string, want workspace.ArchiveWanted, out io.Writer, _ func(workspace.Progress),
) (workspace.Archive, error) {
	return workspace.Archive{}, r.note("Archive", ref, want, out != nil)
}

// Restore implements api.Gate.
func (r *Recorder) Restore(
	_ context.Context, _ principal.Principal, want workspace.RestoreWanted, in io.Reader, _ func(workspace.Progress),
) (api.Workspace, error) {
	return api.Workspace{}, r.note("Restore", want, in != nil)
}

// ListArchives implements api.Gate.
func (r *Recorder) ListArchives(_ context.Context, _ principal.Principal) ([]workspace.Archive, error) {
	return nil, r.note("ListArchives")
}

// ReadArchive implements api.Gate.
func (r *Recorder) ReadArchive(_ context.Context, _ principal.Principal, ref string, _ io.Writer) (workspace.Archive, error) {
	return workspace.Archive{}, r.note("ReadArchive", ref)
}

// RemoveArchive implements api.Gate.
func (r *Recorder) RemoveArchive(_ context.Context, _ principal.Principal, ref string) error {
	return r.note("RemoveArchive", ref)
}

// Run implements api.Gate.
func (r *Recorder) Run(
	_ context.Context, _ principal.Principal, ref string, e execapi.ExecParams,
) (id.Command, execapi.ExecResult, error) {
	return "", execapi.ExecResult{}, r.note("Run", ref, e)
}

// Spawn implements api.Gate.
func (r *Recorder) Spawn(
	_ context.Context, _ principal.Principal, ref string, e execapi.ExecParams, tty bool, fds ...*os.File,
) (id.Command, runtime.Process, error) {
	return "", nil, r.note("Spawn", ref, e, tty, len(fds))
}

// Detach implements api.Gate.
func (r *Recorder) Detach(_ context.Context, _ principal.Principal, ref string, e execapi.ExecParams, tty bool) (id.Command, error) {
	return "", r.note("Detach", ref, e, tty)
}

// Explain implements api.Gate.
func (r *Recorder) Explain(
	_ context.Context, _ principal.Principal, ref string, e execapi.ExecParams,
) (rules.Decision, bool, bool, error) {
	return rules.Decision{}, false, false, r.note("Explain", ref, e)
}

// ListCommands implements api.Gate.
func (r *Recorder) ListCommands(_ context.Context, _ principal.Principal, ref string) ([]execapi.Command, error) {
	return nil, r.note("ListCommands", ref)
}

// Output implements api.Gate.
func (r *Recorder) Output(
	_ context.Context, _ principal.Principal, ref string, o execapi.OutputParams, attach bool,
) (execapi.OutputResult, []*os.File, error) {
	return execapi.OutputResult{}, nil, r.note("Output", ref, o, attach)
}

// Wait implements api.Gate.
func (r *Recorder) Wait(_ context.Context, _ principal.Principal, ref string, cmd id.Command) (*execapi.Status, workspace.State, error) {
	return nil, "", r.note("Wait", ref, cmd)
}

// Signal implements api.Gate.
func (r *Recorder) Signal(_ context.Context, _ principal.Principal, ref string, s execapi.StopTaskParams) error {
	return r.note("Signal", ref, s)
}

// Resize implements api.Gate.
func (r *Recorder) Resize(_ context.Context, _ principal.Principal, ref string, s execapi.ResizeParams) error {
	return r.note("Resize", ref, s)
}

// Approvals implements api.Gate.
func (r *Recorder) Approvals(_ context.Context, _ principal.Principal, f approval.Filter) ([]approval.View, string, error) {
	return nil, "", r.note("Approvals", f)
}

// Approval implements api.Gate.
func (r *Recorder) Approval(_ context.Context, _ principal.Principal, name id.Approval) (approval.View, error) {
	return approval.View{}, r.note("Approval", name)
}

// Answer implements api.Gate.
func (r *Recorder) Answer(
	_ context.Context, _ principal.Principal, name id.Approval, kind approval.Kind, reason string, terminal bool, files ...string,
) (approval.View, error) {
	return approval.View{}, r.note("Answer", name, kind, reason, terminal, files)
}

// WatchApprovals implements api.Gate.
func (r *Recorder) WatchApprovals(_ context.Context, _ principal.Principal, _ func(*approval.View) error) error {
	return r.note("WatchApprovals")
}

// Permissions implements api.Gate.
func (r *Recorder) Permissions(_ context.Context, _ principal.Principal, ref string, thread string) ([]approval.Permission, error) {
	return nil, r.note("Permissions", ref, thread)
}

// AllowCommand implements api.Gate.
func (r *Recorder) AllowCommand(
	_ context.Context, _ principal.Principal, ref string, argv []string, everybody bool,
) (approval.Permission, error) {
	return approval.Permission{}, r.note("AllowCommand", ref, argv, everybody)
}

// RevokePermission implements api.Gate.
func (r *Recorder) RevokePermission(_ context.Context, _ principal.Principal, name id.Approval) error {
	return r.note("RevokePermission", name)
}

// ReloadPolicy implements api.Gate.
func (r *Recorder) ReloadPolicy(_ context.Context, _ principal.Principal) (string, string, int, error) {
	return "", "", 0, r.note("ReloadPolicy")
}

// CreateToken implements api.Gate.
func (r *Recorder) CreateToken(_ context.Context, _ principal.Principal, want principal.Wanted) (principal.Issued, token.Secret, error) {
	return principal.Issued{}, token.Secret{}, r.note("CreateToken", want)
}

// ListTokens implements api.Gate.
func (r *Recorder) ListTokens(_ context.Context, _ principal.Principal) ([]principal.Issued, error) {
	return nil, r.note("ListTokens")
}

// Token implements api.Gate.
func (r *Recorder) Token(_ context.Context, _ principal.Principal, ref string) (principal.Issued, error) {
	return principal.Issued{}, r.note("Token", ref)
}

// RevokeToken implements api.Gate.
func (r *Recorder) RevokeToken(_ context.Context, _ principal.Principal, ref string) ([]string, error) {
	return nil, r.note("RevokeToken", ref)
}

// SetSecret implements api.Gate. The value is noted, so that it is seen to arrive.
func (r *Recorder) SetSecret(_ context.Context, _ principal.Principal, want workspace.Secret, v redact.Value) (workspace.Secret, error) {
	return want, r.note("SetSecret", want, v)
}

// RotateSecret implements api.Gate.
func (r *Recorder) RotateSecret(_ context.Context, _ principal.Principal, name string, v redact.Value) (workspace.Secret, error) {
	return workspace.Secret{}, r.note("RotateSecret", name, v)
}

// ListModels implements api.Gate.
func (r *Recorder) ListModels(context.Context, principal.Principal) ([]workspace.ModelOffer, workspace.ModelUsage, error) {
	return nil, workspace.ModelUsage{}, r.note("ListModels")
}

// ModelUsage implements api.Gate.
func (r *Recorder) ModelUsage(_ context.Context, _ principal.Principal, ref string) ([]workspace.ModelUsage, error) {
	return nil, r.note("ModelUsage", ref)
}

// RunTask implements api.Gate.
func (r *Recorder) RunTask(_ context.Context, _ principal.Principal, ref string, e execapi.ExecParams, spec workspace.TaskSpec) (
	workspace.Task, error,
) {
	return workspace.Task{}, r.note("RunTask", ref, e, spec)
}

// ServeHosts implements api.Gate.
func (r *Recorder) ServeHosts(_ context.Context, _ principal.Principal, ref string, task id.Command, h runtime.Hosts) (
	func(), <-chan struct{}, error,
) {
	return func() {}, nil, r.note("ServeHosts", ref, task, h.Local(), h.Profile(), h.Remotes(), h.Patches(), h.RemotePatches(), h.Place(),
		h.As(""), h.As("web-1"), h.As("web-2")) // the names that tests give to hosts
}

// ListTasks implements api.Gate.
func (r *Recorder) ListTasks(_ context.Context, _ principal.Principal, ref string) ([]workspace.Task, error) {
	return nil, r.note("ListTasks", ref)
}

// Task implements api.Gate.
func (r *Recorder) Task(_ context.Context, _ principal.Principal, ref string, task id.Command) (workspace.Task, error) {
	return workspace.Task{}, r.note("Task", ref, task)
}

// StopTask implements api.Gate.
func (r *Recorder) StopTask(_ context.Context, _ principal.Principal, ref string, task id.Command) (workspace.Task, error) {
	return workspace.Task{}, r.note("StopTask", ref, task)
}

// FollowTask implements api.Gate.
func (r *Recorder) FollowTask(_ context.Context, _ principal.Principal, ref string, task id.Command, after int64, now bool,
	_ func(workspace.TaskMessage, int64) error,
) (workspace.Task, error) {
	return workspace.Task{}, r.note("FollowTask", ref, task, after, now)
}

// ListSecrets implements api.Gate.
func (r *Recorder) ListSecrets(_ context.Context, _ principal.Principal) ([]workspace.Secret, error) {
	return nil, r.note("ListSecrets")
}

// RemoveSecret implements api.Gate.
func (r *Recorder) RemoveSecret(_ context.Context, _ principal.Principal, owner, name string) error {
	return r.note("RemoveSecret", owner, name)
}

// VerifyAudit implements api.Gate.
func (r *Recorder) VerifyAudit(_ context.Context, _ principal.Principal) (api.AuditVerdict, error) {
	return api.AuditVerdict{}, r.note("VerifyAudit")
}

// ShowAudit implements api.Gate.
func (r *Recorder) ShowAudit(
	_ context.Context, _ principal.Principal, from int64, n int64, follow bool, f api.AuditFilter, _ func([][]byte) error,
) error {
	return r.note("ShowAudit", from, n, follow, f)
}

// Checkpoint implements api.Gate.
func (r *Recorder) Checkpoint(_ context.Context, _ principal.Principal, sign bool) (api.AuditState, error) {
	return api.AuditState{}, r.note("Checkpoint", sign)
}

// ProveAudit implements api.Gate.
func (r *Recorder) ProveAudit(
	_ context.Context, _ principal.Principal, from int64, to int64, f api.AuditFilter, _ func([]checkpoint.Proof) error,
) error {
	return r.note("ProveAudit", from, to, f)
}
