package compose_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// ordered runs a turn of alice's with an order.
func (h *house) ordered(by *hostsDouble, order fanout.Order) workspace.Task {
	h.t.Helper()
	return h.grouped(by, fanout.Orders{All: order})
}

func (h *house) grouped(by *hostsDouble, orders fanout.Orders) workspace.Task {
	h.t.Helper()
	spec := workspace.TaskSpec{Protocol: "agent", Prompt: "do it", Serve: true, Orders: orders}
	task, err := h.RunTask(h.t.Context(), alice, "demo", run("agent"), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	leave, _, err := h.ServeHosts(h.t.Context(), alice, "demo", task.ID, by)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(leave)
	return task
}

func hostNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("h%d", i))
	}
	return names
}

// A step for several hosts begins on no more of them than its order says, stops where too many have failed, and what was not
// begun is said. A host where a step has failed takes no further part.
func TestOrderOfHosts(t *testing.T) {
	for name, x := range map[string]struct {
		order  fanout.Order
		fails  []string // hosts on which the first step fails
		ran    int      // hosts on which it is begun
		second int      // hosts on which the second one is
		words  string
	}{
		"usual":                 {fanout.Order{}, nil, 10, 10, "the first host alone, then the others, 8 at once"},
		"the canary fails":      {fanout.Order{MaxFailures: "100%"}, []string{"h0"}, 1, 0, "the first host alone"},
		"another fails":         {fanout.Order{}, []string{"h3"}, 10, 0, "if one fails, no further batch"},
		"a batch fails":         {fanout.Order{Serial: "3"}, []string{"h3"}, 4, 0, "batches of 3, 3 at once"},
		"a share is a batch":    {fanout.Order{Serial: "20%", NoCanary: true}, []string{"h0"}, 2, 0, "batches of 2, 2 at once"},
		"none may fail":         {fanout.Order{Forks: 1, MaxFailures: "0"}, []string{"h3"}, 4, 0, "if one fails, no further host"},
		"some may fail":         {fanout.Order{Forks: 1, MaxFailures: "2"}, []string{"h3", "h5"}, 10, 8, "if more than 2 fail"},
		"more than may":         {fanout.Order{Forks: 1, MaxFailures: "10%"}, []string{"h3", "h5"}, 6, 0, "if more than 1 fail"},
		"no canary, none works": {fanout.Order{NoCanary: true, MaxFailures: "100%"}, hostNames(10), 10, 0, "all hosts, 8 at once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, told := proposing(t, judged, planText(onTarget("remote *", "uptime"), onTarget("remote *", "uname"), onTarget("remote h9", "id")))
			d := &hostsDouble{remotes: hostNames(10)}
			var now, most atomic.Int32
			d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				code := 0
				if c.Argv[2] == "uptime" && slices.Contains(x.fails, c.Name) {
					code = 7
				}
				return runtime.HostResult{Status: &execapi.Status{Code: code}}, nil
			}
			var task workspace.Task
			a := h.pendingOf(func() { task = h.ordered(d, x.order) })
			if text := strings.Join(a.Argv, "\n"); !strings.Contains(text, "1 to 10: ") || !strings.Contains(text, x.words) {
				t.Errorf("asked %q", a.Argv)
			}
			if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
				t.Fatal(err)
			}
			r := next(t, told)
			ran := map[string]int{}
			for _, c := range d.all() {
				ran[c[strings.LastIndexByte(c, ' ')+1:]]++
			}
			outcome, notBegun := "failed", 21-x.ran-x.second
			if x.second > 0 {
				outcome, notBegun = "done", 10-x.second
				if ran["id"] != 1 {
					t.Errorf("the last step ran %d times", ran["id"])
				}
			}
			if r.Outcome != outcome || ran["uptime"] != x.ran || ran["uname"] != x.second || len(r.NotBegun) != notBegun {
				t.Errorf("%+v, ran %v", r, ran)
			}
			for _, s := range r.NotBegun {
				if s.Why == "" || s.Step < 1 || s.Step > 21 {
					t.Errorf("%+v", s)
				}
			}
			for i, s := range r.Steps {
				if i > 0 && s.Step <= r.Steps[i-1].Step {
					t.Errorf("step %d is told after step %d", s.Step, r.Steps[i-1].Step)
				}
			}
			limit := 8
			if x.order.Forks > 0 {
				limit = x.order.Forks
			}
			if n := int(most.Load()); n > limit {
				t.Errorf("%d were worked on at once", n)
			}
			all, _ := h.follows(task, 0)
			if got := strings.Contains(strings.Join(all, "\n"), " not_begun "); got != (notBegun > 0) {
				t.Errorf("%d were not begun, and it is told: %v", notBegun, got)
			}
		})
	}
}

