// Package compose puts the gate and the packages around it together, for the daemon. A Flow has
// every operation that a surface can ask for as a method; each of them passes the gate.
//
// It must not hold logic of its own beyond the order of starting and stopping.
package compose

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/agent/turns"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways/bindings"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/service/approvals"
	"github.com/carrel-dev/carrel/internal/service/archiver"
	"github.com/carrel-dev/carrel/internal/service/archives"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/service/commands"
	"github.com/carrel-dev/carrel/internal/service/events"
	"github.com/carrel-dev/carrel/internal/service/filerun"
	"github.com/carrel-dev/carrel/internal/service/files"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/service/models"
	"github.com/carrel-dev/carrel/internal/service/ports"
	"github.com/carrel-dev/carrel/internal/service/secrets"
	"github.com/carrel-dev/carrel/internal/service/tokens"
	"github.com/carrel-dev/carrel/internal/service/upkeep"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/archivestore"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/secret"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Config holds the dependencies of New. Runtimes, Store, Audit, Prefix, Limits and Log are
// required.
type Config struct {
	Runtimes runtime.ByBoundary
	Store    *store.Store
	Audit    *audit.Log
	// Prefix, Limits, Idle, Allow, Profiles and Admission are for package lifecycle.
	Prefix    string
	Limits    workspace.Limits
	Idle      time.Duration
	Allow     []workspace.Opening
	Profiles  map[string]lifecycle.Profile
	Admission lifecycle.Admission
	// Network reads what holds for the network of all workspaces again, when the policy has been. Optional.
	Network func() error
	// Ways are the ways out of what runs. Optional.
	Ways lifecycle.Ways
	// Close calls these, both optional, before it writes the last record. Requests returns when no surface is at work on a
	// request, or ctx has ended. CutWays ends the ways out, and returns when their connections are recorded.
	Requests func(ctx context.Context)
	CutWays  func()
	// Keeps says how a workspace is kept that has lived its time, as lifecycle.Config has it. Optional.
	Keeps func(ctx context.Context, name id.Workspace) (workspace.State, error)
	// Models is what holds for the models of the host at that time. Optional: without it no workspace uses one. ModelClock
	// is the clock of their budgets, for tests. ModelCounted is told of each request: see package models.
	Models       func() *conf.Config
	ModelClock   func() time.Time
	ModelCounted func(endpoint string, refused bool, tokens int64)
	// Files keeps archives. Archiver returns the program that makes and unpacks them, and Unpacking
	// bounds those that were not made here.
	Files     *archivestore.Store
	Archiver  func() (*os.File, error)
	Unpacking archiver.Limits
	// MaxArchives and ArchiveBytes are what one owner may have in Files, 0 without a bound.
	MaxArchives  int
	ArchiveBytes int64
	// KeepArchives and KeepHomes are how long archives and homes of destroyed workspaces are
	// kept, 0 without an end.
	KeepArchives, KeepHomes time.Duration
	// Redact takes secrets out of records and events. Optional.
	Redact *redact.Redactor
	// Checkpoints sign Audit, every CheckpointEvery if there is something new, and after so
	// many records. Optional; they stay the caller's.
	Checkpoints       *audit.Checkpoints
	CheckpointEvery   time.Duration
	CheckpointRecords int64
	// RecordBudget is how much one owner may have recorded. Optional.
	RecordBudget gate.Budget
	// Disk knows whether the file system of Store and Audit is full. Optional.
	Disk *diskreserve.Gauge
	// KeepAudit says how long full files of Audit are kept once they are signed.
	KeepAudit audit.Keep
	// Observe hears of each passage when it is over, and must not block. Optional.
	Observe func(*gate.Passage)
	// Sealer seals the secrets in Store. Required by the operations on secrets.
	Sealer *secret.Sealer
	// SecretsChanged is told which secret of an owner was just stored, got another value or was removed, once that is in
	// force. Optional.
	SecretsChanged func(ctx context.Context, owner, name string)
	// TokensRevoked is told which tokens were just revoked. Optional.
	TokensRevoked func(ids []string)
	// FilePatience is for package files; 0 is its default.
	FilePatience time.Duration
	// PortIdle and PortLinger are for package ports; 0 is its default.
	PortIdle, PortLinger time.Duration
	// Version is what the log's lifecycle records say.
	Version string
	// Policy reads the rules that operations are judged by; nil is the built-in ones alone.
	Policy func() (*rules.Engine, error)
	// Runbooks are those that agents are told of. Optional.
	Runbooks func() []*runbooks.Runbook
	// StepLimits bound an agent's steps on the machine of who asked.
	StepLimits runtime.HostLimits
	// ApprovalWait is how long an operation waits for a person's answer, 0 for the default.
	ApprovalWait time.Duration
	// SeparateApprovals: nobody approves what they asked for themselves.
	SeparateApprovals bool
	// ApprovalClock is for tests of a clock that steps.
	ApprovalClock approvals.Clock
	// Tools are those of the programs of tasks. Optional.
	Tools tasks.Tools
	// TaskPatience is for tests of tasks.
	TaskPatience tasks.Patience
	Log          *slog.Logger
}

