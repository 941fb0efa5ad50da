package compose_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// outside is what is told of rules of the network, and refuses those of *.bad.
type outside struct {
	mu                   sync.Mutex // of what Open and Change append to
	told, opened, closed []string
	fail, unopened       error
	checked              []string // secrets, by CheckSecrets
	unbound              error
	inner                string // a rule beside *.inner that takes an administrator
	initial              map[string]workspace.Reach
}

func (o *outside) Initial(profile string) workspace.Reach { return o.initial[profile] }

func (o *outside) Check(r workspace.Reach, inner bool) error {
	for _, text := range slices.Concat(r.Allow, r.Ask, r.Approved, r.Deny) {
		if strings.HasSuffix(text, ".bad") {
			return fmt.Errorf("cannot use the rule %q: %w", text, errdefs.ErrInvalidArgument)
		}
		if (strings.HasSuffix(text, ".inner") || text == o.inner) && !inner {
			return fmt.Errorf("cannot use the rule %q: %w", text, errdefs.ErrPermissionDenied)
		}
	}
	return nil
}

func (o *outside) InsideTLS(r workspace.Reach) string {
	for _, rule := range r.Allow {
		if strings.Contains(rule, "/v1/") {
			return rule
		}
	}
	return ""
}

func (o *outside) CheckSecrets(_ workspace.Reach, secrets []egressapi.Secret) error {
	for _, s := range secrets {
		o.checked = append(o.checked, s.Name+"="+s.Placeholder+" "+s.Value.Reveal())
	}
	return o.unbound
}

func (o *outside) Explain(r workspace.Reach, secrets []egressapi.Secret, hosts []string) (all []workspace.ReachVerdict, err error) {
	for _, h := range hosts {
		v := workspace.ReachVerdict{Host: h, Action: "deny"}
		if slices.Contains(r.Allow, h) {
			v.Action = "allow"
			for _, s := range secrets {
				v.Secrets = append(v.Secrets, s.Name)
			}
		}
		all = append(all, v)
	}
	return all, nil
}

func (o *outside) Connections(_ context.Context, name id.Workspace, after uint64) (workspace.Connections, error) {
	return workspace.Connections{Open: []workspace.Connection{{Host: string(name), Number: after}}}, nil
}

// secrets are the names of those that a way has, with their values.
func shownSecrets(s egressapi.Secrets) (text string) {
	for _, x := range s.List {
		text += " " + x.Name + "=" + x.Value.Reveal()
	}
	for _, m := range s.Models {
		text += " model " + m.Name + "=" + m.Key.Reveal()
	}
	return text
}

func (o *outside) Open(_ context.Context, name id.Workspace, r workspace.Reach, s egressapi.Secrets) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened = append(o.opened, fmt.Sprint(name, " ", strings.Join(r.Texts(), ","), shownSecrets(s)))
	return o.unopened
}

func (o *outside) Change(_ context.Context, name id.Workspace, r workspace.Reach, s egressapi.Secrets) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, fmt.Sprint(name, " ", strings.Join(r.Texts(), ","), shownSecrets(s)))
	return o.fail
}

func (o *outside) Close(name id.Workspace) { o.closed = append(o.closed, string(name)) }

// withEgress is a house whose daemon puts rules in force.
func withEgress(t *testing.T) (*house, *outside) {
	h, o := newHouse(t), &outside{}
	h.ways = o
	h.crash()
	h.start()
	return h, o
}

func wantedReach(key id.Key, start bool, allow ...string) workspace.Wanted {
	w := wanted(key, workspace.Limits{}, start)
	w.Reach.Allow = allow
	return w
}

func texts(w workspace.Workspace) string { return strings.Join(w.Reach.Texts(), ",") }

