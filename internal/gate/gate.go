// Package gate is the one place that turns an action into an effect:
//
//	authorise → policy → approval → intent on disk → runtime → outcome
//
// Every surface goes through it, and so does the daemon itself as principal
// "system". Only this package calls the mutating methods of runtime and appends
// to the audit log; a test over the whole module holds that.
//
// It must not speak any protocol, and it must not carry anything out itself.
package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/archivestore"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/policy"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/redact"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// noApproval is what the record says of an action that nobody was asked about.
const noApproval = "none"

// Config is that of New. Runtime, Store, Audit, Prefix, Limits and Log are required.
type Config struct {
	Runtime runtime.Runtime
	Store   *store.Store
	Audit   *audit.Log
	// Prefix starts derived names; it has passed id.ParsePrefix.
	Prefix string
	// Limits are those of a workspace that asks for none.
	Limits workspace.Limits
	// Idle is how long a workspace may run with nothing in it, unless it says otherwise;
	// 0 is for ever.
	Idle time.Duration
	// Allow is what workspaces may be made with, those of a profile with what that says.
	Allow []workspace.Opening
	// Profiles are what a workspace can ask for by name.
	Profiles  map[string]Profile
	Admission Admission
	// Shelf keeps archives. Archiver returns the program that makes and unpacks them, for
	// the caller to close; KeepArchives is for how long, 0 for ever.
	Shelf        *archivestore.Store
	Archiver     func() (*os.File, error)
	Unpacking    Unpacking
	KeepArchives time.Duration
	// KeepHomes is how long homes of destroyed workspaces are kept, 0 for ever.
	KeepHomes time.Duration
	// Redact takes secrets out of records and events. Optional.
	Redact *redact.Redactor
	// Checkpoints sign Audit, every CheckpointEvery if there is something new, and after so
	// many records. Optional; they stay the caller's.
	Checkpoints       *audit.Checkpoints
	CheckpointEvery   time.Duration
	CheckpointRecords int64
	// KeepAudit says how long full files of Audit are kept once they are signed.
	KeepAudit audit.Keep
	// Observe is told of each passage when it is over, and must not block; nil for nobody.
	Observe func(*Passage)
	Log     *slog.Logger
	// TokensRevoked is told which tokens were just revoked, to end what they have under way;
	// nil is nobody.
	TokensRevoked func(ids []string)
	// Version is what the log's lifecycle records say.
	Version string
	// Policy reads the rules that every action is judged by: once before the first, and
	// for each reload. nil is the built-in ones alone.
	Policy func() (*policy.Engine, error)
	// ApprovalWait is how long an action waits for a person's answer, 0 for the default.
	ApprovalWait time.Duration
	// Ask has the person who started this process answer; nil is nobody. It is for a gate
	// without a store.
	Ask func(ctx context.Context, q approval.Question) (approval.Kind, string, error)

	// Shared is the record of a gate that only Once is called of: several processes of a
	// user append to it in turn. Store and Audit are nil then.
	Shared *audit.Shared
}

// recorder is where records go.
type recorder interface {
	Append(ctx context.Context, r audit.Record) (int64, error)
	AppendAsync(r audit.Record) error
}

// Gate carries actions out. Its methods may be called from any goroutine.
type Gate struct {
	cfg    Config
	record redacting

	mu sync.Mutex
	// ops are the lifecycle operations under way, one a workspace.
	ops map[slot]*op
	// seen is what the runtime last said of each workspace.
	seen map[id.Workspace]runtime.Workspace
	// used is when each workspace was last used; began, the earliest that is known.
	used  map[id.Workspace]time.Time
	began time.Time

	// admission is held from a look at what lives or runs to the change of it.
	admission sync.Mutex
	starting  map[id.Workspace]store.Workspace

	// policy is the one in force. One decision asks one engine throughout; loading is held
	// while another is made.
	policy  atomic.Pointer[inForce]
	loading sync.Mutex
	// proved is whether all that is required of a running workspace was verified, where
	// that is known, under mu.
	proved map[id.Workspace]bool

	approvals approvals

	events   events
	refusals refusals

	// background are the goroutines that wait for attached commands to end, and
	// closed that no more may be started.
	background sync.WaitGroup
	closed     bool
	intents    atomic.Int64
	unsigned   atomic.Bool // the last checkpoint failed
	marking    sync.Mutex

	// mending is held while what the broker put right is recorded; mended is that, once
	// it is, under mu.
	mending sync.Mutex
	mended  []workspace.Mended
}

