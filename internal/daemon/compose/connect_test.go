package compose_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// connection is one that waits for a person.
type connection struct {
	question approval.View
	gone     chan struct{} // close it and nobody waits any more
	end      chan string   // "allowed", or why not
}

var outward = operation.Connect{Host: "api.example", Port: 443, Rule: "*.example"}

// connecting has a person asked about a connection, and returns once one is.
func (h *house) connecting(name id.Workspace, to operation.Connect, wait time.Duration) connection {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	asked, watching := make(chan approval.View, 1), make(chan struct{})
	go h.WatchApprovals(ctx, root, func(a *approval.View) error {
		if a == nil {
			close(watching)
			return nil
		}
		select {
		case <-watching:
		default:
			return nil // of before
		}
		if a.Kind != operation.ConnectOut || a.State != approval.Pending {
			return nil
		}
		asked <- *a
		return errEnough
	})
	<-watching
	c := connection{gone: make(chan struct{}), end: make(chan string, 1)}
	go func() {
		allowed, why := h.Connect(name, to, wait, c.gone)
		if allowed {
			why = "allowed" + why
		}
		c.end <- why
	}()
	select {
	case c.question = <-asked:
	case why := <-c.end:
		h.t.Fatalf("nobody was asked: %s", why)
	}
	return c
}

func (h *house) answerAt(p principal.Principal, a approval.View, kind approval.Kind, reason string) error {
	h.t.Helper()
	_, err := h.Answer(h.t.Context(), p, a.ID, kind, reason, true)
	return err
}

// A connection is asked about, recorded and answered as an operation is, and its question says all that it is about.
func TestConnectionIsAskedAbout(t *testing.T) {
	h := newHouse(t)
	w := h.create(alice, "demo")
	at := len(h.records())
	c := h.connecting(w.Name, outward, time.Minute)
	a := c.question
	by := "inside:" + string(w.Name)
	if a.Subject.By != by || a.Approval.Owner != "uid:1000" || a.Question.Owner != "uid:1000" || a.Key != "demo" || a.Host != "api.example" ||
		a.Port != 443 || a.Rule != "*.example" || !a.Written || !a.Final || a.Always != "api.example:443" || a.Source != rules.LLM ||
		a.Until.Sub(a.AskedAt) != time.Minute || a.Decision.Level != rules.Confirm {
		t.Errorf("asked %+v", a)
	}
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if got := <-c.end; got != "allowed" {
		t.Fatal(got)
	}
	h.expect(at, "request network.connect", "approval ok", "intent network.connect", "outcome ok")
	for _, r := range h.records()[at:] {
		if r.Type != audit.Approval && r.Type != audit.Outcome && (r.Principal != by || r.Owner != "uid:1000" || r.Workspace != w.Name ||
			!strings.Contains(string(r.Action), `"host":"api.example","port":443,"rule":"*.example"`)) {
			t.Errorf("recorded %+v", r)
		}
	}
	// It was for once.
	c = h.connecting(w.Name, outward, time.Minute)
	if err := h.answerAt(root, c.question, approval.Deny, "too curious"); err != nil {
		t.Fatal(err)
	}
	if got := <-c.end; got != "uid:0 denied it: too curious" {
		t.Errorf("denied: %s", got)
	}
	c = h.connecting(w.Name, outward, 30*time.Millisecond)
	if got := <-c.end; got != "nobody answered in time" {
		t.Errorf("unanswered: %s", got)
	}
	if allowed, why := h.Connect("ws-00000000", outward, time.Minute, nil); allowed || why != "nobody can be asked now" {
		t.Errorf("a workspace that is not there: %v, %s", allowed, why)
	}
}

