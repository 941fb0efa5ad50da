package compose_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Each action is told of once, with the steps that it came through.
func TestObserve(t *testing.T) {
	var mu sync.Mutex
	var got []string
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}}
	h.observe = func(p *gate.Passage) {
		mu.Lock()
		defer mu.Unlock()
		if p.Kind != operation.ExecCommand {
			return
		}
		var steps []string
		at := p.Began
		for _, s := range p.Steps {
			if !s.Began.Equal(at) || s.Ended.Before(s.Began) {
				t.Errorf("%+v", p.Steps)
			}
			at = s.Ended
			steps = append(steps, s.Name)
		}
		if p.Ended.Before(at) || p.Trace == "" || p.By == "" {
			t.Errorf("%+v", p)
		}
		got = append(got, fmt.Sprintf("%s denied=%t failed=%t %s", p.Level, p.Denied, p.Err != nil, strings.Join(steps, ",")))
	}
	h.start()
	t.Cleanup(h.crash)
	ctx := t.Context()
	h.create(alice, "demo")
	try := func(argv ...string) {
		_, _, _ = h.Run(ctx, alice, "demo", execapi.ExecParams{Argv: argv}) // what it returns is tried elsewhere
	}
	try("true")
	try("rm", "-rf", "/var/lib/carrel")
	_, _, _ = h.Run(ctx, bob, "demo", execapi.ExecParams{Argv: []string{"true"}}) // the same
	want := "SAFE denied=false failed=false policy,intent,effect,outcome|BLOCK denied=true failed=true policy| denied=true failed=true "
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

// What is only observed is counted for each principal and workspace, refusals are not, and the
// counts are recorded once.
func TestObservationsAreSummedUp(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	h.Sum()
	before := len(h.records())
	for range 3 {
		if _, err := h.Get(ctx, alice, "demo"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.List(ctx, alice); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Get(ctx, root, "demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Get(ctx, bob, "demo"); !errdefs.IsPermissionDenied(err) {
		t.Fatal(err)
	}
	h.Sum()
	h.Sum() // nothing is left
	var got []string
	for _, r := range h.records()[before:] {
		if r.Type == audit.Observed {
			got = append(got, fmt.Sprintf("%s %s %s", r.Principal, r.Workspace, r.Data))
		}
	}
	slices.Sort(got)
	want := []string{
		fmt.Sprintf("%s  {\"workspace.list\":1}", alice),
		fmt.Sprintf("%s %s {\"workspace.inspect\":1}", root, w.Name),
		fmt.Sprintf("%s %s {\"workspace.inspect\":3}", alice, w.Name),
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