// New returns a gate. Recover must be called before anything else.
func New(cfg Config) *Gate {
	var record recorder = cfg.Audit
	if cfg.Shared != nil {
		record = cfg.Shared
	}
	return &Gate{
		cfg: cfg, record: redacting{recorder: record, r: cfg.Redact}, ops: make(map[slot]*op), seen: make(map[id.Workspace]runtime.Workspace),
		used: make(map[id.Workspace]time.Time), began: time.Now(),
		starting: make(map[id.Workspace]store.Workspace), proved: make(map[id.Workspace]bool),
		approvals: newApprovals(),
	}
}

// request is one action by one principal.
type request struct {
	by    principal.Principal
	trace id.Trace
	// on is the workspace acted on; only its name, boundary and root are used.
	on     store.Workspace
	action action.Action
	// env are the variables of a command with their values, of which the action has no more
	// than a digest; thread is the conversation that it belongs to.
	env    []string
	thread string
	// wait is how long a person may take to answer; 0 is as configured, negative is not to
	// wait.
	wait time.Duration
	// redact takes secrets out of what is told of it; see clean.
	redact *redact.Redactor
	// argv is the command without secrets, once it was asked for; see argvOf.
	argv []string
	// judged is what the policy said of it, once it was asked, and pass what let it through
	// where a person had to.
	judged *judgement
	pass   pass
	// way measures it; nil if nobody asks.
	way *Passage
}

// pending is what an effect returns as its data when its outcome comes later: do
// then returns, and the outcome is recorded when pending has returned.
type pending func() (data any, err error)

// do is the one way to an effect. The intent is on disk before effect is called,
// and if it cannot be written, effect is not called. data is what the outcome
// says beside the error. The caller has been authorised; see reach.
func (g *Gate) do(ctx context.Context, r request, effect func(context.Context) (data any, err error)) (err error) {
	g.begin(&r)
	defer func() { g.passed(&r, err) }()
	if err := g.blocked(); err != nil {
		return err
	}
	if err := g.clear(ctx, &r); err != nil {
		return err
	}
	rec, err := g.intentOf(&r)
	if err != nil {
		return err
	}
	seq, err := g.recordOf(&r).Append(ctx, rec)
	if err != nil {
		return fmt.Errorf("cannot record what is about to be done, so it was not done: %w", err)
	}
	crashpoint.Here("daemon.intent.written")
	g.settle(&r, seq)
	r.way.step("intent")
	data, err := effect(ctx)
	r.way.step("effect")
	crashpoint.Here("daemon.effect.done")
	if wait, later := data.(pending); later && err == nil {
		g.later(func() {
			data, err := wait()
			g.outcome(&r, seq, data, err)
		})
	} else {
		g.outcome(&r, seq, data, err)
	}
	r.way.step("outcome")
	crashpoint.Here("daemon.outcome.written")
	g.countIntent()
	return err
}

// clear has a request judged, and a person asked where the policy says so, unless it has
// been. What it returns has been recorded as a denial, but for an error of the judging
// itself.
func (g *Gate) clear(ctx context.Context, r *request) (err error) {
	g.begin(r)
	defer func() {
		if err != nil {
			g.passed(r, err)
		}
	}()
	for r.judged == nil {
		j, err := g.judge(ctx, r)
		if err != nil {
			return fmt.Errorf("cannot judge what is to be done, so it was not done: %w", err)
		}
		r.judged = j
		r.way.step("policy")
		switch j.Level {
		case policy.Safe:
		case policy.Confirm:
			err := g.confirm(ctx, r)
			r.way.step("approval")
			if err != nil {
				return err
			}
		case policy.Block:
			return g.deny(ctx, *r, refused(&r.action, j))
		}
	}
	return nil
}

