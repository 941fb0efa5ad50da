package compose_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A workspace that was renamed out of a token's scope is out of its reach, by the id of the
// request that made it too.
func TestARepeatedRequestIsJudgedByTodaysNames(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"bot-*"}})
	create := workspace.Wanted{Key: "bot-1", Request: "create"}
	made, _, err := h.Create(ctx, p, create)
	if err != nil {
		t.Fatal(err)
	}
	if w, created, err := h.Create(ctx, p, create); err != nil || !created || w.Name != made.Name {
		t.Fatalf("repeated at once: %s, created %v, %v", w.Name, created, err)
	}
	change := workspace.Change{Limits: workspace.Limits{Pids: 99}, Request: "update"}
	if _, err := h.Update(ctx, p, string(made.Name), change); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Update(ctx, alice, "bot-1", workspace.Change{Key: "private"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stop(ctx, alice, "private"); err != nil {
		t.Fatal(err)
	}
	starts := h.rt.count("start")
	for name, repeat := range map[string]func() (workspace.Workspace, error){
		"create": func() (workspace.Workspace, error) {
			w, _, err := h.Create(ctx, p, create)
			return w, err
		},
		"update": func() (workspace.Workspace, error) { return h.Update(ctx, p, string(made.Name), change) },
	} {
		if w, err := repeat(); !errdefs.IsPermissionDenied(err) || w.Name != "" {
			t.Errorf("%s repeated shows %q with the key %q, %v", name, w.Name, w.Key, err)
		}
	}
	if n := h.rt.count("start") - starts; n != 0 {
		t.Errorf("it was started %d times", n)
	}
	// Its owner may see it still.
	if w, err := h.Get(ctx, alice, "private"); err != nil || w.State != workspace.StateStopped {
		t.Errorf("%s, %v", w.State, err)
	}
}

// A destroy that is repeated while it runs is one destroy, and never that of what has its key next.
func TestARepeatedDestroySparesWhatComesNext(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "destroy" {
			once.Do(func() { close(entered) })
			<-release
		}
		return nil
	})
	answers := make(chan error, 4)
	destroy := func() { answers <- failure(h.Destroy(ctx, alice, "demo", true, "r")) }
	go destroy()
	<-entered
	for range 3 {
		go destroy()
	}
	// One of them may be too late to wait: then its answer is the one that was kept.
	close(release)
	for range 4 {
		if err := <-answers; err != nil {
			t.Errorf("an attempt at the same destroy: %v", err)
		}
	}
	h.rt.setHook(nil)
	next := h.create(alice, "demo")
	for range 2 {
		if err := failure(h.Destroy(ctx, alice, "demo", true, "r")); err != nil {
			t.Errorf("asked again: %v", err)
		}
		if w, err := h.Get(ctx, alice, "demo"); err != nil || w.Name != next.Name {
			t.Fatalf("what came next is %q, %v", w.Name, err)
		}
		h.crash()
		h.start()
	}
	if n := h.rt.count("destroy"); n != 1 {
		t.Errorf("destroyed %d times", n)
	}
}

// repeatable is an operation with an id, as a client repeats it: its answer, and what it has made
// of the world, both as text.
type repeatable struct {
	name string
	op   operation.Name
	// begin makes what it works on.
	begin func(h *house)
	do    func(ctx context.Context, h *house, request string) (string, error)
	// effects counts what came of it.
	effects func(h *house) int
	// after is what somebody else does when it is over. The operation asked again must not undo it.
	after func(h *house)
	// intact is whether that is still so.
	intact func(h *house) bool
}

func living(h *house, key string) (w workspace.Kept) {
	on, err := h.Find(key)
	if err == nil {
		w, err = h.Living(on.Name)
	}
	if err != nil {
		return workspace.Kept{}
	}
	return w
}

