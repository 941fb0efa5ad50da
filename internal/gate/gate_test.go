package gate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// book is a test double of the audit log: it keeps records in memory, and fails where fail
// says so.
type book struct {
	mu   sync.Mutex
	list []audit.Record
	fail error
	// flushed is how many there were when somebody last waited for the disk.
	flushed int
}

func (b *book) Append(_ context.Context, r audit.Record) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return 0, b.fail
	}
	b.list = append(b.list, r)
	return int64(len(b.list)), nil
}

func (b *book) AppendAsync(r audit.Record) error {
	_, err := b.Append(context.Background(), r)
	return err
}

func (b *book) Flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushed = len(b.list)
	return b.fail
}

// story tells the records since the nth: "intent workspace.pause", "outcome ok" …
func (b *book) story(from int) (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.list[from:] {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Type, operation.NameIn(r.Action), r.Status)))
	}
	return out
}

// answers is a test double of an Asker that gives one answer after the other.
type answers []error

func (a *answers) Ask(_ context.Context, q *gate.Question) (gate.Pass, error) {
	if len(*a) == 0 {
		return gate.Pass{}, errors.New("nobody was to be asked")
	}
	err := (*a)[0]
	*a = (*a)[1:]
	return gate.Pass{Text: "ap-1 once by uid:0"}, err
}

var (
	alice = principal.Principal{Kind: principal.User, UID: 1000}
	demo  = operation.Target{
		Kind: operation.Workspace, Name: "ws-2a97516c", Key: "demo", Owner: "uid:1000",
		Boundary: workspace.BoundaryNamespace, Root: workspace.RootSystem,
	}
)

func newGate(b *book, ask ...error) *gate.Gate {
	a := answers(ask)
	return gate.New(gate.Config{Records: record.NewWriter(b, nil), Judge: judge.New(nil), Ask: &a, Log: slog.New(slog.DiscardHandler)})
}

// plain is an operation of a row with no payload, but for those whose rules look into it.
func plain(n operation.Name) operation.Operation {
	if n == operation.CreateWorkspace {
		return operation.Create{}
	}
	if operation.Of(n).Judged.Command {
		return command("true")
	}
	return operation.Simple(n)
}

func command(argv ...string) operation.Operation {
	e, err := operation.NewExec(operation.Command{Command: workspace.Command{Argv: argv}, Source: "user"})
	if err != nil {
		panic(err)
	}
	return e
}

// The target is looked for once the caller is known to have the permission.
func TestNobodyLearnsWhatThereIs(t *testing.T) {
	b := &book{}
	auditor := principal.Principal{Kind: principal.Token, Grant: &principal.Grant{
		ID: "0123456789ab", Owner: "uid:1000",
		Roles: principal.Auditor,
	}}
	looked := false
	find := func() (operation.Target, error) {
		looked = true
		return operation.Target{}, fmt.Errorf("there is none: %w", errdefs.ErrNotFound)
	}
	_, err := newGate(b).Authorise(t.Context(), operation.Request{By: auditor, Op: operation.Simple(operation.PauseWorkspace)}, find)
	if looked || !errdefs.IsPermissionDenied(err) {
		t.Errorf("looked %v, %v", looked, err)
	}
	_, err = newGate(b).Authorise(t.Context(), operation.Request{By: alice, Op: operation.Simple(operation.PauseWorkspace)}, find)
	if !looked || !errdefs.IsNotFound(err) {
		t.Errorf("looked %v, %v", looked, err)
	}
}

// A change is on record before it happens, and nothing happens that is not.
func TestIntentComesFirst(t *testing.T) {
	b := &book{}
	g := newGate(b)
	r := operation.Request{By: alice, Op: operation.Simple(operation.PauseWorkspace), On: demo}
	err := g.Do(t.Context(), r, func(_ context.Context, p permit.Permit) (any, error) {
		if got := b.story(0); !slices.Equal(got, []string{"intent workspace.pause"}) {
			t.Errorf("before the effect: %v", got)
		}
		if name, err := p.Workspace(); name != demo.Name || err != nil {
			t.Errorf("the permit is for %q: %v", name, err)
		}
		return nil, fmt.Errorf("planted: %w", errdefs.ErrUnavailable)
	})
	if !errdefs.IsUnavailable(err) || !slices.Equal(b.story(0), []string{"intent workspace.pause", "outcome  failed"}) {
		t.Errorf("%v, %v", err, b.story(0))
	}
	b.fail = fmt.Errorf("the disk is full: %w", errdefs.ErrResourceExhausted)
	err = g.Do(t.Context(), r, func(context.Context, permit.Permit) (any, error) {
		t.Error("an effect without a record")
		return nil, nil
	})
	if !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
}

// A permit ends with its effect, or with what the effect leaves pending.
func TestPermitsEnd(t *testing.T) {
	g := newGate(&book{})
	for _, later := range []bool{false, true} {
		var kept permit.Permit
		end := make(chan struct{})
		if err := g.Do(t.Context(), operation.Request{By: alice, Op: command("true"), On: demo, Verified: true},
			func(_ context.Context, p permit.Permit) (any, error) {
				kept = p
				if !later {
					return nil, nil
				}
				return &gate.Pending{Wait: func() (any, error) {
					<-end
					return nil, nil
				}}, nil
			}); err != nil {
			t.Fatal(err)
		}
		if _, err := kept.Workspace(); (err == nil) != later {
			t.Errorf("after an effect that is pending (%v): %v", later, err)
		}
		close(end)
		g.Settle()
		if _, err := kept.Workspace(); !errdefs.IsPermissionDenied(err) {
			t.Errorf("in the end: %v", err)
		}
	}
}