// forAdministrators: of the room that the record has on a full disk, one part in so many is theirs alone.
const forAdministrators = 4

// Flow is everything that can be asked of a daemon.
type Flow struct {
	*lifecycle.Lifecycle
	*archives.Archives
	*commands.Commands
	*files.Files
	*ports.Ports
	*approvals.Questions
	*tokens.Tokens
	*secrets.Secrets
	*models.Models
	*audits.Auditing
	*events.Events
	*upkeep.Upkeep
	*tasks.Tasks

	gate     *gate.Gate
	judge    *judge.Judge
	runtimes runtime.ByBoundary
	log      *slog.Logger
	// writers are what records something, in the order in which they are waited for; see Close.
	writers []writer
}

// writer is a part that records something. end returns when it does no more.
type writer struct {
	name string
	end  func(ctx context.Context)
}

// New returns a flow. Recover is called before anything else.
func New(cfg Config) *Flow {
	records := record.NewWriter(cfg.Audit, cfg.Redact)
	f := &Flow{judge: judge.New(cfg.Policy), Events: events.New(), runtimes: cfg.Runtimes, log: cfg.Log}
	f.Questions = approvals.New(approvals.Config{
		Store: cfg.Store, Audit: cfg.Audit, Records: records, Judge: f.judge, Events: f.Events, Wait: cfg.ApprovalWait,
		Separate: cfg.SeparateApprovals, Clock: cfg.ApprovalClock, Log: cfg.Log,
	})
	gc := gate.Config{
		Records: records, Judge: f.judge, Ask: f.Questions, Budget: cfg.RecordBudget, Told: f.told, Observe: cfg.Observe,
		Now: func(name id.Workspace) (operation.Target, bool) { return f.Lifecycle.Target(name) }, Log: cfg.Log,
	}
	if cfg.Checkpoints != nil {
		gc.Blocked = cfg.Checkpoints.Blocked
	}
	if cfg.Disk != nil {
		gc.Full, gc.Scarce = cfg.Disk.Full, func() bool { return !cfg.Audit.Left(forAdministrators) }
	}
	f.gate = gate.New(gc)
	packer := &archiver.Archiver{Program: cfg.Archiver, Strange: cfg.Unpacking}
	if cfg.Sealer == nil || cfg.Models == nil {
		cfg.Models = conf.Default // they are listed all the same
	}
	f.Models = models.New(models.Config{
		Gate: f.gate, Store: cfg.Store, Find: func(ref string) (operation.Target, error) { return f.Find(ref) }, Held: f.held, Conf: cfg.Models,
		Records: records, Counted: cfg.ModelCounted, Now: cfg.ModelClock, Log: cfg.Log,
	})
	f.Lifecycle = lifecycle.New(lifecycle.Config{
		Gate: f.gate, Runtimes: cfg.Runtimes, Store: cfg.Store, Prefix: cfg.Prefix, Limits: cfg.Limits, Idle: cfg.Idle, Allow: cfg.Allow,
		Profiles: cfg.Profiles, Admission: cfg.Admission, KeepHomes: cfg.KeepHomes, Archiver: packer, Log: cfg.Log,
		Placeholders: filerun.Placer{Program: cfg.Archiver},
		Ways:         cfg.Ways, Bindings: f.bindings(cfg.Sealer), Models: f.models(cfg.Sealer), Keeps: cfg.Keeps,
	})
	f.Events.Bind(events.Config{Gate: f.gate, Find: f.Find, Now: f.Lifecycle.Current, Redact: cfg.Redact})
	f.Questions.Bind(f.gate, f.Find, f.allowAlways)
	f.Archives = archives.New(archives.Config{
		Gate: f.gate, Lifecycle: f.Lifecycle, Store: cfg.Store, Files: cfg.Files,
		Bounds: archives.Bounds{Number: cfg.MaxArchives, Bytes: cfg.ArchiveBytes}, Keep: cfg.KeepArchives, Archiver: packer, Log: cfg.Log,
	})
	f.Commands = commands.New(commands.Config{Gate: f.gate, Lifecycle: f.Lifecycle, Redact: cfg.Redact})
	f.Files = files.New(files.Config{Gate: f.gate, Lifecycle: f.Lifecycle, Program: cfg.Archiver, Patience: cfg.FilePatience})
	f.Tasks = tasks.New(tasks.Config{
		Gate: f.gate, Lifecycle: f.Lifecycle, Commands: f.Commands, Store: cfg.Store, Allow: f.AllowTask, Redact: cfg.Redact,
		Tools: cfg.Tools, Turn: f.Models.Turn, Patience: cfg.TaskPatience, Log: cfg.Log,
		Turns: turns.New(turns.Config{
			Gate: f.gate, Lifecycle: f.Lifecycle, Commands: f.Commands, Files: f.Files, Token: cfg.Store.Token, Redact: cfg.Redact,
			Runbooks: cfg.Runbooks, Limits: cfg.StepLimits, Log: cfg.Log,
		}),
	})
	f.Ports = ports.New(ports.Config{Gate: f.gate, Lifecycle: f.Lifecycle, Idle: cfg.PortIdle, Linger: cfg.PortLinger})
	f.Tokens = tokens.New(tokens.Config{Gate: f.gate, Store: cfg.Store, Records: records, Revoked: cfg.TokensRevoked, Log: cfg.Log})
	changed := func(ctx context.Context, owner, name string) {
		f.Lifecycle.SecretChanged(ctx, owner, name)
		if cfg.SecretsChanged != nil {
			cfg.SecretsChanged(ctx, owner, name)
		}
	}
	f.Secrets = secrets.New(secrets.Config{Gate: f.gate, Store: cfg.Store, Sealer: cfg.Sealer, Changed: changed})
	f.Auditing = audits.New(audits.Config{
		Gate: f.gate, Log: cfg.Log, Audit: cfg.Audit, Store: cfg.Store, Records: records, Events: f.Events, Checkpoints: cfg.Checkpoints,
		Every: cfg.CheckpointEvery, After: cfg.CheckpointRecords, Keep: cfg.KeepAudit, Policy: f.judge.Loaded, Version: cfg.Version,
		Full: gc.Full, Find: f.Lifecycle.FindMade,
	})
	network := cfg.Network
	if network != nil {
		network = func() error {
			err := cfg.Network()
			f.Lifecycle.ModelsChanged(context.Background())
			return err
		}
	}
	f.Upkeep = upkeep.New(upkeep.Config{
		Gate: f.gate, Judge: f.judge, Records: records, Store: cfg.Store, Runtimes: cfg.Runtimes, Lifecycle: f.Lifecycle, Archives: f.Archives,
		Questions: f.Questions, Auditing: f.Auditing, Events: f.Events, KeepArchives: cfg.KeepArchives, KeepHomes: cfg.KeepHomes, Log: cfg.Log,
		Disk: cfg.Disk, Network: network,
	})
	f.writers = f.inOrder(cfg)
	return f
}