// later runs f in a goroutine that Close waits for; once closed, right away.
func (g *Gate) later(f func()) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		f()
		return
	}
	g.background.Go(f)
	g.mu.Unlock()
}

func (g *Gate) outcome(r *request, seq int64, data any, err error) {
	if len(r.action.Token) == 0 { // those are about no workspace
		g.touch(r.on.Name)
		g.tell(r, seq, err)
	}
	if aerr := g.recordOf(r).AppendAsync(outcomeOf(r, seq, data, err)); aerr != nil {
		// The intent stays open, and the next start closes it as interrupted.
		g.cfg.Log.Error("cannot record an outcome", "intent", seq, "workspace", r.on.Name, "error", aerr)
	}
}

// deny records a refusal and returns it. The refusal stands even if it cannot be
// recorded. Of one who asks again and again, some are counted in the record of the next.
func (g *Gate) deny(ctx context.Context, r request, why error) error {
	if r.way != nil {
		r.way.Denied = true
	} else if g.begin(&r); r.way != nil { // it did not come to the gate's steps
		r.way.Denied = true
		g.passed(&r, why)
	}
	record, untold := g.refusals.count(r.by.String(), time.Now())
	if !record {
		return why
	}
	rec, err := g.intentOf(&r)
	if err == nil && untold > 0 {
		rec.Data, err = json.Marshal(struct {
			Untold int64 `json:"refusals_not_recorded"`
		}{untold})
	}
	if err == nil {
		rec.Type, rec.Status, rec.Isolation = audit.Denial, audit.StatusDenied, ""
		rec.Error, rec.ErrorKind = why.Error(), kindOf(why) // cut off when it is without secrets
		_, err = g.recordOf(&r).Append(ctx, rec)
	}
	if err != nil {
		g.cfg.Log.Error("cannot record a denial", "principal", r.by, "action", r.action.Kind, "error", err)
	}
	return why
}

// find returns the living workspace that ref names: by its derived name first,
// since a key may have the form of one.
func (g *Gate) find(ref string) (store.Workspace, bool) {
	if w, ok := g.cfg.Store.ByName(id.Workspace(ref)); ok {
		return w, true
	}
	return g.cfg.Store.ByKey(id.Key(ref))
}

// reach is the one place where access to a workspace is decided: it returns the
// workspace that ref names if p may reach it, and records a refusal.
func (g *Gate) reach(ctx context.Context, p principal.Principal, ref string, a action.Action) (store.Workspace, error) {
	if err := g.Permit(ctx, p, a); err != nil {
		return store.Workspace{}, err
	}
	w, ok := g.find(ref)
	if !ok {
		return w, fmt.Errorf("cannot find workspace %q: there is none with this key or name; \"carrel ls\" lists them: %w", ref, errdefs.ErrNotFound)
	}
	if reaches(p, w) {
		return w, nil
	}
	a.Workspace = w.Name
	return w, g.deny(ctx, request{by: p, trace: id.NewTrace(), on: w, action: a},
		fmt.Errorf("cannot let %s %s workspace %q: %s; ask its owner or an administrator: %w",
			p, verb(a.Kind), ref, elsewhere(p), errdefs.ErrPermissionDenied))
}

