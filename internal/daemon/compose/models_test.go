package compose_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways/endpoints"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// hostFile is that of withModels: a model for everybody with the key of root's, one for alice alone, and one whose key is
// each owner's own.
const hostFile = `models:
  house: {api: openai, url: "https://llm.example/v1", key: HOUSE_KEY, secret: SHARED_KEY, prices: {"m": {input: "1", output: "2"}}}
  narrow: {api: anthropic, url: "https://llm.example", key: NARROW_KEY, secret: SHARED_KEY, for: ["uid:1000"]}
  own: {api: openai, url: "https://own.example/v1", key: OWN_KEY}
`

const sharedKey = "the-key-of-the-host"

// withModels is a house whose host has models, at noon of a day.
func withModels(t *testing.T, more string) (*house, *outside, *time.Time) {
	t.Helper()
	noon := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	now := &noon
	h, o := newHouse(t), &outside{}
	h.ways, h.today = o, func() time.Time { return *now }
	h.crash()
	reread(t, h, more)
	h.start()
	keep(t, h, root, "SHARED_KEY", sharedKey, "llm.example")
	return h, o, now
}

func reread(t *testing.T, h *house, more string) {
	t.Helper()
	host, err := conf.Parse("egress.yaml", []byte(hostFile+more))
	if err != nil {
		t.Fatal(err)
	}
	h.host = host
}

func keep(t *testing.T, h *house, p principal.Principal, name, value string, hosts ...string) {
	t.Helper()
	if _, err := h.SetSecret(t.Context(), p, workspace.Secret{Name: name, Hosts: hosts}, redact.NewValue(value)); err != nil {
		t.Fatal(err)
	}
}

func wantedModels(key id.Key, b workspace.ModelBudget, models ...string) workspace.Wanted {
	w := wanted(key, workspace.Limits{}, true)
	w.ModelBudget = b
	for _, text := range models {
		name, secret, _ := strings.Cut(text, "=")
		w.Models = append(w.Models, workspace.ModelUse{Name: name, Secret: secret})
	}
	return w
}

