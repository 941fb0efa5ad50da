package compose_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/daemon/compose"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/service/approvals"
	"github.com/carrel-dev/carrel/internal/service/archiver"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/archivestore"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/secret"
	"github.com/carrel-dev/carrel/internal/state/store"
	_ "github.com/carrel-dev/carrel/internal/state/store/sqlite"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/test/leaks"
)

var _ api.Gate = (*compose.Flow)(nil)

func TestMain(m *testing.M) { leaks.Main(m) }

var (
	alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	bob   = principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	admin = principal.Principal{Kind: principal.User, UID: 1002, Admin: true}
	root  = principal.Principal{Kind: principal.User}
)

// errSkeleton is what becomes of a workspace with the profile "filled" once it runs.
var errSkeleton = fmt.Errorf("no skeleton: %w", errdefs.ErrInternal)

// house is a gate with a real store and a real audit log over a runtime double.
type house struct {
	// keeps says how workspaces are kept that have lived their time.
	keeps func(context.Context, id.Workspace) (workspace.State, error)
	*compose.Flow
	t     testing.TB
	dir   string
	rt    *runtimeDouble
	store *store.Store
	log   *audit.Log
	logs  *bytes.Buffer

	admission lifecycle.Admission
	idle      time.Duration
	keepHomes time.Duration
	budget    gate.Budget
	separate  bool
	// ended are the tokens that the gate said were revoked.
	ended  []string
	policy func() (*rules.Engine, error)
	wait   time.Duration
	// signing, if set, has checkpoints made, of files that are full at maxSize and kept so long.
	signing *audit.CheckpointOptions
	maxSize int64
	keep    audit.Keep
	checks  *audit.Checkpoints
	// clock, if set, is the host's at a start, and elapsed how much time has passed since.
	clock   time.Time
	elapsed time.Duration
	// observe is told of each passage.
	observe func(*gate.Passage)
	redact  *redact.Redactor
	tools   tasks.Tools
	files   *archivestore.Store
	// maxArchives and archiveBytes bound the archives of one owner, and keepArchives how long they stay.
	maxArchives  int
	archiveBytes int64
	keepArchives time.Duration
	// ways are the ways out of what runs; nil is none.
	ways lifecycle.Ways
	// requests and cutWays are what Close waits for; nil is nothing.
	requests func(context.Context)
	cutWays  func()
	// host is what holds for the models of the host, and today the clock of their budgets; nil is the real one.
	host  *conf.Config
	tasks tasks.Patience
	today func() time.Time
	// linger is how long a port stays open that nobody has published, 0 is a minute.
	linger time.Duration
	// still is how long a request about files may do nothing, 0 is as long as always.
	still time.Duration
	// changed are the secrets that the flow said were changed, as "OWNER NAME".
	changed []string
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir(), host: conf.Default(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}}
	h.start()
	t.Cleanup(h.crash)
	return h
}