// inOrder are the writers: each of them may still be needed by those before it. A request may be a program of a task, a
// task has models behind its way out, and a question about a connection is an operation.
func (f *Flow) inOrder(cfg Config) []writer {
	all := []writer{
		{"tasks", func(context.Context) { f.CloseTasks() }},
		{"operations", func(context.Context) { f.gate.Settle() }},
	}
	if cfg.CutWays != nil {
		all = slices.Insert(all, 1, writer{"ways out of workspaces", func(context.Context) { cfg.CutWays() }})
	}
	if cfg.Requests != nil {
		all = slices.Insert(all, 0, writer{"requests", cfg.Requests})
	}
	return all
}

// bindings give workspaces the secrets of their owners, nil without a Sealer.
func (f *Flow) bindings(s *secret.Sealer) lifecycle.Bindings {
	if s == nil {
		return nil
	}
	return bindings.New(bindings.Config{Held: f.held, Seal: s.Seal, Unseal: s.Unseal})
}

// held returns a secret of an owner with its value.
func (f *Flow) held(ctx context.Context, owner, name string) (bindings.Held, error) {
	all, err := f.Secrets.Held(ctx, owner, []string{name})
	if err != nil {
		return bindings.Held{}, err
	}
	return bindings.Held(all[0]), nil
}