func (h *house) all() []workspace.Archive {
	all, err := h.ListArchives(h.t.Context(), alice)
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func (h *house) archive(ctx context.Context, want workspace.ArchiveWanted) (string, error) {
	a, err := h.Archive(ctx, alice, "demo", want, nil, nil)
	return a.ID, err
}

func (h *house) mustDo(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

var repeatables = []repeatable{
	{
		name: "create", op: operation.CreateWorkspace, begin: func(*house) {},
		do: func(ctx context.Context, h *house, request string) (string, error) {
			w, created, err := h.Create(ctx, alice, workspace.Wanted{Key: "demo", Request: request})
			if err == nil && !created {
				err = errors.New("it says that the workspace was there before")
			}
			return string(w.Name), err
		},
		effects: func(h *house) int { return len(h.store.Workspaces()) },
		after: func(h *house) {
			h.mustDo(failure(h.Update(h.t.Context(), alice, "demo", workspace.Change{Key: "renamed"})))
		},
		intact: func(h *house) bool { return living(h, "renamed").Name != "" && living(h, "demo").Name == "" },
	},
	{
		name: "update", op: operation.UpdateWorkspace, begin: func(h *house) { h.create(alice, "demo") },
		do: func(ctx context.Context, h *house, request string) (string, error) {
			w, err := h.Update(ctx, alice, "demo", workspace.Change{Key: "renamed", Limits: workspace.Limits{Pids: 99}, Request: request})
			return string(w.Name), err
		},
		effects: func(h *house) int {
			n := 0
			for _, w := range h.store.Workspaces() {
				if w.Limits.Pids == 99 && w.Key == "renamed" {
					n++
				}
			}
			return n
		},
		after:  func(h *house) { h.create(alice, "demo") },
		intact: func(h *house) bool { return living(h, "demo").Limits.Pids != 99 && living(h, "demo").Name != "" },
	},
	{
		name: "destroy", op: operation.DestroyWorkspace, begin: func(h *house) { h.create(alice, "demo") },
		do: func(ctx context.Context, h *house, request string) (string, error) {
			return h.Destroy(ctx, alice, "demo", false, request)
		},
		effects: func(h *house) int {
			kept, err := h.Retained(h.t.Context(), alice)
			h.mustDo(err)
			return len(kept)
		},
		after:  func(h *house) { h.create(alice, "demo") },
		intact: func(h *house) bool { return living(h, "demo").Phase == workspace.Settled },
	},
	{
		name: "archive", op: operation.ArchiveWorkspace, begin: func(h *house) { h.create(alice, "demo") },
		do: func(ctx context.Context, h *house, request string) (string, error) {
			return h.archive(ctx, workspace.ArchiveWanted{Live: true, Request: request})
		},
		effects: func(h *house) int { return len(h.all()) },
		after: func(h *house) {
			h.mustDo(failure(h.Destroy(h.t.Context(), alice, "demo", true, "")))
			h.create(alice, "demo")
		},
		intact: func(h *house) bool { return living(h, "demo").Phase == workspace.Settled },
	},
	{
		name: "archive and destroy", op: operation.ArchiveWorkspace, begin: func(h *house) { h.create(alice, "demo") },
		do: func(ctx context.Context, h *house, request string) (string, error) {
			return h.archive(ctx, workspace.ArchiveWanted{Live: true, Destroy: true, Request: request})
		},
		effects: func(h *house) int {
			if len(h.store.Workspaces()) > 0 {
				return 0
			}
			return len(h.all())
		},
		after:  func(h *house) { h.create(alice, "demo") },
		intact: func(h *house) bool { return living(h, "demo").Phase == workspace.Settled },
	},
	{
		name: "restore", op: operation.RestoreWorkspace, begin: func(h *house) {
			h.create(alice, "demo")
			h.mustDo(failure(h.archive(h.t.Context(), workspace.ArchiveWanted{Live: true, Destroy: true})))
		},
		do: func(ctx context.Context, h *house, request string) (string, error) {
			w, err := h.Restore(ctx, alice, workspace.RestoreWanted{From: "demo", Key: "copy", Request: request}, nil, nil)
			return string(w.Name), err
		},
		effects: func(h *house) int { return len(h.store.Workspaces()) },
		after: func(h *house) {
			h.mustDo(failure(h.Update(h.t.Context(), alice, "copy", workspace.Change{Key: "renamed"})))
			h.mustDo(h.RemoveArchive(h.t.Context(), alice, h.all()[0].ID))
		},
		intact: func(h *house) bool { return living(h, "renamed").Name != "" && living(h, "copy").Name == "" },
	},
}

// Every operation that a client may repeat is tried here, and every procedure whose request has an id is
// one of them.
func TestEveryRepeatableIsTried(t *testing.T) {
	want, tried := map[operation.Name]bool{}, map[operation.Name]bool{}
	calls := map[string]operation.Name{}
	for _, row := range operation.Table {
		if row.Repeatable {
			want[row.Name] = true
		}
		for _, c := range row.Calls {
			calls[c.Path] = row.Name
		}
	}
	for _, r := range repeatables {
		tried[r.op] = true
	}
	if d := cmp.Diff(want, tried); d != "" {
		t.Errorf("operations that may be repeated (-table +tried):\n%s", d)
	}
	withID := map[operation.Name]bool{}
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			if hasID(m.Input(), 3) {
				withID[calls[string(services.Get(i).Name())+"/"+string(m.Name())]] = true
			}
		}
	}
	if d := cmp.Diff(want, withID); d != "" {
		t.Errorf("procedures whose request has an id (-table +schema):\n%s", d)
	}
}

// hasID reports whether a request has an id, itself or in its first message.
func hasID(m protoreflect.MessageDescriptor, depth int) bool {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.Name() == "request_id" || f.Message() != nil && depth > 0 && hasID(f.Message(), depth-1) {
			return true
		}
	}
	return false
}

// life is a time in which a client asks a number of times at once, until something dies.
type life struct {
	asks int
	dies string
	// at is the call of the broker at which it does, and done: the broker does what it was told by that,
	// though nobody hears of it.
	at   int
	done bool
}

