// Package apitest holds Gate, a test double of the gate for the tests of the API,
// the SDK and the command line.
//
// It must not be imported by anything but tests: it authorises by ownership alone
// and runs commands as plain processes of the test, in no boundary at all.
package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Gate keeps everything in memory. The zero value is ready.
type Gate struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when audit grows
	archives []kept
	// files are by the name of the workspace, a zero byte and the path.
	files      map[string][]byte
	pending    []approval.View
	allowed    []approval.Permission
	workspaces []*entry
	audit      [][]byte
	last       execapi.ExecParams
	resized    execapi.ResizeParams

	held    map[*held]struct{}
	tokens  map[string]principal.Issued
	secrets []*secret
	refused []string
	logins  []string
	// TokensRevoked is told of tokens that were revoked, if it is not nil.
	TokensRevoked func(ids []string)

	// Port is where DialPort connects to, 0 for nowhere.
	Port int

	// Verdict is what VerifyAudit answers.
	Verdict api.AuditVerdict
	// AuditState is what Checkpoint answers, and Proofs what ProveAudit has.
	AuditState api.AuditState
	Proofs     []checkpoint.Proof
}

type entry struct {
	api.Workspace
	commands []*process
}

var _ api.Gate = (*Gate)(nil)

// Last returns the parameters of the newest command, and Resized of the newest
// resize.
func (g *Gate) Last() execapi.ExecParams {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// Resized returns the parameters of the newest resize.
func (g *Gate) Resized() execapi.ResizeParams {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resized
}

// Record appends a line to the audit log, as every action does.
func (g *Gate) Record(p principal.Principal, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record(p, what)
}

func (g *Gate) record(p principal.Principal, what string) {
	line, err := json.Marshal(map[string]any{
		"seq": len(g.audit) + 1, "type": "intent", "principal": p.String(),
		"action": map[string]string{"kind": what},
	})
	if err != nil {
		panic(err)
	}
	g.audit = append(g.audit, line)
	g.notify()
}

// RecordConnection appends a record of a connection of a workspace to the audit log. Fields and data are JSON members.
func (g *Gate) RecordConnection(workspace, fields, data string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	const line = `{"seq":%d,"time":"2026-01-02T03:04:05.678Z","type":"connection","workspace":%q,%s,"data":{%s}}`
	g.audit = append(g.audit, fmt.Appendf(nil, line, len(g.audit)+1, workspace, fields, data))
	g.notify()
}

// notify wakes whoever waits for a change. g.mu is held.
func (g *Gate) notify() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// wait returns a channel that is closed at the next change. g.mu is held.
func (g *Gate) wait() chan struct{} {
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

// Await waits until cond holds of the newest command's and resize's parameters.
func (g *Gate) Await(ctx context.Context, cond func(last execapi.ExecParams, resized execapi.ResizeParams) bool) error {
	for {
		g.mu.Lock()
		ok, changed := cond(g.last, g.resized), g.wait()
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *Gate) find(p principal.Principal, ref string) (*entry, error) {
	for _, d := range g.workspaces {
		if string(d.Key) != ref && string(d.Name) != ref {
			continue
		}
		if !p.MayReach(d.Owner, string(d.Key), string(d.Name)) {
			return nil, fmt.Errorf("cannot reach workspace %q: it belongs to %s: %w", ref, d.Owner, errdefs.ErrPermissionDenied)
		}
		return d, nil
	}
	return nil, fmt.Errorf("cannot find workspace %q: there is none with that key or name; \"carrel ls\" lists them: %w", ref,
		errdefs.ErrNotFound)
}

// Create implements api.Gate.
func (g *Gate) Create(_ context.Context, p principal.Principal, want workspace.Wanted, _ ...*os.File) (api.Workspace, bool, error) {
	if err := g.permit(p, operation.CreateWorkspace); err != nil {
		return api.Workspace{}, false, err
	}
	if _, err := operation.NewCreate(want); err != nil {
		return api.Workspace{}, false, err
	}
	key, limits, start := want.Key, want.Limits, !want.NoStart
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record(p, "workspace.create")
	if d, err := g.find(p, string(key)); err == nil || errdefs.IsPermissionDenied(err) {
		if err != nil {
			return api.Workspace{}, false, err
		}
		return d.Workspace, false, nil
	}
	name := id.Derive(id.DefaultPrefix, key, 0)
	k := workspace.New(key, p.Owner(), time.Unix(1_700_000_000, 0))
	k.Name, k.Limits, k.Profile, k.Idle, k.Phase = name, limits.OrDefault(), want.Profile, want.Idle, workspace.Settled
	k.Reach = want.Reach
	if want.TTL > 0 {
		k.Expires = k.CreatedAt.Add(want.TTL)
	}
	k.Models = workspace.Models{Uses: want.Models, Budget: want.ModelBudget}
	for _, name := range want.Secrets {
		k.Secrets.Uses = append(k.Secrets.Uses, workspace.SecretUse{Name: name, Placeholder: "placeholder-of-" + name})
	}
	var err error
	if k.Secrets, err = k.Secrets.WithFiles(want.SecretFiles); err != nil {
		return api.Workspace{}, false, err
	}
	d := &entry{Workspace: workspace.Join(k, workspace.Real{
		User: string(name), IDs: workspace.IDsFrom(uint32(1879048192 + 3*len(g.workspaces))),
		Home: "/var/lib/carrel/homes/" + string(name), State: workspace.StateStopped,
	})}
	d.Mounts, d.Egress = want.Mounts, want.Reach.Any()
	if start {
		d.run()
	}
	g.workspaces = append(g.workspaces, d)
	return d.Workspace, true, nil
}

func (d *entry) run() {
	d.State, d.ExecutorPID = workspace.StateRunning, 4711
	d.Controls = []workspace.Control{
		{ID: "user_namespace", Requested: true, Required: true, State: workspace.Verified, Evidence: "unshare: ENOSPC"},
		{ID: "disk", Requested: true, State: workspace.Unavailable, Evidence: "no quota", Remedy: "mount with prjquota"},
	}
}

// with runs f on the workspace that ref names.
func (g *Gate) with(p principal.Principal, ref, what string, f func(*entry) error) (api.Workspace, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, err := g.find(p, ref)
	if err != nil {
		g.record(p, "denied "+what)
		return api.Workspace{}, err
	}
	if what != "" {
		g.record(p, what)
	}
	err = f(d)
	return d.Workspace, err
}

// Get implements api.Gate.
func (g *Gate) Get(_ context.Context, p principal.Principal, ref string) (api.Workspace, error) {
	if err := g.permit(p, operation.InspectWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "", func(*entry) error { return nil })
}

// Retained implements api.Gate.
func (g *Gate) Retained(_ context.Context, p principal.Principal) ([]workspace.Retained, error) {
	if err := g.permit(p, operation.ListWorkspaces); err != nil {
		return nil, err
	}
	kept := []workspace.Retained{
		{
			Workspace: "ws-0000000a", Key: "gone", Owner: "uid:1000", Home: "/var/lib/carrel/retained/ws-0000000a.1879048192",
			DestroyedAtMS: 1_000_000, ExpiresMS: 2_593_000_000,
		},
		{
			Workspace: "ws-0000000b", Key: "of another", Owner: "uid:4711", Home: "/var/lib/carrel/retained/ws-0000000b.1879048195",
			DestroyedAtMS: 1_000_000,
		},
	}
	return slices.DeleteFunc(kept, func(r workspace.Retained) bool { return !p.MayReach(r.Owner) }), nil
}

// ReloadPolicy implements api.Gate.
func (g *Gate) ReloadPolicy(_ context.Context, p principal.Principal) (was, now string, rules int, err error) {
	if err := g.permit(p, operation.ReloadPolicy); err != nil {
		return "", "", 0, err
	}
	if !p.Admin && p.UID != 0 {
		return "", "", 0, fmt.Errorf("cannot reload the policy: %w", errdefs.ErrPermissionDenied)
	}
	return "sha256:0", "sha256:1", 2, nil
}

// Mended implements api.Gate.
func (g *Gate) Mended(_ context.Context, p principal.Principal) ([]workspace.Mended, error) {
	if err := g.permit(p, operation.Mended); err != nil {
		return nil, err
	}
	if err := administer(p); err != nil {
		return nil, err
	}
	return []workspace.Mended{{Kind: workspace.StartSwept, Workspace: "ws-0000000a", Done: "swept"}}, nil
}

// List implements api.Gate.
func (g *Gate) List(_ context.Context, p principal.Principal) ([]api.Workspace, error) {
	if err := g.permit(p, operation.ListWorkspaces); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []api.Workspace
	for _, d := range g.workspaces {
		if p.MayReach(d.Owner, string(d.Key), string(d.Name)) {
			out = append(out, d.Workspace)
		}
	}
	return out, nil
}

// Start implements api.Gate.
func (g *Gate) Start(_ context.Context, p principal.Principal, ref string) (api.Workspace, error) {
	if err := g.permit(p, operation.StartWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "workspace.start", func(d *entry) error { d.run(); return nil })
}

// Stop implements api.Gate.
func (g *Gate) Stop(_ context.Context, p principal.Principal, ref string) (api.Workspace, error) {
	if err := g.permit(p, operation.StopWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "workspace.stop", func(d *entry) error { d.stop(); return nil })
}

func (d *entry) stop() {
	d.State, d.ExecutorPID, d.Controls = workspace.StateStopped, 0, nil
	for _, c := range d.commands {
		c.Close()
	}
}

// Destroy implements api.Gate.
func (g *Gate) Destroy(_ context.Context, p principal.Principal, ref string, purge bool, _ string) (string, error) {
	if err := g.permit(p, operation.DestroyWorkspace); err != nil {
		return "", err
	}
	retained := ""
	_, err := g.with(p, ref, "workspace.destroy", func(d *entry) error {
		d.stop()
		g.workspaces = slices.DeleteFunc(g.workspaces, func(o *entry) bool { return o == d })
		if !purge {
			retained = "/var/lib/carrel/retained/" + string(d.Name)
		}
		return nil
	})
	return retained, err
}

// administer lets administrators pass, as the gate does.
func administer(p principal.Principal) error {
	if p.Can(principal.Audit) {
		return nil
	}
	return fmt.Errorf("cannot let %s read the audit log: it is for root and the members of the carrel group: %w", p,
		errdefs.ErrPermissionDenied)
}

// VerifyAudit implements api.Gate.
func (g *Gate) VerifyAudit(_ context.Context, p principal.Principal) (api.AuditVerdict, error) {
	if err := g.permit(p, operation.ReadAudit); err != nil {
		return api.AuditVerdict{}, err
	}
	if err := administer(p); err != nil {
		return api.AuditVerdict{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.Verdict
	v.Records = int64(len(g.audit))
	return v, nil
}

// Checkpoint implements api.Gate.
func (g *Gate) Checkpoint(_ context.Context, p principal.Principal, _ bool) (api.AuditState, error) {
	if err := g.permit(p, operation.ReadAudit); err != nil {
		return api.AuditState{}, err
	}
	return g.AuditState, administer(p)
}

// ProveAudit implements api.Gate with Proofs.
func (g *Gate) ProveAudit(_ context.Context, p principal.Principal, from, to int64, f api.AuditFilter,
	emit func([]checkpoint.Proof) error,
) error {
	if err := g.permit(p, operation.ReadAudit); err != nil {
		return err
	}
	if err := administer(p); err != nil {
		return err
	}
	for _, one := range g.Proofs {
		if seq := one.Index + 1; seq >= from && (to == 0 || seq <= to) && f.Match(one.Line) {
			if err := emit([]checkpoint.Proof{one}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ShowAudit implements api.Gate.
func (g *Gate) ShowAudit(ctx context.Context, p principal.Principal, from, n int64, follow bool, f api.AuditFilter,
	emit func([][]byte) error,
) error {
	if err := g.permit(p, operation.ReadAudit); err != nil {
		return err
	}
	if err := administer(p); err != nil {
		return err
	}
	next := max(int(from)-1, 0)
	for {
		g.mu.Lock()
		lines := g.audit[min(next, len(g.audit)):]
		changed := g.wait()
		g.mu.Unlock()
		next += len(lines)
		some := f.Lines(lines)
		if n > 0 { // of those that there are
			some, n = some[max(0, len(some)-int(n)):], 0
		}
		if len(some) > 0 {
			if err := emit(some); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Audited reports whether a line of the audit log contains text.
func (g *Gate) Audited(text string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.audit, func(l []byte) bool { return strings.Contains(string(l), text) })
}

// Idle waits until no command runs.
func (g *Gate) Idle(ctx context.Context) error {
	g.mu.Lock()
	var all []*process
	for _, d := range g.workspaces {
		all = append(all, d.commands...)
	}
	g.mu.Unlock()
	for _, c := range all {
		if _, err := c.Wait(ctx); err != nil {
			return fmt.Errorf("cannot see %q end: %w", c.params.Argv, err)
		}
	}
	return nil
}

// Close ends every command.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.workspaces {
		d.stop()
	}
}
