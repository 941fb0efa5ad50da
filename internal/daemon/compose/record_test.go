package compose_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

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
	proc := h.rt.procs[len(h.rt.procs)-1]
	if proc.id != cmd {
		t.Errorf("command %s was started as %s", cmd, proc.id)
	}
	proc.end <- nil
	if status, err := p.Wait(ctx); err != nil || status.Code != 9 {
		t.Errorf("%+v %v", status, err)
	}
	// Who was told of the end finds it in the file, though nothing waited for the disk.
	b, err := os.ReadFile(h.log.Path())
	if err != nil {
		t.Fatal(err)
	}
	r, err := audit.Decode(slices.Collect(bytes.Lines(b))[before+1])
	if err != nil {
		t.Fatal(err)
	}
	if r.Type != audit.Outcome || r.Status != audit.StatusOK || r.Intent != int64(before+1) ||
		!strings.Contains(string(r.Data), `"code":9`) {
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
	var a operation.Exec
	if err := json.Unmarshal(r.Action, &a); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.Argv, e.Argv) || !slices.Equal(a.Env, []string{"A", "B"}) || a.EnvDigest == "" || a.Cwd != "/tmp" || !a.TTY ||
		!a.Detach || a.TimeoutMS != 5 || a.ID == "" {
		t.Errorf("action %+v", a)
	}
	raw, err := os.ReadFile(h.log.Path())
	if err != nil || bytes.Contains(raw, []byte("secret")) {
		t.Errorf("a value is in the record (%v)", err)
	}

	// Long arguments are cut, the digest is not.
	for name, arg := range map[string]string{
		"long":            strings.Repeat("x", 100_000),
		"escaped sixfold": strings.Repeat("<", 15_000),
		"three bytes":     strings.Repeat("€", 30_000),
	} {
		at = len(h.records())
		long := run("printf", arg, "last")
		if _, _, err := h.Run(ctx, alice, "demo", long); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := h.records()[at]
		var a operation.Exec
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
		canonical, _ := operation.Canonical(whole, operation.Target{Kind: operation.Workspace, Name: r.Workspace})
		if r.ActionDigest != operation.Digest(canonical) {
			t.Errorf("%s: the digest is not that of the whole", name)
		}
		if cut.Argc != 3 || cut.ArgvBytes != len(arg)+10 || len(cut.SHA) != 64 || len(a.Argv) != 2 || !strings.HasPrefix(arg, a.Argv[1]) ||
			len(a.Argv[1]) < 1000 {
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

func BenchmarkRun(b *testing.B) {
	h := &house{t: b, dir: b.TempDir(), rt: newDouble(), admission: lifecycle.Admission{Workspaces: 50}, redact: redact.New([]byte("k"))}
	h.redact.Know("test", "something that nobody writes")
	h.start()
	b.Cleanup(h.crash)
	h.create(alice, "demo")
	e := run("/bin/true")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := h.Run(b.Context(), alice, "demo", e); err != nil {
			b.Fatal(err)
		}
	}
}