// Reads are recorded, and observations are not.
func TestClasses(t *testing.T) {
	for class, want := range map[operation.Class]int{operation.Change: 2, operation.Read: 1, operation.Observe: 0} {
		i := slices.IndexFunc(operation.Table, func(r operation.Row) bool {
			return r.Class == class && r.On == operation.Workspace && alice.Can(r.Needs) && !r.Judged.Command && len(r.Judged.Rules) < 2
		})
		if i < 0 {
			continue
		}
		b := &book{}
		if err := newGate(b).Do(t.Context(), operation.Request{By: alice, Op: plain(operation.Table[i].Name), On: demo},
			func(context.Context, permit.Permit) (any, error) {
				return nil, nil
			}); err != nil || len(b.list) != want {
			t.Errorf("%s %s: %v, %v", class, operation.Table[i].Name, b.story(0), err)
		}
	}
}

// What changes what there is has its outcome on disk before the answer; what runs in a workspace does
// not wait for it.
func TestOutcomesThatLast(t *testing.T) {
	lasting := 0
	for _, row := range operation.Table {
		b := &book{}
		_ = newGate(b).Do(t.Context(), operation.Request{By: alice, Op: plain(row.Name), On: demo, Verified: true},
			func(context.Context, permit.Permit) (any, error) { return nil, nil })
		if len(b.list) != 2 || b.list[1].Type != audit.Outcome {
			continue // no change, not hers, or to be asked
		}
		if want := row.Needs != principal.Run; (b.flushed == 2) != want {
			t.Errorf("%s: answered when %d of 2 records are on disk", row.Name, b.flushed)
		} else if want {
			lasting++
		}
	}
	if lasting < 6 {
		t.Errorf("only %d operations last", lasting)
	}
}

// What the policy blocks is refused; what it wants confirmed is asked, and judged again if the
// policy has changed meanwhile.
func TestAsking(t *testing.T) {
	upload := operation.Request{By: alice, Op: command("git", "push", "https://example.com/in", "x"), On: demo, Verified: true}
	never := func(context.Context, permit.Permit) (any, error) {
		t.Error("it was carried out")
		return nil, nil
	}
	b := &book{}
	blocked := upload
	blocked.Op = command("rm", "-rf", "/var/lib/carrel")
	if err := newGate(b).Do(t.Context(), blocked, never); !errdefs.IsPermissionDenied(err) || b.list[0].Type != audit.Denial ||
		b.list[0].Policy != "BLOCK" {
		t.Errorf("%v, %v", err, b.story(0))
	}
	b = &book{}
	refused := gate.Refuse(fmt.Errorf("denied: %w", errdefs.ErrPermissionDenied))
	if err := newGate(b, refused).Do(t.Context(), upload, never); !errdefs.IsPermissionDenied(err) ||
		!slices.Equal(b.story(0), []string{"denial command.exec denied"}) {
		t.Errorf("%v, %v", err, b.story(0))
	}
	b = &book{}
	open := fmt.Errorf("not yet: %w", errdefs.ErrFailedPrecondition)
	if err := newGate(b, open).Do(t.Context(), upload, never); !errdefs.IsFailedPrecondition(err) || len(b.list) != 0 {
		t.Errorf("a question that stays open: %v, %v", err, b.story(0))
	}
	b = &book{}
	if err := newGate(b, gate.ErrJudgeAgain, nil).Do(t.Context(), upload, func(context.Context, permit.Permit) (any, error) {
		return nil,
			nil
	}); err != nil {
		t.Error(err)
	}
	if b.list[0].Approval != "ap-1 once by uid:0" || !slices.Equal(b.story(0), []string{"intent command.exec", "outcome  ok"}) {
		t.Errorf("%+v", b.list)
	}
}

// A step of an authorised operation takes no permission of its own, and is on its target.
func TestSteps(t *testing.T) {
	b := &book{}
	agent := principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: "0123456789ab", Owner: "uid:1000", Roles: principal.Agent}}
	a, err := newGate(b).Authorise(t.Context(), operation.Request{By: agent, Op: command("true"), On: demo}, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := operation.Target{Kind: operation.Workspace, Name: "ws-00000000", Owner: "uid:1001"}
	step, err := a.Step(operation.Simple(operation.StartWorkspace), other).Admit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var on id.Workspace
	if err := step.Do(t.Context(), func(_ context.Context, p permit.Permit) (_ any, err error) {
		on, err = p.Workspace()
		return nil, err
	}); err != nil || on != demo.Name {
		t.Errorf("a step on %s: %v", on, err)
	}
	if r := b.list[0]; r.Principal != agent.String() || r.Workspace != demo.Name || r.Trace != b.list[1].Trace || r.Trace == "" {
		t.Errorf("%+v", r)
	}
}