// start brings the daemon's side up as after a boot.
func (h *house) start() {
	h.t.Helper()
	ctx := h.t.Context()
	var err error
	if h.store, err = store.Open(ctx, filepath.Join(h.dir, "carrel.db")); err != nil {
		h.t.Fatal(err)
	}
	mark, known, err := audits.LoadMark(ctx, h.store)
	if err != nil {
		h.t.Fatal(err)
	}
	if h.log, err = audit.Open(ctx, audit.Options{
		Path: filepath.Join(h.dir, "audit", "audit.jsonl"), Since: mark, Known: known,
		MaxSize: h.maxSize,
	}); err != nil {
		h.t.Fatal(err)
	}
	audits.Watch(h.store, h.log)
	if h.signing != nil {
		if h.checks, err = audit.OpenCheckpoints(ctx, h.log, *h.signing); err != nil {
			h.t.Fatal(err)
		}
	}
	if h.files, err = archivestore.Open(filepath.Join(h.dir, "archives")); err != nil {
		h.t.Fatal(err)
	}
	sealer, err := secret.Open(filepath.Join(h.dir, "secrets.key"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.logs = new(bytes.Buffer)
	var clock approvals.Clock
	if !h.clock.IsZero() {
		h.elapsed = 0
		clock = approvals.Clock{Start: h.clock, Elapsed: func() time.Duration { return h.elapsed }}
	}
	h.Flow = compose.New(compose.Config{
		ApprovalClock: clock,
		Runtimes:      runtime.ByBoundary{workspace.BoundaryNamespace: h.rt}, Store: h.store, Audit: h.log, Prefix: "ws",
		Limits: workspace.DefaultLimits, Admission: h.admission, Idle: h.idle, KeepHomes: h.keepHomes, Checkpoints: h.checks, KeepAudit: h.keep,
		Allow: []workspace.Opening{workspace.UserNS},
		Profiles: map[string]lifecycle.Profile{
			"chat":   {Prefix: "chat", Limits: workspace.Limits{MemoryBytes: 256 << 20, Pids: 200}},
			"named":  {},
			"filled": {Prefix: "filled", Skeleton: func(context.Context) (io.Reader, error) { return nil, errSkeleton }},
		},
		TokensRevoked: func(ids []string) { h.ended = append(h.ended, ids...) },
		Log:           slog.New(slog.NewTextHandler(&syncWriter{w: h.logs}, nil)), Version: "test", Policy: h.policy, ApprovalWait: h.wait,
		Observe: h.observe, Redact: h.redact, RecordBudget: h.budget, SeparateApprovals: h.separate, Files: h.files,
		Archiver:    func() (*os.File, error) { return os.Open(os.DevNull) },
		MaxArchives: h.maxArchives, ArchiveBytes: h.archiveBytes, KeepArchives: h.keepArchives,
		Unpacking: archiver.Limits{Bytes: 1 << 30, Entries: 1000, Ratio: 1000},
		Requests:  h.requests, CutWays: h.cutWays,
		Ways: h.ways, Keeps: h.keeps, PortLinger: h.linger, FilePatience: h.still,
		Models: func() *conf.Config { return h.host }, ModelClock: h.today, TaskPatience: h.tasks, Tools: h.tools,
		Sealer: sealer, SecretsChanged: func(_ context.Context, owner, name string) { h.changed = append(h.changed, owner+" "+name) },
	})
	if err := h.Recover(ctx); err != nil {
		h.t.Fatal(err)
	}
}

type syncWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (s *syncWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// crash lets go of everything without the gate's Close.
func (h *house) crash() {
	h.rt.Close()
	h.CloseTasks() // they use the store
	if h.checks != nil {
		h.checks.Close()
		h.checks = nil
	}
	h.log.Close()
	h.store.Close()
	h.files.Close()
}

func (h *house) create(p principal.Principal, key id.Key) workspace.Workspace {
	h.t.Helper()
	w, _, err := h.Create(h.t.Context(), p, wanted(key, workspace.Limits{}, true))
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

func (h *house) records() []audit.Record {
	h.t.Helper()
	if _, err := h.log.Mark(); err != nil {
		h.t.Fatal(err)
	}
	var all []audit.Record
	err := h.log.Read(h.t.Context(), 0, 0, false, func(lines [][]byte) error {
		for _, l := range lines {
			r, err := audit.Decode(bytes.Clone(l))
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// said is what the canonical form of an operation says, whichever it is.
type said struct {
	Kind      operation.Name `json:"kind"`
	Workspace id.Workspace   `json:"workspace"`
	operation.Exec
}

// story tells the records since the nth in words: "intent workspace.create",
// "outcome ok" …
func (h *house) story(after int) []string {
	var out []string
	for _, r := range h.records()[after:] {
		var a said
		if r.Action != nil {
			if err := json.Unmarshal(r.Action, &a); err != nil {
				h.t.Fatal(err)
			}
		}
		s := strings.TrimSpace(string(r.Type) + " " + string(a.Kind))
		if r.Type != audit.Intent {
			s = strings.TrimSpace(s + " " + r.Status)
		}
		if r.ErrorKind != "" {
			s += " " + r.ErrorKind
		}
		out = append(out, s)
	}
	return out
}

func (h *house) expect(after int, want ...string) {
	h.t.Helper()
	if d := cmp.Diff(want, h.story(after)); d != "" {
		h.t.Errorf("records (-want +got):\n%s", d)
	}
}

func run(argv ...string) execapi.ExecParams { return execapi.ExecParams{Argv: argv} }

func TestLife(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.expect(0, "lifecycle ok")
	w, created, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{Pids: 100}, true))
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if w.Name != "ws-2a97516c" || w.Owner != "uid:1000" || w.State != workspace.StateRunning || len(w.Controls) != 1 ||
		w.Limits.Pids != 100 || w.Limits.MemoryBytes != workspace.DefaultLimits.MemoryBytes || w.ExecutorPID == 0 || w.User == "" {
		t.Errorf("created %+v", w)
	}
	again, created, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, true))
	if err != nil || created || again.Name != w.Name {
		t.Errorf("second create: %v %v %v", again.Name, created, err)
	}
	cmd, res, err := h.Run(ctx, alice, "demo", run("hi"))
	if err != nil || res.Status.Code != 3 || string(res.Stdout) != "hi" || cmd == "" {
		t.Errorf("%v %+v %v", cmd, res, err)
	}
	if w, err = h.Stop(ctx, alice, string(w.Name)); err != nil || w.State != workspace.StateStopped || w.ExecutorPID != 0 {
		t.Errorf("%+v %v", w, err)
	}
	if _, err = h.Stop(ctx, alice, "demo"); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if list, err := h.ListCommands(ctx, alice, "demo"); err != nil || len(list) != 0 {
		t.Errorf("commands of a stopped workspace: %v %v", list, err)
	}
	if _, _, err := h.Run(ctx, alice, "demo", run("hi")); err != nil {
		t.Errorf("command in a stopped workspace: %v", err)
	}
	kept, err := h.Destroy(ctx, alice, "demo", false, "")
	if err != nil || kept != "/retained/ws-2a97516c" {
		t.Errorf("%q %v", kept, err)
	}
	if _, err := h.Get(ctx, alice, "demo"); !errdefs.IsNotFound(err) {
		t.Errorf("after destroy: %v", err)
	}
	h.expect(1,
		"intent workspace.create", "outcome ok",
		"intent command.exec", "outcome ok",
		"intent workspace.stop", "outcome ok", "intent workspace.stop", "outcome ok",
		"intent workspace.start", "outcome ok", "intent command.exec", "outcome ok",
		"intent workspace.destroy", "outcome ok")
	// The key is free, and the name is not used again.
	if w := h.create(bob, "demo"); w.Name != "ws-2a97516c-1" || w.Owner != "uid:1001" {
		t.Errorf("%+v", w)
	}
	for _, r := range h.records() {
		if r.Type == audit.Intent && (r.Policy != "SAFE" || len(r.Decision) == 0 || r.Approval != "none" || r.Principal == "" || r.Trace == "" ||
			r.ActionDigest != operation.Digest(r.Action) || r.Workspace == "" || r.Isolation != "boundary=namespace root=system") {
			t.Errorf("intent %+v", r)
		}
	}
	if v, err := h.log.Verify(ctx); err != nil || v.Bad != nil {
		t.Errorf("%+v %v", v.Bad, err)
	}
}

// Nobody but the owner, root and admins reaches a workspace, by any method, and
// each attempt is recorded.
func TestStrangersAreDeniedAndRecorded(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	before, calls := len(h.records()), fmt.Sprint(h.rt.calls)
	attempts := map[string]func(p principal.Principal, ref string) error{
		"create": func(p principal.Principal, _ string) error {
			_, _, err := h.Create(ctx, p, wanted("demo", workspace.Limits{}, true))
			return err
		},
		"get":     func(p principal.Principal, ref string) error { _, err := h.Get(ctx, p, ref); return err },
		"start":   func(p principal.Principal, ref string) error { _, err := h.Start(ctx, p, ref); return err },
		"stop":    func(p principal.Principal, ref string) error { _, err := h.Stop(ctx, p, ref); return err },
		"destroy": func(p principal.Principal, ref string) error { _, err := h.Destroy(ctx, p, ref, true, ""); return err },
		"run":     func(p principal.Principal, ref string) error { _, _, err := h.Run(ctx, p, ref, run("x")); return err },
		"spawn": func(p principal.Principal, ref string) error {
			_, _, err := h.Spawn(ctx, p, ref, run("x"), true)
			return err
		},
		"detach": func(p principal.Principal, ref string) error {
			_, err := h.Detach(ctx, p, ref, run("x"), false)
			return err
		},
		"list": func(p principal.Principal, ref string) error { _, err := h.ListCommands(ctx, p, ref); return err },
		"history": func(p principal.Principal, ref string) error {
			_, err := h.History(ctx, p, ref, workspace.EntriesWanted{Most: 1, Take: func(*workspace.Entry) bool { return true }})
			return err
		},
		"logs": func(p principal.Principal, ref string) error {
			_, _, err := h.Output(ctx, p, ref, execapi.OutputParams{}, false)
			return err
		},
		"attach": func(p principal.Principal, ref string) error {
			_, _, err := h.Output(ctx, p, ref, execapi.OutputParams{}, true)
			return err
		},
		"wait": func(p principal.Principal, ref string) error {
			_, _, err := h.Wait(ctx, p, ref, "c-0123456789abcdef")
			return err
		},
		"signal": func(p principal.Principal, ref string) error { return h.Signal(ctx, p, ref, execapi.StopTaskParams{}) },
		"resize": func(p principal.Principal, ref string) error { return h.Resize(ctx, p, ref, execapi.ResizeParams{}) },
		"verify": func(p principal.Principal, _ string) error { _, err := h.VerifyAudit(ctx, p); return err },
		"show": func(p principal.Principal, _ string) error {
			return h.ShowAudit(ctx, p, 0, 0, false, audit.Filter{}, func([][]byte) error { return errors.New("shown") })
		},
	}
	for name, try := range attempts {
		for _, p := range []principal.Principal{bob, {}} {
			for _, ref := range []string{"demo", string(w.Name)} {
				if err := try(p, ref); !errdefs.IsPermissionDenied(err) {
					t.Errorf("%s by %s of %s: %v", name, p, ref, err)
				}
			}
		}
	}
	if now := fmt.Sprint(h.rt.calls); now != calls {
		t.Errorf("the runtime was asked on behalf of strangers:\n%s\n%s", calls, now)
	}
	denials := h.records()[before:]
	if len(denials) != 4*len(attempts) {
		t.Errorf("%d denials recorded, want %d", len(denials), 4*len(attempts))
	}
	for _, r := range denials {
		if r.Type != audit.Denial || r.Status != audit.StatusDenied || r.ErrorKind != "permission_denied" || r.Action == nil {
			t.Errorf("denial %+v", r)
		}
	}
	if list, err := h.List(ctx, bob); err != nil || len(list) != 0 {
		t.Errorf("%s sees %v, %v", bob, list, err)
	}
	if list, err := h.List(ctx, principal.Principal{}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("nobody sees %v, %v", list, err)
	}
	for _, p := range []principal.Principal{alice, admin, root, principal.Self()} {
		if list, err := h.List(ctx, p); err != nil || len(list) != 1 {
			t.Errorf("%s sees %v, %v", p, list, err)
		}
		if _, err := h.Get(ctx, p, "demo"); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, p := range []principal.Principal{admin, root} {
		if f, err := h.VerifyAudit(ctx, p); err != nil || !f.OK || f.Records == 0 || f.Head == "" {
			t.Errorf("%+v, %v", f, err)
		}
	}
	if _, err := h.Get(ctx, bob, "nowhere"); !errdefs.IsNotFound(err) {
		t.Errorf("a workspace that is not there: %v", err)
	}
}

// Without a durable intent there is no effect.
func TestNoIntentNoEffect(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.log.Close()
	calls := fmt.Sprint(h.rt.calls)
	for name, err := range map[string]error{
		"run":    second(h.Run(ctx, alice, "demo", run("x"))),
		"create": second(h.Create(ctx, alice, wanted("other", workspace.Limits{}, false))),
		"signal": h.Signal(ctx, alice, "demo", execapi.StopTaskParams{}),
		"stop":   func() error { _, err := h.Stop(ctx, alice, "demo"); return err }(),
	} {
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "so it was not done") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := fmt.Sprint(h.rt.calls); now != calls {
		t.Errorf("the runtime was asked:\n%s\n%s", calls, now)
	}
	if h.store.Len() != 1 {
		t.Error("a workspace was stored")
	}
	if err := second(h.Run(ctx, bob, "demo", run("x"))); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a denial that cannot be recorded: %v", err)
	}
}

func second[A, B any](_ A, _ B, err error) error { return err }

func wanted(key id.Key, l workspace.Limits, start bool) workspace.Wanted {
	return workspace.Wanted{Key: key, Limits: l, NoStart: !start}
}
