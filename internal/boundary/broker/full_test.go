package broker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// While those that run hold nearly all that workspaces may have together, no other is
// started; what runs is left alone.
func TestNoneIsStartedInFullMemory(t *testing.T) {
	p := newInstallation(t)
	// The least that a few executors fit into.
	total := totalMemory(t)
	p.settings.CgroupMemoryPercent = int(256<<20*100/total) + 1
	life := p.mustOpen(t)
	limits := workspace.Limits{MemoryBytes: 8 << 30, Pids: 64, CPUWeight: 100, OpenFiles: 256}
	if _, err := life.Create(t.Context(), wanted(p.name, limits), nil); err != nil {
		t.Fatal(err)
	}
	second := id.Workspace(fmt.Sprintf("cbt-%08x", rand.Uint32()))
	if _, err := life.Create(t.Context(), wanted(second, limits), nil); err != nil {
		t.Fatal(err)
	}
	e, _ := start(t, life, p.name)
	conn := dialExecutor(t, e)
	mem := total / 100 * int64(p.settings.CgroupMemoryPercent)
	// Nearly the ceiling, as memory that nothing but the end of the workspace gives back.
	script := fmt.Sprintf("dd if=/dev/zero of=/dev/shm/full bs=1048576 count=%d; sleep 600", mem*97/100>>20-4)
	go func() {
		_, _ = conn.Call(context.WithoutCancel(t.Context()), execapi.MethodExec, execapi.ExecParams{
			ID:   id.NewCommand(),
			Argv: []string{"/bin/sh", "-c", script}, Wait: true,
		}, nil)
	}()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err = life.Start(t.Context(), brokerapi.StartParams{Name: second}); err != nil {
			break
		}
		if _, err := life.Stop(t.Context(), brokerapi.NameParams{Name: second}); err != nil {
			t.Fatal(err)
		}
	}
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "cgroup_memory_percent") {
		t.Errorf("in full memory: %v", err)
	}
	if _, err := conn.Call(t.Context(), execapi.MethodPing, struct{}{}, nil); err != nil {
		t.Errorf("what ran was harmed: %v", err)
	}
	if _, err := life.Stop(t.Context(), brokerapi.NameParams{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	if _, err := life.Start(t.Context(), brokerapi.StartParams{Name: second}); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}

// totalMemory is that of the host, in bytes.
func totalMemory(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	n, err := cgroup.ParseMemTotal(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
