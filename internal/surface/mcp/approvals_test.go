package mcp_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// asker is a gate that has a person asked about each command with the word "risky".
type asker struct {
	*apitest.Gate
	mu      sync.Mutex
	changed chan struct{}
	all     []approval.View
	ran     int
}

func newAsker() *asker { return &asker{Gate: &apitest.Gate{}, changed: make(chan struct{})} }

func (g *asker) Spawn(
	ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool, files ...*os.File,
) (id.Command, runtime.Process, error) {
	if !slices.Contains(e.Argv, "risky") {
		return g.Gate.Spawn(ctx, p, ref, e, tty, files...)
	}
	w, err := g.Get(ctx, p, ref)
	if err != nil {
		return "", nil, err
	}
	g.mu.Lock()
	i := slices.IndexFunc(g.all, func(v approval.View) bool {
		return slices.Equal(v.Subject.Argv, e.Argv) && (v.State == approval.Pending || v.State == approval.Approved)
	})
	if i < 0 {
		a, err := approval.New(approval.Ask{
			ID: id.NewApproval(), Written: true,
			Subject: approval.Subject{Digest: "sha256:1", By: p.String(), Policy: "sha256:2", Argv: e.Argv, Workspace: w.Name},
		}, time.Now(), 0)
		if err != nil {
			g.mu.Unlock()
			return "", nil, err
		}
		g.all = append(g.all, approval.View{Approval: a, Question: approval.Question{Argv: e.Argv, Key: w.Key, Owner: w.Owner}})
		i = len(g.all) - 1
	}
	v := &g.all[i]
	if v.State == approval.Pending {
		name := v.ID
		g.mu.Unlock()
		return "", nil, fmt.Errorf("cannot run it yet: a person has to approve it: approval %s, open until then; see it: %w", name,
			errdefs.ErrFailedPrecondition)
	}
	v.State = approval.Spent
	g.ran++
	g.mu.Unlock()
	return g.Gate.Spawn(ctx, p, ref, e, tty, files...)
}

// change changes the newest question.
func (g *asker) change(kind approval.Kind, state approval.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := &g.all[len(g.all)-1]
	v.State, v.Answer = state, &approval.Answer{Kind: kind, By: "uid:0", Reason: "why\x1b[2J", At: time.Now()}
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *asker) newest() approval.View {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[len(g.all)-1]
}

func (g *asker) count() (asked, ran int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all), g.ran
}

func (g *asker) Approval(_ context.Context, _ principal.Principal, name id.Approval) (approval.View, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range g.all {
		if v.ID == name {
			return v, nil
		}
	}
	return approval.View{}, fmt.Errorf("cannot find approval %s: %w", name, errdefs.ErrNotFound)
}

func (g *asker) Answer(_ context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string, terminal bool,
	_ ...string,
) (approval.View, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.all {
		if v := &g.all[i]; v.ID == name {
			var err error
			v.Approval, err = v.Reply(p, terminal, kind, reason, time.Now())
			close(g.changed)
			g.changed = make(chan struct{})
			return *v, err
		}
	}
	return approval.View{}, errdefs.ErrNotFound
}

