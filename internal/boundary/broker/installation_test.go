package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// These tests change the host they run on: users cbt-…, control groups
// carrel-test-<pid>, ids from a block of their own. All is taken back.

const daemonUID = 65431

// binary builds a program of this repository, once. CARREL_TEST_BIN names a directory
// that has them already, for a machine without Go.
func binary(name string) (string, error) {
	if dir := os.Getenv("CARREL_TEST_BIN"); dir != "" {
		return filepath.Join(dir, name), nil
	}
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "broker-test")
		if err != nil {
			return "", err
		}
		built.dir = dir
	}
	path := filepath.Join(built.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	c := exec.Command("go", "build", "-o", path, "github.com/carrel-dev/carrel/cmd/"+name)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}

var built struct {
	sync.Mutex
	dir string
}

// removeBinaries removes what binary built.
func removeBinaries() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// installation is a broker's directories and settings for one test.
type installation struct {
	settings broker.Settings
	name     id.Workspace
	launch   func(context.Context, launch.Config) (*launch.Executor, error)
}

func newInstallation(t testing.TB) *installation {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: users and control groups need root")
	}
	executor, err := binary("carrel-executor")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "broker-test")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := broker.ParseSettings(fmt.Appendf(nil,
		`{"data_dir":%q,"runtime_dir":%q,"daemon_uid":%d,"daemon_gid":%d,"uid_first":%d,"uid_count":300,
"cgroup_name":"carrel-test-%d","executor_path":%q,"shell":"/bin/sh"}`,
		dir+"/data", dir+"/run", daemonUID, daemonUID, 1_880_000_000+300*rand.IntN(100_000), os.Getpid(), executor))
	if err != nil {
		t.Fatal(err)
	}
	p := &installation{settings: s, name: id.Workspace(fmt.Sprintf("cbt-%08x", rand.Uint32())), launch: launch.Start}
	t.Cleanup(func() {
		life, err := p.open(t, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("cannot clean up: %v", err)
			return
		}
		for _, e := range life.Entries() {
			if _, err := life.Destroy(context.Background(), brokerapi.DestroyParams{Name: e.Name, Purge: true}); err != nil {
				t.Errorf("cannot clean up: %v", err)
			}
		}
		if err := life.Close(); err != nil {
			t.Error(err)
		}
		groups, err := cgroup.Open(cgroup.Config{Name: s.CgroupName, Shared: cgroup.Shared{MemoryBytes: 1 << 30}})
		if err == nil {
			err = groups.RemoveInstance()
		}
		if err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *installation) open(t testing.TB, log *slog.Logger) (*broker.Lifecycle, error) {
	t.Helper()
	binary, err := launch.Seal(p.settings.ExecutorPath)
	if err != nil {
		return nil, err
	}
	host, err := broker.OpenHost(broker.HostConfig{Settings: p.settings, Launch: p.launch, Binary: binary, Log: log})
	if err != nil {
		return nil, err
	}
	dir, err := host.OpenState()
	if err != nil {
		return nil, err
	}
	ledger, err := broker.OpenLedger(dir)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	life := broker.NewLifecycle(p.settings, ledger, host, log)
	return life, life.Recover(context.Background())
}

func (p *installation) mustOpen(t testing.TB) *broker.Lifecycle {
	t.Helper()
	life, err := p.open(t, slog.New(slog.NewTextHandler(testLog{t}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = life.Close() }) // before the place's own, which opens it again
	return life
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func (p *installation) create(t testing.TB, life *broker.Lifecycle) brokerapi.Workspace {
	t.Helper()
	limits := workspace.Limits{MemoryBytes: 256 << 20, Pids: 64, CPUWeight: 100, OpenFiles: 256}
	res, err := life.Create(t.Context(), wanted(p.name, limits), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res.Workspace
}

func start(t testing.TB, life *broker.Lifecycle, name id.Workspace) (brokerapi.Workspace, workspace.Report) {
	t.Helper()
	res, err := life.Start(t.Context(), brokerapi.StartParams{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return res.Workspace, res.Report
}

func getent(t testing.TB, db, key string) string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "getent", db, key).Output()
	return strings.TrimSpace(string(out))
}

// groups lists the workspaces that have control groups, on whatever hierarchies.
func (p *installation) groups(t testing.TB) []id.Workspace {
	t.Helper()
	// To open them sets their ceiling: the same that the broker set, which it reads back.
	ceiling := totalMemory(t) / 100 * int64(p.settings.CgroupMemoryPercent)
	in, err := cgroup.Open(cgroup.Config{Name: p.settings.CgroupName, Shared: cgroup.Shared{MemoryBytes: ceiling}})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	names, err := in.Names()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// gone sees that nothing of a workspace is left on the host.
func (p *installation) gone(t testing.TB, e brokerapi.Workspace) {
	t.Helper()
	for _, db := range []string{"passwd", "group"} {
		if got := getent(t, db, string(p.name)); got != "" {
			t.Errorf("%s still has %s", db, got)
		}
	}
	for _, path := range []string{
		e.Home, p.settings.DataDir + "/tmp/" + string(p.name),
		p.settings.RuntimeDir + "/x/" + string(p.name) + ".sock",
	} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if left := p.groups(t); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
}