// desk makes a workspace that may use models.
func (h *house) desk(p principal.Principal, key id.Key, b workspace.ModelBudget, models ...string) workspace.Workspace {
	h.t.Helper()
	w, _, err := h.Create(h.t.Context(), p, wantedModels(key, b, models...))
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

// asks makes a request of 3 tokens to the model m of an endpoint.
func (h *house) asks(w workspace.Workspace, endpoint string) error {
	done, err := h.Reserve(h.t.Context(), w.Name, endpoint, "m")
	if err == nil {
		done(egressapi.Usage{Input: 1, Output: 2})
	}
	return err
}

// granted is how many requests are granted until one is refused.
func (h *house) granted(w workspace.Workspace, endpoint string) (n int) {
	h.t.Helper()
	for ; n < 1000; n++ {
		if err := h.asks(w, endpoint); err != nil {
			if !errdefs.IsResourceExhausted(err) {
				h.t.Fatal(err)
			}
			return n
		}
	}
	h.t.Fatal("it is never refused")
	return n
}

// A workspace gets the key on its way out, and its commands where the models are. What was used is shown and recorded.
func TestModelsOfAWorkspace(t *testing.T) {
	h, o, _ := withModels(t, "")
	ctx := t.Context()
	keep(t, h, alice, "OWN_KEY", "the-key-of-alice", "own.example")
	w := h.desk(alice, "demo", workspace.ModelBudget{Requests: 5}, "house", "own")
	opened := string(w.Name) + "  model house=" + sharedKey + " model own=the-key-of-alice"
	if !slices.Equal(o.opened, []string{opened}) || !w.Egress || !slices.Equal(w.Models.Texts(), []string{"house", "own=OWN_KEY"}) {
		t.Errorf("%+v, opened %q", w.Models, o.opened)
	}
	if _, _, err := h.Run(ctx, alice, "demo", execapi.ExecParams{Argv: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	if env := strings.Join(h.rt.lastEnv, " "); !strings.Contains(env, "OPENAI_BASE_URL=http://house.carrel.internal/v1") ||
		strings.Contains(env, "key-of") {
		t.Errorf("the command has %q", env)
	}
	done, err := h.Reserve(ctx, w.Name, "house", "m")
	if err != nil {
		t.Fatal(err)
	}
	done(egressapi.Usage{Input: 1_000_000, Output: 500_000, Unknown: true})
	if _, err := h.Reserve(ctx, w.Name, "narrow", "m"); !errdefs.IsNotFound(err) {
		t.Errorf("one that it does not use: %v", err)
	}
	all, err := h.ModelUsage(ctx, alice, "demo")
	if err != nil || len(all) != 1 || all[0].Today.Tokens != 1_500_000 || all[0].Whole.Money != 2_000_000_000 ||
		all[0].Today.By[0] != (workspace.ModelSum{Model: "house/m", Requests: 1, Tokens: 1_500_000, Money: 2_000_000_000}) {
		t.Errorf("%+v, %v", all, err)
	}
	// Its end is when the rest is recorded.
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	usage := h.usage()
	if len(usage) != 1 || usage[0].used.Endpoint != "house" || usage[0].used.Requests != 1 || usage[0].used.Estimated != 1 ||
		usage[0].Principal != "inside:"+string(w.Name) || usage[0].Owner != alice.Owner() || usage[0].Workspace != w.Name {
		t.Errorf("%+v", usage)
	}
	for _, r := range h.records() {
		if text := string(r.Action) + string(r.Data) + r.Error; strings.Contains(text, "key-of") {
			t.Errorf("the record has %s", text)
		}
	}
	if !slices.ContainsFunc(h.records(), func(r audit.Record) bool {
		return r.Type == audit.Intent && strings.Contains(string(r.Action), `"models":["house","own"],"model_budget":{"requests":5}`)
	}) {
		t.Error("no intent has the models")
	}
	// Another daemon, another start, and another life have the same.
	o.opened = nil
	h.crash()
	h.start()
	if _, err := h.Start(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Destroy(ctx, alice, "demo", false, ""); err != nil {
		t.Fatal(err)
	}
	if w, err = h.Revive(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.opened, []string{opened, opened}) || w.Models.Budget.Requests != 5 {
		t.Errorf("%+v, opened %q", w.Models, o.opened)
	}
	if n := h.granted(w, "house"); n != 4 {
		t.Errorf("%d of 5 requests were granted after one, a crash and a revival", n)
	}
}

type usageRecord struct {
	audit.Record
	used endpoints.Used
}

func (h *house) usage() (all []usageRecord) {
	h.t.Helper()
	for _, r := range h.records() {
		if r.Type != audit.Usage {
			continue
		}
		var data struct{ Models []endpoints.Used }
		if err := json.Unmarshal(r.Data, &data); err != nil || len(data.Models) != 1 {
			h.t.Fatalf("%s: %v", r.Data, err)
		}
		all = append(all, usageRecord{r, data.Models[0]})
	}
	return all
}

// The limit is exact, however many ask at once and however often the daemon is killed. What a kill wastes is less than a
// sixteenth of what was left.
func TestModelRequestsAreExact(t *testing.T) {
	h, _, now := withModels(t, "")
	w := h.desk(alice, "demo", workspace.ModelBudget{Requests: 100}, "house")
	granted := 0
	for range 8 {
		var some sync.WaitGroup
		var mu sync.Mutex
		for range 10 {
			some.Go(func() {
				if done, err := h.Reserve(t.Context(), w.Name, "house", "m"); err == nil {
					mu.Lock()
					granted++
					mu.Unlock()
					_ = done // the daemon is killed before it is told
				}
			})
		}
		some.Wait()
		h.crash()
		h.start()
	}
	granted += h.granted(w, "house")
	if granted > 100 || granted < 60 {
		t.Errorf("%d of 100 requests were granted over 8 kills", granted)
	}
	h.crash()
	h.start()
	if n := h.granted(w, "house"); n != 0 {
		t.Errorf("%d more after a kill", n)
	}
	// A clock that goes back gives nothing, and the next day begins once.
	for _, c := range []struct {
		days int
		want int
	}{{-1, 0}, {0, 0}, {1, 100}, {0, 0}, {1, 0}, {-3, 0}, {2, 100}} {
		day := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC).AddDate(0, 0, c.days)
		*now = day
		if n := h.granted(w, "house"); n != c.want {
			t.Errorf("%v: %d requests were granted, not %d", day, n, c.want)
		}
	}
}

// The budget of an owner is for all workspaces together, and outlives each. Others are not bound by it.
func TestModelBudgetOfAnOwner(t *testing.T) {
	h, _, now := withModels(t, "model_budgets: {everybody: {requests: 6}, \"uid:0\": {}}\n")
	ctx := t.Context()
	one, two := h.desk(alice, "one", workspace.ModelBudget{}, "house"), h.desk(alice, "two", workspace.ModelBudget{}, "house")
	for _, w := range []workspace.Workspace{one, two, one, two} {
		if err := h.asks(w, "house"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Destroy(ctx, alice, "one", true, ""); err != nil {
		t.Fatal(err)
	}
	again := h.desk(alice, "one", workspace.ModelBudget{}, "house")
	if n := h.granted(again, "house"); n != 2 {
		t.Errorf("%d more of 6 were granted after 4", n)
	}
	err := h.asks(two, "house")
	if err == nil || !strings.Contains(err.Error(), "6 requests is used up for today") || !strings.Contains(err.Error(), "that of uid:1000") {
		t.Errorf("%v", err)
	}
	if n := h.granted(h.desk(bob, "bobs", workspace.ModelBudget{}, "house"), "house"); n != 6 {
		t.Errorf("%d of 6 were granted to another", n)
	}
	exempt := h.desk(root, "roots", workspace.ModelBudget{}, "house")
	for range 10 {
		if err := h.asks(exempt, "house"); err != nil {
			t.Fatal(err)
		}
	}
	*now = now.AddDate(0, 0, 1)
	if n := h.granted(two, "house"); n != 6 {
		t.Errorf("%d of 6 were granted the next day", n)
	}
	// That of a model is for all owners.
	reread(t, h, "model_budgets: {}\n")
	text := strings.Replace(hostFile, `secret: SHARED_KEY, prices`, `secret: SHARED_KEY, budget: {tokens: 60}, prices`, 1)
	host, err := conf.Parse("egress.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	h.host = host
	*now = now.AddDate(0, 0, 1)
	if n := h.granted(two, "house") + h.granted(exempt, "house"); n != 20 {
		t.Errorf("%d requests of 3 tokens were granted of 60", n)
	}
	if err := h.asks(two, "house"); err == nil || !strings.Contains(err.Error(), "model house for all workspaces") {
		t.Errorf("%v", err)
	}
}

// Each refusal is recorded once a minute, and counted then.
func TestModelRefusalsAreCounted(t *testing.T) {
	h, _, _ := withModels(t, "")
	w := h.desk(alice, "demo", workspace.ModelBudget{Requests: 1}, "house")
	for range 50 {
		_ = h.asks(w, "house")
	}
	usage := h.usage()
	if len(usage) != 1 || usage[0].Status != audit.StatusDenied || usage[0].used.Refused != 1 ||
		!strings.Contains(usage[0].Error, "carrel update "+string(w.Name)) {
		t.Errorf("%+v", usage)
	}
	if _, err := h.Stop(t.Context(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if usage = h.usage(); len(usage) != 2 || usage[1].used.Refused != 48 || usage[1].used.Requests != 1 {
		t.Errorf("%+v", usage)
	}
}

// A carrel-egress that was taken over asks without end. It is slowed down, and neither the record nor the memory grow.
func TestModelFlood(t *testing.T) {
	h, _, _ := withModels(t, "")
	w := h.desk(alice, "demo", workspace.ModelBudget{}, "house")
	granted, began := 0, time.Now()
	for i := range 20_000 {
		done, err := h.Reserve(t.Context(), w.Name, "house", fmt.Sprint("m", i))
		if err == nil {
			granted++
			done(egressapi.Usage{Input: egressapi.MostTokens})
		} else if !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
	}
	if most := egressapi.MostLeased + int(time.Since(began)/(20*time.Millisecond)) + 1; granted > most {
		t.Errorf("%d requests were granted, and %d may be in that time", granted, most)
	}
	all, err := h.ModelUsage(t.Context(), alice, "demo")
	if err != nil || len(all[0].Today.By) > 33 || all[0].Today.Requests != int64(granted) {
		t.Errorf("%+v, %v", all, err)
	}
	if n := len(h.usage()); n != 0 {
		t.Errorf("%d records were written within a minute", n)
	}
}

// What a turn uses is recorded under its trace, also what is told of after its end; what was used before, or while two turns
// ran, is under none.
func TestUsageOfATurn(t *testing.T) {
	h, _, _ := withModels(t, "")
	w := h.desk(alice, "demo", workspace.ModelBudget{}, "house")
	ask := func() (done func(egressapi.Usage)) {
		t.Helper()
		done, err := h.Reserve(t.Context(), w.Name, "house", "m")
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	one := egressapi.Usage{Input: 1}
	ask()(one)
	first := h.Turn(w.Name, "trace-1")
	late := ask()
	ask()(one)
	first()
	late(one)
	second, third := h.Turn(w.Name, "trace-2"), h.Turn(w.Name, "trace-3")
	ask()(one)
	second()
	third()
	h.Models.Ended(w.Name)
	ask()(one)
	h.Models.Ended(w.Name)
	var got []string
	for _, r := range h.usage() {
		got = append(got, fmt.Sprint(r.Trace, " ", r.used.Requests))
	}
	if want := []string{" 1", "trace-1 2", " 1", "trace-3 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, and not %q", got, want)
	}
}

// The calls of a turn are listed by their digests under its trace, however many, up to a bound for what costs nothing. Without
// a turn one record lists what it has room for. No record is too long for the names that programs choose.
func TestCallsOfATurn(t *testing.T) {
	h, _, _ := withModels(t, "")
	w := h.desk(alice, "demo", workspace.ModelBudget{}, "house")
	digest := strings.Repeat("ab", 32)
	call := func(i int) {
		t.Helper()
		var done func(egressapi.Usage)
		var err error
		for done == nil { // no faster than its pace
			if done, err = h.Reserve(t.Context(), w.Name, "house", fmt.Sprintf("%03d%s", i%100, strings.Repeat("<", 119))); err != nil &&
				!errdefs.IsUnavailable(err) {
				t.Fatal(err)
			}
		}
		done(egressapi.Usage{Input: 1, Call: &egressapi.Call{Sent: digest, SentBytes: int64(i), Came: digest, Status: 200, Whole: true}})
	}
	for i := range 30 {
		call(i)
	}
	over := h.Turn(w.Name, "trace-1")
	const turn = 17*24 + 5
	for i := range turn {
		call(i)
	}
	h.Models.Ended(w.Name)
	over()
	listed, unlisted, last := map[id.Trace]int{}, map[id.Trace]int64{}, int64(-1)
	requests := int64(0)
	for _, r := range h.usage() {
		listed[r.Trace] += len(r.used.Calls)
		unlisted[r.Trace] += r.used.NotListed
		requests += r.used.Requests
		for _, c := range r.used.Calls {
			if c.Sent != digest || c.Came != digest || !c.Whole || !strings.HasSuffix(c.Model, "<<") {
				t.Fatalf("%+v", c)
			}
			if r.Trace != "" {
				if c.SentBytes != last+1 {
					t.Fatalf("call %d follows %d", c.SentBytes, last)
				}
				last = c.SentBytes
			}
		}
	}
	if listed[""] != 24 || unlisted[""] != 6 || listed["trace-1"] != 17*24 || unlisted["trace-1"] != 5 || requests != turn+30 {
		t.Errorf("listed %v, not listed %v, of %d requests", listed, unlisted, requests)
	}
}

// Nobody sees what workspaces of others have used.
func TestWhoSeesModelUsage(t *testing.T) {
	h, _, _ := withModels(t, "")
	ctx := t.Context()
	mine, bobs := h.desk(alice, "mine", workspace.ModelBudget{}, "house"), h.desk(bob, "bobs", workspace.ModelBudget{}, "house")
	for _, w := range []workspace.Workspace{mine, bobs, bobs} {
		if err := h.asks(w, "house"); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Models.Close(ctx); err != nil {
		t.Fatal(err)
	}
	h.crash()
	h.start()
	scoped, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"mine"}})
	for _, c := range []struct {
		p    principal.Principal
		want string
	}{
		{alice, "mine uid:1000 1; uid:1000 1; "},
		{bob, "bobs uid:1001 2; uid:1001 2; "},
		{root, "bobs uid:1001 2; mine uid:1000 1; uid:1000 1; uid:1001 2; "},
		{scoped, "mine uid:1000 1; "},
	} {
		all, err := h.ModelUsage(ctx, c.p, "")
		got := ""
		slices.SortStableFunc(all, func(a, b workspace.ModelUsage) int {
			if (a.Key == "") != (b.Key == "") {
				return strings.Compare(string(b.Key), string(a.Key))
			}
			return strings.Compare(string(a.Key)+a.Owner, string(b.Key)+b.Owner)
		})
		for _, u := range all {
			got += strings.TrimSpace(fmt.Sprint(u.Key, " ", u.Owner, " ", u.Whole.Requests)) + "; "
		}
		if err != nil || got != c.want {
			t.Errorf("%s sees %q, not %q, %v", c.p, got, c.want, err)
		}
	}
	if _, err := h.ModelUsage(ctx, alice, "bobs"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("%v", err)
	}
	if _, own, err := h.ListModels(ctx, scoped); err != nil || own.Whole.Requests != 0 {
		t.Errorf("a token that is limited to some workspaces: %+v, %v", own, err)
	}
}

// An archive has the models of its workspace, for the same owner.
func TestModelsInAnArchive(t *testing.T) {
	h, _, _ := withModels(t, "")
	ctx := t.Context()
	h.desk(alice, "demo", workspace.ModelBudget{Requests: 4}, "house")
	h.mustDo(failure(h.Archive(ctx, alice, "demo", workspace.ArchiveWanted{Live: true}, nil, nil)))
	h.mustDo(failure(h.Restore(ctx, alice, workspace.RestoreWanted{From: "demo", Key: "copy"}, nil, nil)))
	w, err := h.Get(ctx, alice, "copy")
	if err != nil || !slices.Equal(w.Models.Texts(), []string{"house"}) || w.Models.Budget.Requests != 4 {
		t.Fatalf("%+v, %v", w.Models, err)
	}
	if n := h.granted(w, "house"); n != 4 {
		t.Errorf("%d of 4 were granted to a restored workspace", n)
	}
}