func (g *asker) WatchApprovals(ctx context.Context, _ principal.Principal, emit func(*approval.View) error) error {
	for first := true; ; first = false {
		g.mu.Lock()
		all, changed := slices.Clone(g.all), g.changed
		g.mu.Unlock()
		for i := range all {
			if first && all[i].State != approval.Pending {
				continue
			}
			if err := emit(&all[i]); err != nil {
				return err
			}
		}
		if first {
			if err := emit(nil); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

var risky = args{"argv": []string{"echo", "risky", "done"}}

// Without elicitation the call returns an id, and wait_approval carries the call out once.
func TestApprovalByID(t *testing.T) {
	for _, version := range []string{old, "2026-07-28"} {
		g := newAsker()
		s := desk(t, g, "demo")
		c, other := client(t, s, version, nil), client(t, s, version, nil)
		fails(t, c, "exec", risky, "not run: a person has to approve it (approval ap-")
		name := string(g.newest().ID)
		wait := args{"approval": name, "wait_s": 0.05}
		works(t, c, "wait_approval", wait, "still waits for a person")
		fails(t, c, "exec", risky, name) // no second question
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "carrel://approvals/ap-0000000000000000"})
		if err == nil {
			t.Errorf("a resource of an approval that is not there: %+v", r.Contents)
		}
		g.change(approval.Once, approval.Approved)
		if r, err = c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "carrel://approvals/" + name}); err != nil ||
			!strings.Contains(r.Contents[0].Text, `"approved"`) {
			t.Errorf("%v", err)
		}
		fails(t, other, "wait_approval", wait, "has no call of it that waits") // it is the other session's
		works(t, c, "wait_approval", wait, "risky done")
		fails(t, c, "wait_approval", wait, "was used already")
		if asked, ran := g.count(); asked != 1 || ran != 1 {
			t.Errorf("asked %d times, ran %d times", asked, ran)
		}
	}
}

// A model cannot wait for, or read, what is about another workspace.
func TestApprovalOfAnother(t *testing.T) {
	g := newAsker()
	all := desk(t, g, "")
	c := client(t, all, old, nil)
	fails(t, c, "exec", args{"workspace": "other", "argv": risky["argv"]}, "not run")
	name := string(g.newest().ID)
	s := desk(t, g, "demo")
	c = client(t, s, old, nil)
	fails(t, c, "wait_approval", args{"approval": name}, "there is none here")
	if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "carrel://approvals/" + name}); err == nil {
		t.Error("a bound server shows an approval of another workspace")
	}
}

// A call that claims to be made again waits for the answer as any other.
func TestForgedState(t *testing.T) {
	g := newAsker()
	c := client(t, desk(t, g, "demo"), "2026-07-28", &sdk.ClientOptions{
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		Capabilities:   &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{}},
	})
	call := func(state string) *sdk.CallToolResult {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: risky, RequestState: state, InputResponses: sdk.InputResponseMap{
			"approval": &sdk.ElicitResult{Action: "accept", Content: map[string]any{}},
		}})
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		return r
	}
	if r := call("ap-0123456789abcdef"); r == nil || r.InputRequests["approval"] == nil || r.RequestState != string(g.newest().ID) {
		t.Errorf("another state: %+v", r)
	}
	if r := call(string(g.newest().ID)); r != nil {
		t.Errorf("it did not wait: %+v", r)
	}
	if asked, ran := g.count(); asked != 1 || ran != 0 {
		t.Errorf("asked %d times, ran %d times", asked, ran)
	}
}

// elicited is a client that answers elicitations.
func elicited(answer func(text string) (string, error)) *sdk.ClientOptions {
	return &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		action, err := answer(r.Params.Message)
		return &sdk.ElicitResult{Action: action, Content: map[string]any{}}, err
	}}
}

// A client that accepts at once, as a program would, has approved nothing: the call waits for who may.
func TestElicitationNeverApproves(t *testing.T) {
	for _, version := range []string{old, "2026-07-28"} {
		t.Run(version, func(t *testing.T) { neverApproves(t, version) })
	}
}