// Its owner answers at a terminal, and administrators do. No token does, whatever it may: its holder may have started
// the program.
func TestWhoAnswersConnections(t *testing.T) {
	h := newHouse(t)
	w := h.create(alice, "demo")
	made := func(by principal.Principal, roles principal.Roles) principal.Principal {
		p, _ := h.issue(by, principal.Wanted{Roles: roles})
		return p
	}
	agent, approver, operator := made(alice, principal.Agent), made(alice, principal.Approver), made(alice, principal.Operator)
	ruler := made(root, principal.Admin)
	c := h.connecting(w.Name, outward, time.Minute)
	for what, x := range map[string]struct {
		p        principal.Principal
		terminal bool
	}{
		"a stranger": {bob, true}, "the owner, not at a terminal": {alice, false}, "an agent": {agent, true}, "an approver": {approver, true},
		"an operator": {operator, true}, "an administrator's token": {ruler, true}, "the daemon": {principal.Self(), true},
		"what runs there": {principal.InWorkspace(w.Name, "uid:1000"), true}, "nobody": {principal.Principal{}, true},
	} {
		for _, kind := range []approval.Kind{approval.Once, approval.Always, approval.Thread} {
			if _, err := h.Answer(t.Context(), x.p, c.question.ID, kind, "", x.terminal); !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s, %s: %v", what, kind, err)
			}
		}
	}
	if err := h.answerAt(alice, c.question, approval.Thread, ""); !errdefs.IsPermissionDenied(err) {
		t.Errorf("for a thread: %v", err)
	}
	if v, err := h.Get(t.Context(), alice, "demo"); err != nil || !v.Reach.Empty() {
		t.Errorf("a refused answer gave rules: %+v, %v", v.Reach, err)
	}
	for what, p := range map[string]principal.Principal{"the owner": alice, "root": root, "an administrator": admin} {
		if err := h.answerAt(p, c.question, approval.Once, ""); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := <-c.end; got != "allowed" {
			t.Error(got)
		}
		c = h.connecting(w.Name, outward, time.Minute)
	}
	// Whoever sees it may deny.
	if _, err := h.Answer(t.Context(), approver, c.question.ID, approval.Deny, "", false); err != nil {
		t.Error(err)
	}
	if got := <-c.end; !strings.Contains(got, "denied it") {
		t.Error(got)
	}
	// What is no connection is not allowed for ever.
	if err := h.answerAt(root, h.askNow(alice, upload("llm", "")), approval.Always, ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a command, always: %v", err)
	}
}

// Always gives the workspace a rule, as the one who answers could have, and not otherwise.
func TestConnectionIsAllowedAlways(t *testing.T) {
	h, o := withEgress(t)
	ctx := t.Context()
	want := wanted("demo", workspace.Limits{}, true)
	want.Reach.Ask = []string{"*.example", "x.inner"}
	w, _, err := h.Create(ctx, root, want)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.opened, []string{string(w.Name) + " ask *.example,ask x.inner"}) {
		t.Fatalf("opened %q", o.opened)
	}
	at := len(h.records())
	c := h.connecting(w.Name, outward, time.Minute)
	if err := h.answerAt(admin, c.question, approval.Always, ""); err != nil {
		t.Fatal(err)
	}
	if got := <-c.end; got != "allowed" {
		t.Error(got)
	}
	const rules = "ask *.example,ask x.inner,approved api.example:443"
	if v, err := h.Get(ctx, root, "demo"); err != nil || texts(v) != rules {
		t.Errorf("%s, %v", texts(v), err)
	}
	if !slices.Equal(o.told, []string{string(w.Name) + " " + rules}) {
		t.Errorf("told %q", o.told)
	}
	h.expect(at, "request network.connect", "intent workspace.update", "outcome ok", "approval ok", "intent network.connect", "outcome ok")
	update := h.records()[at+1]
	if update.Principal != "uid:1002" || !strings.Contains(string(update.Action), `"reach":["approved api.example:443"]`) {
		t.Errorf("recorded %+v", update)
	}
	// A create with the rules that it was made with finds it.
	if v, created, err := h.Create(ctx, root, want); err != nil || created || v.Name != w.Name {
		t.Errorf("again: %v, %v", created, err)
	}
	// It is removed as others are.
	change := workspace.Change{Reach: workspace.ReachChange{Remove: []string{"api.example:443"}}}
	if v, err := h.Update(ctx, root, "demo", change); err != nil || texts(v) != "ask *.example,ask x.inner" {
		t.Errorf("removed: %v, %v", texts(v), err)
	}
	// The rule is that of the one who answers: what they may not give, they do not give so.
	want = wanted("hers", workspace.Limits{}, true)
	want.Reach.Ask = []string{"*.example"}
	if w, _, err = h.Create(ctx, alice, want); err != nil {
		t.Fatal(err)
	}
	inner := operation.Connect{Host: "x.inner", Port: 1, Rule: "x"}
	o.inner = "x.inner:1"
	c = h.connecting(w.Name, inner, time.Minute)
	if err := h.answerAt(alice, c.question, approval.Always, ""); !errdefs.IsPermissionDenied(err) ||
		!strings.Contains(err.Error(), "is as it was") {
		t.Errorf("a rule that she may not give: %v", err)
	}
	if err := h.answerAt(alice, c.question, approval.Once, ""); err != nil {
		t.Errorf("once: %v", err)
	}
	if got := <-c.end; got != "allowed" {
		t.Error(got)
	}
}