var mortals = []string{"daemon", "broker", "client"}

// Repeats of one request come at once, and daemon, broker and client go at any call of the broker,
// which may have been carried out or not; the client asks until it has an answer, while upkeep goes on
// with what was left. The effect is there once, everybody has the same answer, and what others do
// afterwards stays, also if they do it before the client has its answer.
func TestOnceMeansOnce(t *testing.T) {
	for _, r := range repeatables {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(12) { // so that a failure can be had again
				dice := rand.New(rand.NewPCG(seed, 1))
				var lives []life
				for range dice.IntN(4) {
					lives = append(lives, life{1 + dice.IntN(4), mortals[dice.IntN(3)], 1 + dice.IntN(6), dice.IntN(2) == 0})
				}
				early := dice.IntN(2) == 0
				if r.interleaved(t, lives, early); t.Failed() {
					t.Fatalf("with seed %d: %+v, others early: %v", seed, lives, early)
				}
			}
		})
	}
}

// The same at every call of the broker that the operation makes, one after the other.
func TestOnceWhereverItBreaksOff(t *testing.T) {
	for _, r := range repeatables {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			calls := r.calls(t)
			if calls == 0 {
				t.Fatal("the broker was not called")
			}
			for at := 1; at <= calls; at++ {
				for _, dies := range mortals {
					for i, done := range []bool{false, true} {
						one, early := life{1 + 2*i, dies, at, done}, (at+i)%2 == 0
						if r.interleaved(t, []life{one}, early); t.Failed() {
							t.Fatalf("with %+v of %d calls, others early: %v", one, calls, early)
						}
					}
				}
			}
		})
	}
}

// calls is how often one that meets nothing calls the broker.
func (r repeatable) calls(t *testing.T) (n int) {
	h := newHouse(t)
	r.begin(h)
	h.rt.setHook(func(string, id.Workspace) error { n++; return nil })
	if _, err := r.do(t.Context(), h, "r"); err != nil {
		t.Fatal(err)
	}
	h.rt.setHook(nil)
	return n
}

// until has a client ask until something dies, and brings back what did. told is given each answer.
func (r repeatable) until(t *testing.T, h *house, l life, told func(string)) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	gone := errNoBroker
	if l.dies == "daemon" {
		gone = errors.New("the daemon is gone")
	}
	var mu sync.Mutex
	n, dead := 0, false
	h.rt.setHook(func(string, id.Workspace) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		if n == l.at && l.dies == "client" {
			leave()
		}
		if dead || n != l.at || l.dies == "client" {
			if dead {
				return gone
			}
			return nil
		}
		dead = true
		if l.dies == "daemon" {
			h.crash()
		}
		if l.done {
			h.rt.setDeaf(gone)
			return nil
		}
		return gone
	})
	var asks sync.WaitGroup
	for range l.asks {
		asks.Go(func() {
			if a, err := r.do(ctx, h, "r"); err == nil {
				told(a)
			}
		})
	}
	if l.dies == "broker" { // upkeep comes between
		asks.Go(func() { h.Round(t.Context(), time.Now()) })
	}
	asks.Wait()
	h.rt.setHook(nil)
	h.rt.setDeaf(nil)
	if l.dies == "daemon" {
		if !dead {
			h.crash()
		}
		h.start()
	}
	h.Settle()
}

func (r repeatable) interleaved(t *testing.T, lives []life, early bool) {
	h := newHouse(t)
	r.begin(h)
	if n := r.effects(h); n != 0 {
		t.Fatalf("%d effects before it began", n)
	}
	var answers []string
	var mu sync.Mutex
	told := func(a string) {
		mu.Lock()
		defer mu.Unlock()
		answers = append(answers, a)
	}
	for _, l := range lives {
		r.until(t, h, l, told)
	}
	if early {
		h.Round(t.Context(), time.Now().Add(2*time.Minute))
		h.Settle()
		if early = r.effects(h) == 1 && len(h.Due(h.Unsettled)) == 0; early {
			r.after(h)
		}
	}
	var asks sync.WaitGroup
	asks.Go(func() { h.Round(t.Context(), time.Now().Add(2*time.Minute)) })
	for range 8 {
		asks.Go(func() {
			a, err := r.do(t.Context(), h, "r")
			if err != nil {
				t.Errorf("asked again: %v", err)
			}
			told(a)
		})
	}
	asks.Wait()
	h.Settle()
	if n := r.effects(h); n != 1 && !early {
		t.Errorf("%d effects", n)
	}
	if !early {
		r.after(h)
	}
	for range 2 {
		a, err := r.do(t.Context(), h, "r")
		if err != nil {
			t.Errorf("asked again after others did something: %v", err)
		}
		told(a)
		if !r.intact(h) {
			t.Error("what others did was undone")
		}
		h.crash()
		h.start()
	}
	for _, a := range answers {
		if a != answers[0] {
			t.Errorf("answers differ: %q", answers)
			break
		}
	}
}