// verb is a kind of action in a sentence.
func verb(k action.Kind) string {
	if v, ok := map[action.Kind]string{
		action.Create: "create", action.Start: "start", action.Stop: "stop", action.Destroy: "destroy",
		action.Pause: "pause", action.Resume: "resume", action.Update: "change", action.Stats: "measure", action.Watch: "watch",
		action.Archive: "archive", action.Restore: "restore", action.ReadArchive: "read", action.RemoveArchive: "remove",
		action.Exec: "run a command in", action.Attach: "attach to a command in", action.Signal: "signal a command in",
		action.Inspect: "inspect", action.Commands: "list the commands of", action.Logs: "read the output of a command in",
		action.Resize: "resize a terminal in", action.Audit: "read the audit log", action.Mended: "see what the broker put right",
		action.RevokeToken: "revoke", action.ListTokens: "see",
		action.Policy: "reload the policy", action.Answer: "answer an approval of", action.Revoke: "revoke a permission of", action.InspectApproval: "see an approval of",
	}[k]; ok {
		return v
	}
	return "act on"
}

// Get returns the workspace that ref names, with its controls if it runs.
func (g *Gate) Get(ctx context.Context, p principal.Principal, ref string) (workspace.View, error) {
	w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Inspect})
	if err != nil {
		return workspace.View{}, err
	}
	v := g.view(w)
	if !live(w.State) {
		return v, nil
	}
	rep, err := g.cfg.Runtime.Report(ctx, w.Name)
	if errdefs.IsFailedPrecondition(err) { // its executor has gone, and word of it is on the way
		if lerr := g.lost(ctx, w.Name); lerr != nil {
			return v, lerr
		}
		if w, ok := g.cfg.Store.ByName(w.Name); ok && !live(w.State) {
			return g.view(w), nil
		}
	}
	if err != nil {
		return v, fmt.Errorf("cannot show the proof of workspace %s: %w", w.Name, err)
	}
	v.Controls = rep.Controls
	return v, nil
}

// List returns the workspaces that p may reach, by name and without controls.
func (g *Gate) List(ctx context.Context, p principal.Principal) ([]workspace.View, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.List}); err != nil {
		return nil, err
	}
	all := g.cfg.Store.Workspaces()
	views := make([]workspace.View, 0, len(all))
	for _, w := range all {
		if reaches(p, w) {
			views = append(views, g.view(w))
		}
	}
	return views, nil
}

func (g *Gate) view(w store.Workspace) workspace.View {
	g.mu.Lock()
	rt := g.seen[w.Name]
	g.mu.Unlock()
	v := workspace.View{
		Name: w.Name, Key: w.Key, Owner: w.Owner, State: w.State, Root: w.Root, Boundary: w.Boundary, Limits: w.Limits, CreatedAt: w.CreatedAt,
		User: rt.User, IDs: rt.IDs, Home: rt.Home, Mounts: rt.Mounts, Allow: rt.Allow, Profile: w.Profile, Expires: w.Expires, Idle: w.Idle,
	}
	if v.Idle == 0 {
		v.Idle = g.cfg.Idle
	}
	if v.Idle <= 0 {
		v.Idle = workspace.Forever
	}
	if live(w.State) {
		v.ExecutorPID = rt.ExecutorPID
	}
	return v
}

func (g *Gate) note(w runtime.Workspace) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen[w.Name] = w
	delete(g.proved, w.Name) // it may have become another: it is proved anew
}

// ending reports whether a workspace is being stopped or destroyed right now.
func (g *Gate) ending(name id.Workspace) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.ops[slot{name: name}]
	return o != nil && (o.kind == action.Stop || o.kind == action.Destroy)
}

// Close lets go of the executors, records the outcomes of what was attached and
// notes how far the log is known. Nothing should call the gate any more: what
// does fails. It does not close the audit log or the store.
func (g *Gate) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	err := g.cfg.Runtime.Close()
	g.background.Wait()
	_, aerr := g.cfg.Audit.Append(ctx, g.lifecycle("daemon.stopped"))
	err = errors.Join(err, aerr, g.mark(ctx, true))
	if g.cfg.Checkpoints != nil {
		if _, cerr := g.cfg.Checkpoints.Make(ctx); cerr != nil {
			g.cfg.Log.Error("cannot sign the end of the audit log as it should be; the next start does", "error", cerr)
		}
	}
	return err
}