// A question ends with the connection, and is not answered after that.
func TestConnectionIsGone(t *testing.T) {
	h := newHouse(t)
	w := h.create(alice, "demo")
	c := h.connecting(w.Name, outward, time.Minute)
	at := len(h.records())
	close(c.gone)
	if got := <-c.end; got == "allowed" {
		t.Error("it is allowed")
	}
	h.expect(at, "approval denied", "denial network.connect denied permission_denied")
	for _, kind := range []approval.Kind{approval.Once, approval.Always, approval.Deny} {
		if err := h.answerAt(root, c.question, kind, ""); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s after the end: %v", kind, err)
		}
	}
	if v, err := h.Approval(t.Context(), alice, c.question.ID); err != nil || v.State != approval.Expired {
		t.Errorf("%s, %v", v.State, err)
	}
	if list, _, err := h.Approvals(t.Context(), root, approval.Filter{State: approval.Pending, Limit: 9}); err != nil || len(list) != 0 {
		t.Errorf("%d pending, %v", len(list), err)
	}
	// An answer that comes at the same time counts or fails, and never both.
	for range 20 {
		c := h.connecting(w.Name, outward, time.Minute)
		go close(c.gone)
		err := h.answerAt(root, c.question, approval.Once, "")
		if got := <-c.end; (got == "allowed") != (err == nil) {
			t.Errorf("%s, and the answer: %v", got, err)
		}
	}
}

// A daemon that starts again ends the questions about connections, and keeps the others.
func TestConnectionsEndWithTheDaemon(t *testing.T) {
	h := newHouse(t)
	w := h.create(alice, "demo")
	command := h.askNow(alice, upload("llm", ""))
	c := h.connecting(w.Name, outward, time.Hour)
	h.StopAsking()
	if got := <-c.end; got != "nobody can be asked now" {
		t.Errorf("at the end of the daemon: %s", got)
	}
	h.crash()
	h.start()
	if v, err := h.Approval(t.Context(), root, c.question.ID); err != nil || v.State != approval.Expired {
		t.Errorf("%s, %v", v.State, err)
	}
	if n := h.ends(); len(n) != 1 || n[string(c.question.ID)] != 1 {
		t.Errorf("ends %v", n)
	}
	if err := h.answerAt(root, c.question, approval.Once, ""); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("answered after the start: %v", err)
	}
	if v, err := h.Approval(t.Context(), root, command.ID); err != nil || v.State != approval.Pending {
		t.Errorf("the command: %s, %v", v.State, err)
	}
	h.crash()
	h.start()
	if n := h.ends(); n[string(c.question.ID)] != 1 {
		t.Errorf("after another start %v", n)
	}
}

// What programs in workspaces ask counts for the owner's bounds.
func TestConnectionsAreBounded(t *testing.T) {
	h := newHouse(t)
	h.budget = gate.Budget{Daily: 40_000}
	h.crash()
	h.start()
	w := h.create(alice, "demo")
	var open []connection
	refused := ""
	for n := range 100 {
		to := outward
		to.Host = fmt.Sprintf("h%d.example", n)
		done := make(chan string, 1)
		gone := make(chan struct{})
		go func() {
			_, why := h.Connect(w.Name, to, time.Minute, gone)
			done <- why
			close(done)
		}()
		open = append(open, connection{gone: gone, end: done})
	}
	for range 100 {
		for _, c := range open {
			select {
			case why, first := <-c.end:
				if first {
					refused = why
				}
			default:
			}
		}
		if refused != "" {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	if !strings.Contains(refused, "too much was recorded") {
		t.Errorf("refused: %q", refused)
	}
	asked := func() int {
		list, _, err := h.Approvals(t.Context(), root, approval.Filter{State: approval.Pending, Limit: 200})
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for end := time.Now().Add(time.Minute); asked() == 0 && time.Now().Before(end); <-time.After(10 * time.Millisecond) {
	}
	if n := asked(); n == 0 || n > 50 {
		t.Errorf("%d questions", n)
	}
	h.create(bob, "his") // others go on
	for _, c := range open {
		close(c.gone)
	}
	for _, c := range open {
		select {
		case <-c.end:
		case <-time.After(20 * time.Second):
			t.Fatal("one does not end")
		}
	}
}