// Hosts of which nobody knows any more are not begun with, and none of them twice.
func TestOrderWhenTheClientGoes(t *testing.T) {
	h, told := proposing(t, judged, planText(onTarget("remote *", "uptime")))
	d := &hostsDouble{remotes: hostNames(10)}
	var leave func()
	d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		if c.Name == "h2" { // the last of the first batch
			leave()
		}
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}
	a := h.pendingOf(func() {
		task, err := h.RunTask(t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{
			Protocol: "agent", Prompt: "do it", Serve: true, Orders: fanout.Orders{All: fanout.Order{Serial: "2", Forks: 1, MaxFailures: "100%"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if leave, _, err = h.ServeHosts(t.Context(), alice, "demo", task.ID, d); err != nil {
			t.Fatal(err)
		}
	})
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != 3 || len(r.NotBegun) != 7 ||
		!strings.Contains(r.NotBegun[0].Why, "has gone") {
		t.Errorf("%+v", r)
	}
	if ran := d.all(); len(ran) != 3 {
		t.Errorf("ran %q", ran)
	}
}

// looksAt is a step that says that it only reads.
func looksAt(target, command string) map[string]any {
	s := onTarget(target, command)
	s["read_only"] = true
	return s
}

// Steps that only read run together, at most four at once and nothing beside one that does not, and are told in the plan's
// order. A failure has no further one begin.
func TestStepsTogether(t *testing.T) {
	var steps []map[string]any
	for i := range 6 {
		steps = append(steps, looksAt([]string{"host", "remote web-1"}[i%2], fmt.Sprintf("echo %d", i)))
	}
	steps = append(steps, onTarget("host", "id"), looksAt("host", "echo 7"), looksAt("host", "echo 8 fails"),
		looksAt("host", "touch x; echo 9"))
	second := slices.Clone(steps[:6])
	for i := range 4 {
		second[i] = looksAt("host", fmt.Sprintf("echo %d fails", i))
	}
	h, told := proposing(t, judged, planText(steps[:9]...), planText(second...), planText(steps...))
	d := &hostsDouble{local: true, remotes: []string{"web-1"}}
	began, release := make(chan string, 20), make(chan struct{})
	var now, most atomic.Int32
	d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		began <- c.Argv[2]
		if c.Argv[2] != "echo 3" && !strings.Contains(c.Argv[2], "fails") { // the fourth ends first
			<-release
		}
		code := 0
		if strings.Contains(c.Argv[2], "fails") {
			code = 1
		}
		if c.Argv[2] == "id" && n != 1 {
			t.Errorf("id runs beside %d others", n-1)
		}
		return runtime.HostResult{Status: &execapi.Status{Code: code}}, nil
	}
	task := h.turn(d)
	for range 5 { // four at first, and one in the place of echo 3
		<-began
	}
	if n := len(d.all()); n != 5 || most.Load() != 4 {
		t.Errorf("%d began, %d at once", n, most.Load())
	}
	for range 7 { // the others
		release <- struct{}{}
	}
	r := next(t, told)
	if r.Outcome != "failed" || len(r.Steps) != 9 || most.Load() != 4 {
		t.Errorf("%+v, %d at once", r, most.Load())
	}
	for i, s := range r.Steps {
		if s.Step != i+1 {
			t.Errorf("step %d is told in place %d", s.Step, i+1)
		}
	}
	// Those that begin fail, and the two that had not begun are left out.
	if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != 4 || len(r.NotBegun) != 2 ||
		!strings.Contains(r.NotBegun[0].Why, "1 step failed") {
		t.Errorf("%+v", r)
	}
	// One that does more than it says refuses the plan, as ever.
	if r := next(t, told); r.Outcome != "refused" || len(r.Steps) > 0 {
		t.Errorf("%+v", r)
	}
	all, _ := h.follows(task, 0)
	last, ends := 0, 0
	for _, m := range all {
		if _, body, ok := strings.Cut(m, ` step {"step":`); ok && ends < 9 {
			n := 0
			_, _ = fmt.Sscan(body, &n)
			if ends++; n != last+1 {
				t.Errorf("step %d is shown after step %d", n, last)
			}
			last = n
		}
	}
	if ends != 9 || !strings.Contains(strings.Join(all, "\n"), `"together":6,"order":"as they only read, 4 at once`) {
		t.Errorf("%d steps are shown: %q", ends, all)
	}
}

// Where a person is asked about commands of models, none runs beside another.
func TestNoStepsTogether(t *testing.T) {
	h, told := proposing(t, "rules: []", planText(looksAt("host", "echo 1"), looksAt("host", "echo 2"), looksAt("host", "echo 3")))
	d := &hostsDouble{local: true}
	var now atomic.Int32
	d.run = func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		if now.Add(1) != 1 {
			t.Error("it runs beside another")
		}
		defer now.Add(-1)
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}
	a := h.pendingOf(func() { h.turn(d) })
	if strings.Contains(strings.Join(a.Argv, "\n"), "at once") {
		t.Errorf("asked %q", a.Argv)
	}
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "done" || len(r.Steps) != 3 {
		t.Errorf("%+v", r)
	}
}

// Of the orders of the groups that a step's hosts are in the strictest holds, in what is asked and in what is run.
// The order of one group is nothing to a step that is not for it.
func TestOrderOfGroups(t *testing.T) {
	orders := func(serial string) fanout.Orders {
		return fanout.Orders{All: fanout.Order{NoCanary: true}, Groups: []fanout.Group{
			{Hosts: []string{"h0", "h1"}, Order: fanout.Order{NoCanary: true, Serial: serial, MaxFailures: "0"}},
		}}
	}
	for _, x := range []struct {
		target, serial, words string
		ran                   int
	}{
		{"remote h0 h2 h3", "1", "1 to 3: batches of 1, 1 at once; if one fails, no further host", 1},
		{"remote h0 h2 h3", "2", "1 to 3: batches of 2, 2 at once; if one fails, no further host", 2},
		{"remote h2 h3 h4", "1", "1 to 3: all hosts, 3 at once; if one fails, no further batch", 3},
	} {
		h, told := proposing(t, judged, planText(onTarget(x.target, "uptime")))
		d := &hostsDouble{remotes: hostNames(5)}
		var mu sync.Mutex
		together := make(chan struct{})
		n := 0
		d.run = func(ctx context.Context, _ runtime.HostCommand) (runtime.HostResult, error) {
			mu.Lock()
			if n++; n == x.ran { // all that may run at once have begun before one fails
				close(together)
			}
			mu.Unlock()
			select {
			case <-together:
			case <-ctx.Done():
			}
			return runtime.HostResult{Status: &execapi.Status{Code: 7}}, nil
		}
		a := h.pendingOf(func() { h.grouped(d, orders(x.serial)) })
		if text := strings.Join(a.Argv, "\n"); !strings.Contains(text, x.words) {
			t.Errorf("%s, %s: asked %q", x.target, x.serial, text)
		}
		if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
			t.Fatal(err)
		}
		if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != x.ran || len(d.all()) != x.ran {
			t.Errorf("%s, %s: %+v, ran %v", x.target, x.serial, r, d.all())
		}
	}
}