// models let workspaces use models, nil without a Sealer: there are no keys.
func (f *Flow) models(s *secret.Sealer) lifecycle.Models {
	if s == nil {
		return nil
	}
	return f.Models
}

// Hold is for requests that may last: see gate.Gate.Hold.
func (f *Flow) Hold(ctx context.Context) (held context.Context, release func()) {
	return f.gate.Hold(ctx)
}

// allowAlways is how a person's answer to a connection becomes a rule of its workspace.
func (f *Flow) allowAlways(ctx context.Context, by principal.Principal, name id.Workspace, rule string) error {
	_, err := f.Lifecycle.Update(ctx, by, string(name), workspace.Change{Reach: workspace.ReachChange{Approved: []string{rule}}})
	return err
}

// told hears of every outcome.
func (f *Flow) told(r *operation.Request, intent int64, err error) {
	if r.On.Kind == operation.Workspace {
		f.Touch(r.On.Name)
	}
	f.Events.Told(r, intent, err)
	f.CountIntent()
}

// Recover puts right what the last run left, before anything is served. Nothing is run again.
func (f *Flow) Recover(ctx context.Context) error {
	// First: a daemon that cannot judge must not serve.
	if _, err := f.judge.Digest(); err != nil {
		return err
	}
	if err := f.LastRun(ctx); err != nil {
		return err
	}
	open, err := f.Begin(ctx)
	if err != nil {
		return err
	}
	if err := f.Questions.Recover(ctx); err != nil {
		return err
	}
	// Before what it names is put right here too.
	if err := f.NoteMended(ctx); err != nil {
		return err
	}
	if err := f.Lifecycle.Recover(ctx, halfWay(open)); err != nil {
		return err
	}
	if err := f.Archives.Recover(ctx); err != nil {
		return err
	}
	if err := f.Tasks.Recover(ctx); err != nil {
		return err
	}
	return f.Mark(ctx)
}

// pauses are the operations that pause or resume a workspace on their way.
var pauses = []operation.Name{operation.PauseWorkspace, operation.ResumeWorkspace, operation.StopWorkspace, operation.Recover}

// halfWay are the workspaces whose executor may disagree with the broker on whether it is
// paused: an operation that pauses or resumes has no outcome.
func halfWay(open []audit.Record) map[id.Workspace]bool {
	names := map[id.Workspace]bool{}
	for _, r := range open {
		if slices.Contains(pauses, operation.NameIn(r.Action)) {
			names[r.Workspace] = true
		}
	}
	return names
}

// closeWithin bounds how long Close waits for what may still record something.
const closeWithin = 8 * time.Second

// Close ends everything in the order in which it writes, and the record at last:
//
//	ports, executors ─► requests ─► tasks ─► ways out ─► operations ─► models ─► daemon.stopped ─► mark ─► checkpoint
//
// What has not ended in time is told of in the daemon's log. It cannot record anything behind the last record: the audit log
// refuses that, and the next start closes what was left open. Nothing should call the flow any more: what does fails.
// Close does not close the audit log or the store.
func (f *Flow) Close(ctx context.Context) error {
	var errs []error
	f.gate.Closing()
	f.ClosePorts()
	for _, rt := range f.runtimes {
		errs = append(errs, rt.Close())
	}
	within, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	for _, w := range f.writers {
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.end(within)
		}()
		select {
		case <-done:
		case <-within.Done():
			f.log.Warn("the daemon does not wait any longer for what is at work", "what", w.name)
		}
	}
	return errors.Join(append(errs, f.Models.Close(ctx), f.End(ctx))...)
}