func neverApproves(t *testing.T, version string) {
	t.Helper()
	g := newAsker()
	shown := make(chan string, 1)
	c := client(t, desk(t, g, "demo"), version, elicited(func(text string) (string, error) { shown <- text; return "accept", nil }))
	ended := make(chan string, 1)
	go func() { ended <- works(t, c, "exec", risky, "risky done") }()
	text := <-shown
	for _, want := range []string{"echo risky done", "demo", "carrel approvals approve " + string(g.newest().ID), "approves nothing"} {
		if !strings.Contains(text, want) {
			t.Errorf("the person is not told %q: %s", want, text)
		}
	}
	// A round trip later nothing has run, and it still waits.
	works(t, c, "exec", args{"command": "echo free"}, "free")
	if _, ran := g.count(); ran != 0 || g.newest().State != approval.Pending {
		t.Fatalf("accepting ran it: %d, %s", ran, g.newest().State)
	}
	select {
	case text := <-ended:
		t.Fatalf("it did not wait: %s", text)
	default:
	}
	g.change(approval.Once, approval.Approved)
	<-ended
	if asked, ran := g.count(); asked != 1 || ran != 1 {
		t.Errorf("asked %d times, ran %d times", asked, ran)
	}
}

func TestElicitationEnds(t *testing.T) {
	for _, version := range []string{old, "2026-07-28"} {
		t.Run(version, func(t *testing.T) { elicitationEnds(t, version) })
	}
}

func elicitationEnds(t *testing.T, version string) {
	t.Helper()
	g := newAsker()
	s := desk(t, g, "demo")
	c := client(t, s, version, elicited(func(string) (string, error) { return "decline", nil }))
	fails(t, c, "exec", risky, "the user declined")
	if v := g.newest(); v.State != approval.Denied || v.Answer.By != "uid:1000" || v.Answer.Reason == "" {
		t.Errorf("%+v", v.Approval)
	}
	fails(t, c, "wait_approval", args{"approval": string(g.newest().ID)}, "denied approval")

	c = client(t, s, version, elicited(func(string) (string, error) { return "cancel", nil }))
	fails(t, c, "exec", risky, "not run: a person has to approve it")
	if version != old {
		return // the client is asked by the result of a call, and nothing waits here
	}
	c = client(t, s, old, elicited(func(string) (string, error) { return "", errdefs.ErrInternal }))
	fails(t, c, "exec", risky, "not run: a person has to approve it")

	// Answered elsewhere while the person at the client still looks at it.
	hold := make(chan struct{})
	seen := make(chan struct{}, 1)
	c = client(t, s, old, elicited(func(string) (string, error) { seen <- struct{}{}; <-hold; return "cancel", nil }))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fails(t, c, "exec", risky, `uid:0 denied approval `)
	}()
	<-seen
	g.change(approval.Deny, approval.Denied)
	<-ended
	close(hold)
	if _, ran := g.count(); ran != 0 {
		t.Errorf("%d ran", ran)
	}
}

// The package has no way to approve: the one answer in it is a denial, and it writes no rule.
func TestNothingApproves(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 8 {
		t.Fatalf("%v: %v", files, err)
	}
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, answers(t, name, string(b))...)
	}
	if !slices.Equal(found, []string{`AnswerApproval "deny"`}) {
		t.Errorf("answers in the package: %q", found)
	}
	const planted = `package mcp
func x() { c.AnswerApproval(ctx, connect.NewRequest(&carrelv1.AnswerApprovalRequest{Kind: kind})); c.AllowCommand(ctx, nil) }`
	if got := answers(t, "planted.go", planted); !slices.Equal(got, []string{"AnswerApproval kind", "AllowCommand"}) {
		t.Errorf("planted: %q", got)
	}
}

// answers lists what a file does about approvals and rules beside looking at them.
func answers(t *testing.T, name, text string) (found []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.SelectorExpr:
			if slices.Contains([]string{"AllowCommand", "RevokePermission"}, x.Sel.Name) {
				found = append(found, x.Sel.Name)
			}
		case *ast.CompositeLit:
			sel, ok := x.Type.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "AnswerApprovalRequest" {
				return true
			}
			kind := "none"
			for _, e := range x.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok && fmt.Sprint(kv.Key) == "Kind" {
					switch v := kv.Value.(type) {
					case *ast.BasicLit:
						kind = v.Value
					case *ast.Ident:
						kind = v.Name
					}
				}
			}
			found = append(found, "AnswerApproval "+kind)
		}
		return true
	})
	return found
}