func TestCreateWithReach(t *testing.T) {
	h, o := withEgress(t)
	ctx := t.Context()
	want := wantedReach("demo", false, "b.example", "@github", "b.example")
	want.Reach.Deny = []string{"c.example"}
	const rules = "allow b.example,allow @github,deny c.example"
	w, created, err := h.Create(ctx, alice, want)
	if err != nil || !created || texts(w) != rules {
		t.Fatalf("%+v, %v, %v", w.Reach, created, err)
	}
	// The record says it.
	found := false
	for _, r := range h.records() {
		found = found || r.Type == "intent" && strings.Contains(string(r.Action), `"reach":["allow @github","allow b.example","deny c.example"]`)
	}
	if !found {
		t.Error("no intent has the rules")
	}
	// The same, in another order, and none, are what there is. Others are not.
	again := wantedReach("demo", false, "@github", "b.example")
	again.Reach.Deny = []string{"c.example"}
	for _, w := range []workspace.Wanted{again, wanted("demo", workspace.Limits{}, false)} {
		if v, created, err := h.Create(ctx, alice, w); err != nil || created || texts(v) != rules {
			t.Errorf("%+v: %v, %v, %v", w.Reach, texts(v), created, err)
		}
	}
	for _, w := range []workspace.Wanted{wantedReach("demo", false, "b.example", "@github"), wantedReach("demo", false, "z.example")} {
		if _, _, err := h.Create(ctx, alice, w); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "carrel egress rules") {
			t.Errorf("%+v: %v", w.Reach, err)
		}
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || texts(v) != rules {
		t.Errorf("afterwards: %v, %v", texts(v), err)
	}
	// Rules that cannot be used make nothing.
	for _, rule := range []string{"x.bad", "a b", strings.Repeat("x", 301)} {
		if _, _, err := h.Create(ctx, alice, wantedReach("other", false, rule)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", rule, err)
		}
	}
	if h.store.Len() != 1 || len(o.told) != 0 {
		t.Errorf("%d workspaces, told %v", h.store.Len(), o.told)
	}
	// They outlive the daemon.
	h.crash()
	h.start()
	if v, err := h.Get(ctx, alice, "demo"); err != nil || texts(v) != rules {
		t.Errorf("after a start: %v, %v", texts(v), err)
	}
}

