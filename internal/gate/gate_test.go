package gate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/api"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

var _ api.Gate = (*gate.Gate)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	bob   = principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	admin = principal.Principal{Kind: principal.User, UID: 1002, Admin: true}
	root  = principal.Principal{Kind: principal.User}
)

// house is a gate with a real store and a real audit log over a runtime double.
type house struct {
	*gate.Gate
	t     testing.TB
	dir   string
	rt    *runtimeDouble
	store *store.Store
	log   *audit.Log
	logs  *bytes.Buffer
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir(), rt: newDouble()}
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
	mark, err := gate.LoadMark(ctx, h.store)
	if err != nil {
		h.t.Fatal(err)
	}
	if h.log, err = audit.Open(ctx, audit.Options{Path: filepath.Join(h.dir, "audit", "audit.jsonl"), Since: mark}); err != nil {
		h.t.Fatal(err)
	}
	h.logs = new(bytes.Buffer)
	h.Gate = gate.New(gate.Config{
		Runtime: h.rt, Store: h.store, Audit: h.log, Prefix: "ws", Limits: workspace.DefaultLimits, MaxWorkspaces: 50,
		Log: slog.New(slog.NewTextHandler(&syncWriter{w: h.logs}, nil)), Version: "test",
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
	h.log.Close()
	h.store.Close()
}

func (h *house) create(p principal.Principal, key id.Key) workspace.View {
	h.t.Helper()
	w, _, err := h.Create(h.t.Context(), p, key, workspace.Limits{}, true)
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

// story tells the records since the nth in words: "intent workspace.create",
// "outcome ok" …
func (h *house) story(after int) []string {
	var out []string
	for _, r := range h.records()[after:] {
		var a action.Action
		if r.Action != nil {
			if err := json.Unmarshal(r.Action, &a); err != nil {
				h.t.Fatal(err)
			}
		}
		s := strings.TrimSpace(string(r.Type) + " " + string(a.Kind))
		if r.Type != audit.Intent {
			s += " " + r.Status
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
	w, created, err := h.Create(ctx, alice, "demo", workspace.Limits{Pids: 100}, true)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if w.Name != "ws-2a97516c" || w.Owner != "uid:1000" || w.State != workspace.StateRunning || len(w.Controls) != 1 ||
		w.Limits.Pids != 100 || w.Limits.MemoryBytes != workspace.DefaultLimits.MemoryBytes || w.ExecutorPID == 0 || w.User == "" {
		t.Errorf("created %+v", w)
	}
	again, created, err := h.Create(ctx, alice, "demo", workspace.Limits{}, true)
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
	if list, err := h.Commands(ctx, alice, "demo"); err != nil || len(list) != 0 {
		t.Errorf("commands of a stopped workspace: %v %v", list, err)
	}
	if _, _, err := h.Run(ctx, alice, "demo", run("hi")); err != nil {
		t.Errorf("command in a stopped workspace: %v", err)
	}
	kept, err := h.Destroy(ctx, alice, "demo", false)
	if err != nil || kept != "/retained/ws-2a97516c" {
		t.Errorf("%q %v", kept, err)
	}
	if _, err := h.Get(ctx, alice, "demo"); !errdefs.IsNotFound(err) {
		t.Errorf("after destroy: %v", err)
	}
	h.expect(1,
		"intent workspace.create", "outcome ok", "intent workspace.start", "outcome ok",
		"intent command.exec", "outcome ok",
		"intent workspace.stop", "outcome ok",
		"intent workspace.start", "outcome ok", "intent command.exec", "outcome ok",
		"intent workspace.destroy", "outcome ok")
	// The key is free, and the name is not used again.
	if w := h.create(bob, "demo"); w.Name != "ws-2a97516c-1" || w.Owner != "uid:1001" {
		t.Errorf("%+v", w)
	}
	for _, r := range h.records() {
		if r.Type == audit.Intent && (r.Policy != "none yet: passes everything" || r.Approval != "none" || r.Principal == "" || r.Trace == "" ||
			r.ActionDigest != action.Digest(r.Action) || r.Workspace == "" || r.Isolation != "boundary=namespace root=system") {
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
			_, _, err := h.Create(ctx, p, "demo", workspace.Limits{}, true)
			return err
		},
		"get":     func(p principal.Principal, ref string) error { _, err := h.Get(ctx, p, ref); return err },
		"start":   func(p principal.Principal, ref string) error { _, err := h.Start(ctx, p, ref); return err },
		"stop":    func(p principal.Principal, ref string) error { _, err := h.Stop(ctx, p, ref); return err },
		"destroy": func(p principal.Principal, ref string) error { _, err := h.Destroy(ctx, p, ref, true); return err },
		"run":     func(p principal.Principal, ref string) error { _, _, err := h.Run(ctx, p, ref, run("x")); return err },
		"spawn": func(p principal.Principal, ref string) error {
			_, _, err := h.Spawn(ctx, p, ref, run("x"), true)
			return err
		},
		"detach": func(p principal.Principal, ref string) error {
			_, err := h.Detach(ctx, p, ref, run("x"), false)
			return err
		},
		"list": func(p principal.Principal, ref string) error { _, err := h.Commands(ctx, p, ref); return err },
		"logs": func(p principal.Principal, ref string) error {
			_, _, err := h.Output(ctx, p, ref, execapi.OutputParams{}, false)
			return err
		},
		"attach": func(p principal.Principal, ref string) error {
			_, _, err := h.Output(ctx, p, ref, execapi.OutputParams{}, true)
			return err
		},
		"signal": func(p principal.Principal, ref string) error { return h.Signal(ctx, p, ref, execapi.StopTaskParams{}) },
		"resize": func(p principal.Principal, ref string) error { return h.Resize(ctx, p, ref, execapi.ResizeParams{}) },
		"verify": func(p principal.Principal, _ string) error { _, err := h.VerifyAudit(ctx, p); return err },
		"show": func(p principal.Principal, _ string) error {
			return h.ShowAudit(ctx, p, 0, 0, false, func([][]byte) error { return errors.New("shown") })
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
	for _, p := range []principal.Principal{bob, {}} {
		if list, err := h.List(ctx, p); err != nil || len(list) != 0 {
			t.Errorf("%s sees %v, %v", p, list, err)
		}
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
		"create": second(h.Create(ctx, alice, "other", workspace.Limits{}, false)),
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

func TestConcurrentCreatesOfOneKey(t *testing.T) {
	h := newHouse(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 16 {
		wg.Go(func() {
			w, created, err := h.Create(t.Context(), alice, "demo", workspace.Limits{}, true)
			if err != nil || w.Name != "ws-2a97516c" || w.State != workspace.StateRunning {
				t.Errorf("%+v %v", w, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if created {
				made++
			}
		})
	}
	wg.Wait()
	if made != 1 || h.rt.count("create") != 1 || h.rt.count("start") != 1 {
		t.Errorf("%d created, %d creates, %d starts", made, h.rt.count("create"), h.rt.count("start"))
	}
}

func TestConcurrentCommandsStartOnce(t *testing.T) {
	h := newHouse(t)
	if _, _, err := h.Create(t.Context(), alice, "demo", workspace.Limits{}, false); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := second(h.Run(t.Context(), alice, "demo", run("x"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if h.rt.count("start") != 1 || h.rt.count("run") != 16 {
		t.Errorf("%d starts, %d runs", h.rt.count("start"), h.rt.count("run"))
	}
}

func TestCreateTriesTheNextName(t *testing.T) {
	h := newHouse(t)
	// The broker knows the name from a database that is gone.
	h.rt.keys["ws-2a97516c"], h.rt.keys["ws-2a97516c-1"] = "other", "other"
	w, created, err := h.Create(t.Context(), alice, "demo", workspace.Limits{}, false)
	if err != nil || !created || w.Name != "ws-2a97516c-2" {
		t.Fatalf("%+v %v %v", w, created, err)
	}
	h.expect(1, "intent workspace.create", "outcome failed already_exists", "intent workspace.create", "outcome failed already_exists",
		"intent workspace.create", "outcome ok")
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "create" {
			return fmt.Errorf("cannot create: %w", errdefs.ErrAlreadyExists)
		}
		return nil
	})
	if _, _, err := h.Create(t.Context(), alice, "more", workspace.Limits{}, false); !errdefs.IsResourceExhausted(err) {
		t.Errorf("no name left: %v", err)
	}
}

func TestCreateRefusals(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	for key, is := range map[id.Key]func(error) bool{"ws-2a97516c": errdefs.IsInvalidArgument, "ws-00000000-7": errdefs.IsInvalidArgument} {
		if _, _, err := h.Create(ctx, alice, key, workspace.Limits{}, false); !is(err) {
			t.Errorf("key %s: %v", key, err)
		}
	}
	if _, _, err := h.Create(ctx, alice, "demo", workspace.Limits{Pids: 1}, false); !errdefs.IsInvalidArgument(err) {
		t.Errorf("limits: %v", err)
	}
	for i := range 50 {
		if _, _, err := h.Create(ctx, alice, id.Key(fmt.Sprint("k", i)), workspace.Limits{}, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := h.Create(ctx, alice, "one more", workspace.Limits{}, false); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "max_workspaces") {
		t.Errorf("more than allowed: %v", err)
	}
	if _, created, err := h.Create(ctx, alice, "k7", workspace.Limits{}, false); err != nil || created {
		t.Errorf("an existing one when full: %v", err)
	}
}

func TestFailedCreateAndStart(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.rt.setHook(func(op string, _ id.Workspace) error {
		return map[string]error{
			"create": fmt.Errorf("cannot make a home: %w", errdefs.ErrInternal),
			"start":  fmt.Errorf("cannot hold the workspace: required control x: %w", errdefs.ErrFailedPrecondition),
		}[op]
	})
	if _, _, err := h.Create(ctx, alice, "demo", workspace.Limits{}, true); !errdefs.IsInternal(err) || h.store.Len() != 0 {
		t.Errorf("failed create: %v, %d stored", err, h.store.Len())
	}
	hook := h.rt.hook
	h.rt.setHook(func(op string, n id.Workspace) error {
		if op == "create" {
			return fmt.Errorf("cannot reach the broker: %w", errdefs.ErrUnavailable)
		}
		return hook(op, n)
	})
	if _, _, err := h.Create(ctx, alice, "demo", workspace.Limits{}, true); !errdefs.IsUnavailable(err) || h.store.Len() != 1 {
		t.Errorf("create of unknown outcome: %v, %d stored", err, h.store.Len())
	}
	if err := second(h.Run(ctx, alice, "demo", run("x"))); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "creating") {
		t.Errorf("command in a half-made workspace: %v", err)
	}
	h.rt.setHook(func(op string, n id.Workspace) error {
		if op == "start" {
			return hook(op, n)
		}
		return nil
	})
	w, created, err := h.Create(ctx, alice, "demo", workspace.Limits{}, true)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "control x") || !created || w.State != workspace.StateStopped {
		t.Errorf("failed start: %+v %v %v", w, created, err)
	}
	h.rt.setHook(nil)
	if w, err := h.Start(ctx, alice, "demo"); err != nil || w.State != workspace.StateRunning {
		t.Errorf("%+v %v", w, err)
	}
}

func TestExecutorLost(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	before := len(h.records())
	h.rt.kill(w.Name)
	// Nobody noticed: the next command starts it again and is run once.
	if err := second(h.Run(ctx, alice, "demo", run("x"))); err != nil {
		t.Fatal(err)
	}
	h.expect(before, "intent command.exec", "outcome failed failed_precondition", "intent workspace.stop", "outcome ok",
		"intent workspace.start", "outcome ok", "intent command.exec", "outcome ok")
	h.rt.kill(w.Name)
	h.ExecutorLost(w.Name)
	if w, err := h.Get(ctx, alice, "demo"); err != nil || w.State != workspace.StateStopped {
		t.Errorf("%+v %v", w, err)
	}
	h.rt.kill(w.Name)
	if w, err := h.Start(ctx, alice, "demo"); err != nil || w.State != workspace.StateRunning {
		t.Errorf("%+v %v", w, err)
	}
	h.rt.kill(w.Name)
	if w, err := h.Start(ctx, alice, "demo"); err != nil || w.State != workspace.StateRunning || !h.rt.alive[w.Name] {
		t.Errorf("start of a dead one: %+v %v", w, err)
	}
	// One that answers is left alone.
	h.ExecutorLost(w.Name)
	if w, _ := h.Get(ctx, alice, "demo"); w.State != workspace.StateRunning {
		t.Error("a living workspace was stopped")
	}
}

func TestExecDuringStopIsRefused(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	inStop, goOn := make(chan struct{}), make(chan struct{})
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "stop" {
			close(inStop)
			<-goOn
		}
		return nil
	})
	stopped := make(chan error)
	go func() { _, err := h.Stop(ctx, alice, "demo"); stopped <- err }()
	<-inStop
	if err := second(h.Run(ctx, alice, "demo", run("x"))); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "being stopped") {
		t.Errorf("command during a stop: %v", err)
	}
	// A start waits for the stop.
	started := make(chan error)
	go func() { _, err := h.Start(ctx, alice, "demo"); started <- err }()
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := h.Destroy(impatient, alice, "demo", false); !errors.Is(err, context.Canceled) {
		t.Errorf("destroy by one who went: %v", err)
	}
	close(goOn)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
}

// A begun operation is finished although its caller has gone.
func TestBegunIsFinished(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "create" {
			cancel()
		}
		return nil
	})
	_, _, err := h.Create(ctx, alice, "demo", workspace.Limits{}, false)
	if w, ok := h.store.ByKey("demo"); !ok || w.State != workspace.StateStopped || err != nil {
		t.Errorf("%+v %v %v", w, ok, err)
	}
}

func TestSpawnOutcomeComesAtTheEnd(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	before := len(h.records())
	cmd, p, err := h.Spawn(ctx, alice, "demo", run("sh"), true)
	if err != nil {
		t.Fatal(err)
	}
	h.expect(before, "intent command.exec")
	proc := p.(*processDouble)
	if proc.id != cmd {
		t.Errorf("command %s was started as %s", cmd, proc.id)
	}
	proc.end <- nil
	got := make(chan audit.Record)
	go h.log.Read(ctx, int64(before+2), 0, true, func(lines [][]byte) error {
		r, err := audit.Decode(lines[0])
		got <- r
		return errors.Join(err, errors.New("enough"))
	})
	if r := <-got; r.Type != audit.Outcome || r.Status != audit.StatusOK || r.Intent != int64(before+1) || !strings.Contains(string(r.Data), `"code":9`) {
		t.Errorf("outcome %+v", r)
	}
	// Close ends what is still attached and records that.
	if _, _, err := h.Spawn(ctx, alice, "demo", run("sh"), false); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(ctx); err != nil {
		t.Fatal(err)
	}
	h.expect(before+2, "intent command.exec", "outcome failed unavailable", "lifecycle ok")
}

func TestWhatARecordHolds(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	at := len(h.records())
	e := run("sh", "-c", "echo $A")
	e.Env = []string{"B=secret-two", "A=secret-one"}
	e.Cwd, e.TimeoutMS = "/tmp", 5
	if _, err := h.Detach(ctx, alice, "demo", e, true); err != nil {
		t.Fatal(err)
	}
	r := h.records()[at]
	var a action.Action
	if err := json.Unmarshal(r.Action, &a); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.Argv, e.Argv) || !slices.Equal(a.Env, []string{"A", "B"}) || a.EnvDigest == "" || a.Cwd != "/tmp" || !a.TTY || !a.Detach || a.TimeoutMS != 5 || a.Command == "" {
		t.Errorf("action %+v", a)
	}
	raw, err := os.ReadFile(h.log.Path())
	if err != nil || bytes.Contains(raw, []byte("secret")) {
		t.Errorf("a value is in the record (%v)", err)
	}

	// Long arguments are cut, the digest is not.
	for name, arg := range map[string]string{
		"long":            strings.Repeat("x", 100_000),
		"escaped sixfold": strings.Repeat("\x01", 15_000),
		"three bytes":     strings.Repeat("€", 30_000),
	} {
		at = len(h.records())
		long := run("printf", arg, "last")
		if _, _, err := h.Run(ctx, alice, "demo", long); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := h.records()[at]
		var a action.Action
		var cut struct {
			Argc      int    `json:"argc"`
			ArgvBytes int    `json:"argv_bytes"`
			SHA       string `json:"argv_sha256"`
		}
		if err := errors.Join(json.Unmarshal(r.Action, &a), json.Unmarshal(r.Data, &cut)); err != nil {
			t.Fatal(err)
		}
		whole := a
		whole.Argv = long.Argv
		canonical, _ := whole.Canonical()
		if r.ActionDigest != action.Digest(canonical) {
			t.Errorf("%s: the digest is not that of the whole", name)
		}
		if cut.Argc != 3 || cut.ArgvBytes != len(arg)+10 || len(cut.SHA) != 64 || len(a.Argv) != 2 || !strings.HasPrefix(arg, a.Argv[1]) || len(a.Argv[1]) < 1000 {
			t.Errorf("%s: kept %d arguments, %+v", name, len(a.Argv), cut)
		}
	}
	for name, e := range map[string]execapi.ExecParams{
		"binary":    run("a\xff"),
		"too long":  run(strings.Repeat("x", execapi.MaxArgBytes+1)),
		"too many":  run(make([]string, execapi.MaxArgs+1)...),
		"directory": {Argv: []string{"x"}, Cwd: strings.Repeat("/x", 3000)},
	} {
		if err := second(h.Run(ctx, alice, "demo", e)); !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), "cannot run") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a crash left is put right at the next start, nothing is run again, and
// each repair is on record.
func TestRecover(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	for _, key := range []id.Key{"undone", "finished", "purged", "kept", "stopped", "running", "dead", "starting", "vanished"} {
		if _, _, err := h.Create(ctx, alice, key, workspace.Limits{}, key == "running" || key == "dead" || key == "vanished"); err != nil {
			t.Fatal(err)
		}
	}
	name := func(key id.Key) id.Workspace { return id.Derive("ws", key, 0) }
	set := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	set(h.store.SetState(ctx, name("undone"), workspace.StateCreating))
	delete(h.rt.all, name("undone"))
	set(h.store.SetState(ctx, name("finished"), workspace.StateCreating))
	set(h.store.SetDestroying(ctx, name("purged"), true))
	set(h.store.SetDestroying(ctx, name("kept"), false))
	h.rt.set(name("starting"), workspace.StateRunning)
	h.rt.kill(name("dead"))
	delete(h.rt.all, name("vanished"))
	h.rt.all["ws-ffffffff"] = runtime.Workspace{Name: "ws-ffffffff", State: workspace.StateStopped}
	// A command was under way.
	intent := audit.Record{Type: audit.Intent, Principal: "uid:1000", Workspace: name("running"), Trace: "t", Action: json.RawMessage(`{"kind":"command.exec"}`)}
	seq, err := h.log.Append(ctx, intent)
	set(err)
	runs := h.rt.count("run")
	h.crash()
	at := int(seq)
	h.start()

	states := map[id.Key]workspace.State{}
	for _, w := range h.store.Workspaces() {
		states[w.Key] = w.State
	}
	want := map[id.Key]workspace.State{
		"finished": workspace.StateStopped, "stopped": workspace.StateStopped, "running": workspace.StateRunning,
		"dead": workspace.StateStopped, "starting": workspace.StateRunning, "vanished": workspace.StateStopped,
	}
	if d := cmp.Diff(want, states); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
	if h.rt.count("run") != runs {
		t.Error("something was run again")
	}
	if _, ok := h.rt.all["ws-ffffffff"]; !ok || !strings.Contains(h.logs.String(), "ws-ffffffff") {
		t.Error("a workspace that only the broker knows was removed, or not reported")
	}
	var interrupted []int64
	open := map[int64]bool{}
	for _, r := range h.records() {
		switch r.Type {
		case audit.Intent:
			open[r.Seq] = true
		case audit.Outcome:
			delete(open, r.Intent)
			if r.Status == audit.StatusInterrupted {
				interrupted = append(interrupted, r.Intent)
			}
		default:
		}
	}
	if !slices.Equal(interrupted, []int64{seq}) || len(open) != 0 {
		t.Errorf("interrupted %v, open %v", interrupted, open)
	}
	for _, r := range h.records()[at:] {
		if r.Type == audit.Intent && r.Principal != "system" {
			t.Errorf("recovery by %s: %+v", r.Principal, r)
		}
	}
	// A second start finds nothing to do.
	n := len(h.records())
	h.crash()
	h.start()
	h.expect(n, "lifecycle ok")
}

func TestMarkMakesTheNextStartShort(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := gate.LoadMark(t.Context(), h.store)
	if err != nil || m.Head != h.log.Head() || len(m.Open) != 0 {
		t.Errorf("%+v, %v; head %v", m, err, h.log.Head())
	}
	path := h.log.Path()
	h.crash()
	// The end of the log is cut off between two lines: the mark shows it.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Open(t.Context(), audit.Options{Path: path, Since: m}); !errors.Is(err, audit.ErrDamaged) {
		t.Errorf("a cut log: %v", err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
}

func BenchmarkRun(b *testing.B) {
	h := newHouse(b)
	h.create(alice, "demo")
	e := run("/bin/true")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := h.Run(b.Context(), alice, "demo", e); err != nil {
			b.Fatal(err)
		}
	}
}