// A workspace has the rules of its profile from the start, beside its own, and those of addresses that an owner could not
// give. What the profile says later changes nothing, and neither does a second create.
func TestCreateWithRulesOfTheProfile(t *testing.T) {
	h, o := withEgress(t)
	ctx := t.Context()
	o.initial = map[string]workspace.Reach{
		"": {Allow: []string{"mirror.inner"}, Deny: []string{"ads.example"}}, "named": {Ask: []string{"@llm"}},
	}
	const rules = "allow b.example,allow mirror.inner,deny ads.example"
	own := wantedReach("demo", false, "b.example")
	for i, w := range []workspace.Wanted{own, own, wanted("demo", workspace.Limits{}, false)} {
		if v, created, err := h.Create(ctx, alice, w); err != nil || created != (i == 0) || texts(v) != rules {
			t.Errorf("create %d: %s, %v, %v", i, texts(v), created, err)
		}
	}
	v, _, err := h.Create(ctx, alice, wanted("plain", workspace.Limits{}, false))
	if err != nil || texts(v) != "allow mirror.inner,deny ads.example" {
		t.Errorf("without rules of its own: %s, %v", texts(v), err)
	}
	if _, _, err := h.Create(ctx, alice, wantedReach("more", false, "db.inner")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("an owner's own rule about what is not public: %v", err)
	}
	other := wanted("asked", workspace.Limits{}, false)
	other.Profile = "named"
	if v, _, err := h.Create(ctx, alice, other); err != nil || texts(v) != "ask @llm" {
		t.Errorf("of another profile: %s, %v", texts(v), err)
	}
	o.initial[""] = workspace.Reach{Allow: []string{"new.example"}}
	if v, created, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, false)); err != nil || created || texts(v) != rules {
		t.Errorf("after a change of the profile: %s, %v, %v", texts(v), created, err)
	}
	o.initial[""] = workspace.Reach{Allow: []string{"x.bad"}}
	if _, _, err := h.Create(ctx, alice, wanted("broken", workspace.Limits{}, false)); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), `of the profile "default"`) {
		t.Errorf("a profile that cannot be used: %v", err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || texts(v) != rules {
		t.Errorf("%s, %v", texts(v), err)
	}
}

// A daemon that puts no rules in force takes none, and lets those go that there are.
func TestNoEgressNoRules(t *testing.T) {
	h, _ := withEgress(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, wantedReach("demo", false, "a.example", "z.example")); err != nil {
		t.Fatal(err)
	}
	h.ways = nil
	h.crash()
	h.start()
	_, _, err := h.Create(ctx, alice, wantedReach("other", false, "a.example"))
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "no carrel-egress") || h.store.Len() != 1 {
		t.Errorf("create: %v, %d workspaces", err, h.store.Len())
	}
	for _, c := range []workspace.ReachChange{{Allow: []string{"b.example"}}, {Deny: []string{"b.example"}}} {
		if _, err := h.Update(ctx, alice, "demo", workspace.Change{Reach: c}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for n, rule := range []string{"a.example", "z.example"} {
		want := []string{"allow z.example", ""}[n]
		v, err := h.Update(ctx, alice, "demo", workspace.Change{Reach: workspace.ReachChange{Remove: []string{rule}}})
		if err != nil || texts(v) != want {
			t.Errorf("%s is removed: %v, %v", rule, texts(v), err)
		}
	}
}

func TestUpdateReach(t *testing.T) {
	h, o := withEgress(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	change := func(c workspace.ReachChange) (workspace.Workspace, error) {
		return h.Update(ctx, alice, "demo", workspace.Change{Reach: c})
	}
	more := workspace.ReachChange{Allow: []string{"a.example"}, Deny: []string{"b.example"}}
	// It runs without a way out: the rules are kept, and hold when it starts next.
	if v, err := change(more); err != nil || texts(v) != "allow a.example,deny b.example" || v.Egress {
		t.Errorf("without a way out: %+v, %v", v, err)
	}
	if _, err := change(workspace.ReachChange{Remove: []string{"a.example", "b.example"}}); err != nil {
		t.Errorf("without a way out, they are removed: %v", err)
	}
	if v, err := change(workspace.ReachChange{Deny: []string{"b.example"}}); err != nil || texts(v) != "deny b.example" {
		t.Errorf("what only denies needs no way out: %v, %v", texts(v), err)
	}
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if v, err := change(more); err != nil || texts(v) != "allow a.example,deny b.example" {
		t.Errorf("stopped: %v, %v", texts(v), err)
	}
	if len(o.told) != 0 {
		t.Errorf("told of one without a way out: %v", o.told)
	}
	// Live with a way out, they hold at once.
	h.rt.wayOut(w.Name, runtime.Way{Open: true})
	if v, err := h.Start(ctx, alice, "demo"); err != nil || !v.Egress {
		t.Fatalf("%+v, %v", v, err)
	}
	v, err := change(workspace.ReachChange{Allow: []string{"c.example"}, Remove: []string{"a.example"}})
	if err != nil || texts(v) != "allow c.example,deny b.example" ||
		!slices.Equal(o.told, []string{string(w.Name) + " allow c.example,deny b.example"}) {
		t.Errorf("%v, %v, told %v", texts(v), err, o.told)
	}
	if got := h.last(); !strings.Contains(got, `"reach":["allow c.example"],"unreach":["a.example"]`) {
		t.Errorf("recorded is %s", got)
	}
	for what, c := range map[string]struct {
		change workspace.ReachChange
		is     func(error) bool
	}{
		"one that is not there": {workspace.ReachChange{Remove: []string{"a.example"}}, errdefs.IsNotFound},
		"a bad one":             {workspace.ReachChange{Allow: []string{"x.bad"}}, errdefs.IsInvalidArgument},
		"a space":               {workspace.ReachChange{Deny: []string{"x y"}}, errdefs.IsInvalidArgument},
	} {
		if _, err := change(c.change); !c.is(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.Update(ctx, bob, "demo", workspace.Change{Reach: more}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob changes it: %v", err)
	}
	if v, err := h.Update(ctx, alice, "demo", workspace.Change{Limits: workspace.Limits{Pids: 99}}); err != nil ||
		texts(v) != "allow c.example,deny b.example" || len(o.told) != 1 {
		t.Errorf("another change: %v, %v, told %v", texts(v), err, o.told)
	}
	// What is not in force is said, is stored, and is tried again when it is asked for again.
	o.fail = errors.New("no answer")
	if _, err := change(workspace.ReachChange{Allow: []string{"d.example"}}); err == nil || !strings.Contains(err.Error(), "no answer") ||
		!strings.Contains(err.Error(), "stored") {
		t.Errorf("not in force: %v", err)
	}
	o.fail = nil
	if v, err := change(workspace.ReachChange{Allow: []string{"d.example"}}); err != nil ||
		texts(v) != "allow c.example,allow d.example,deny b.example" || len(o.told) != 3 {
		t.Errorf("again: %v, %v, told %v", texts(v), err, o.told)
	}
	if v, err := change(workspace.ReachChange{Remove: []string{"b.example", "c.example", "d.example"}}); err != nil || !v.Reach.Empty() ||
		o.told[len(o.told)-1] != string(w.Name)+" " {
		t.Errorf("all: %v, %v, told %q", texts(v), err, o.told)
	}
}

// last is the action of the newest intent.
func (h *house) last() (action string) {
	for _, r := range h.records() {
		if r.Type == "intent" {
			action = string(r.Action)
		}
	}
	return action
}

// A request that is repeated changes nothing twice.
func TestReachChangesOnce(t *testing.T) {
	h, _ := withEgress(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, wantedReach("demo", false, "a.example")); err != nil {
		t.Fatal(err)
	}
	c := workspace.Change{Reach: workspace.ReachChange{Remove: []string{"a.example"}}, Request: "r"}
	for range 2 {
		if v, err := h.Update(ctx, alice, "demo", c); err != nil || !v.Reach.Empty() {
			t.Errorf("%v, %v", texts(v), err)
		}
	}
	c.Reach = workspace.ReachChange{Allow: []string{"a.example"}}
	if _, err := h.Update(ctx, alice, "demo", c); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another change under that id: %v", err)
	}
}

// What a workspace might reach comes back with it.
func TestReachComesBack(t *testing.T) {
	h, _ := withEgress(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, wantedReach("demo", true, "a.example")); err != nil {
		t.Fatal(err)
	}
	h.mustDo(failure(h.archive(ctx, workspace.ArchiveWanted{Live: true})))
	if v, err := h.Restore(ctx, alice, workspace.RestoreWanted{From: "demo", Key: "copy"}, nil, nil); err != nil ||
		texts(v) != "allow a.example" {
		t.Errorf("restored: %v, %v", texts(v), err)
	}
	if v, err := h.Restore(ctx, alice, workspace.RestoreWanted{Key: "strange"}, strings.NewReader("theirs"), nil); err != nil ||
		!v.Reach.Empty() {
		t.Errorf("restored from elsewhere: %v, %v", texts(v), err)
	}
	if _, err := h.Destroy(ctx, alice, "demo", false, ""); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Revive(ctx, alice, "demo"); err != nil || texts(v) != "allow a.example" {
		t.Errorf("revived: %v, %v", texts(v), err)
	}
}

// A create that broke off is finished with the rules that it was for.
func TestCreateBreaksOffWithReach(t *testing.T) {
	h, _ := withEgress(t)
	ctx := t.Context()
	h.rt.setDeaf(errdefs.ErrUnavailable)
	if _, _, err := h.Create(ctx, alice, wantedReach("demo", false, "a.example")); !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
	h.rt.setDeaf(nil)
	if _, _, err := h.Create(ctx, alice, wantedReach("demo", false, "b.example")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("with others: %v", err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || texts(v) != "allow a.example" {
		t.Errorf("%v, %v", texts(v), err)
	}
}

// The way out of a workspace is opened before its start has ended, and closed before its stop has. If it cannot be
// opened the workspace does not run.
func TestWayFollowsTheWorkspace(t *testing.T) {
	h, o := withEgress(t)
	ctx := t.Context()
	w, _, err := h.Create(ctx, alice, wantedReach("demo", true, "a.example"))
	if err != nil || !w.Egress {
		t.Fatalf("%+v, %v", w, err)
	}
	name := string(w.Name)
	if want := []string{name + " allow a.example"}; !slices.Equal(o.opened, want) {
		t.Errorf("opened %q, not %q", o.opened, want)
	}
	if _, _, err := h.Create(ctx, alice, wanted("plain", workspace.Limits{}, true)); err != nil || len(o.opened) != 1 {
		t.Errorf("without rules: %v, opened %q", err, o.opened)
	}
	// The next daemon opens it for what runs.
	h.crash()
	h.start()
	if len(o.opened) != 2 || o.opened[1] != o.opened[0] {
		t.Errorf("after a start opened %q", o.opened)
	}
	if _, err := h.Stop(ctx, alice, "demo"); err != nil || !slices.Equal(o.closed, []string{name}) {
		t.Errorf("%v, closed %q", err, o.closed)
	}
	o.unopened = fmt.Errorf("planted: %w", errdefs.ErrUnavailable)
	if _, err := h.Start(ctx, alice, "demo"); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "planted") {
		t.Errorf("without a way out: %v", err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || v.State != workspace.StateStopped {
		t.Errorf("it is %s, %v", v.State, err)
	}
	if _, _, err := h.Create(ctx, alice, wantedReach("second", true, "a.example")); !errdefs.IsUnavailable(err) {
		t.Errorf("made without a way out: %v", err)
	}
	if v, err := h.Get(ctx, alice, "second"); err != nil || v.State != workspace.StateStopped {
		t.Errorf("it is %s, %v", v.State, err)
	}
	o.unopened = nil
	if v, err := h.Start(ctx, alice, "second"); err != nil || v.State != workspace.StateRunning {
		t.Errorf("%s, %v", v.State, err)
	}
	before := len(o.closed)
	if _, err := h.Destroy(ctx, alice, "second", true, ""); err != nil || len(o.closed) == before {
		t.Errorf("destroyed: %v, closed %q", err, o.closed)
	}
}

// An owner names no address that is not public; an administrator does, and the owner may add to that.
func TestOwnersNameNothingInner(t *testing.T) {
	h, _ := withEgress(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, wantedReach("demo", false, "a.inner")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("made: %v", err)
	}
	w, _, err := h.Create(ctx, alice, wantedReach("demo", false, "a.example"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(text string) workspace.Change {
		return workspace.Change{Reach: workspace.ReachChange{Allow: []string{text}}}
	}
	if _, err := h.Update(ctx, alice, "demo", change("a.inner")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("changed: %v", err)
	}
	denied := 0
	for _, r := range h.records() {
		if r.Status == "denied" {
			denied++
		}
	}
	if denied != 2 {
		t.Errorf("%d denials are recorded", denied)
	}
	if _, err := h.Update(ctx, root, string(w.Name), change("a.inner")); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	if v, err := h.Update(ctx, alice, "demo", change("b.example")); err != nil || texts(v) != "allow a.example,allow a.inner,allow b.example" {
		t.Errorf("%s, %v", texts(v), err)
	}
}
