package steps_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// What reads a path is run if the path is the file itself and below the roots, here and on a remote host. A link is not
// followed: the daemon hears where it leads.
func TestReadsBelowTheRoots(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"in", "out"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, d, "f"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"in/same": "f", "in/away": "../out/f", "in/up": "../out", "in/etc": "/etc/passwd"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "in/f")
	// On the remote host, which is this machine as well, there are the usual roots alone.
	var local, remote noted
	there := func(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		if c.Argv[0] == "true" {
			return remote.run(ctx, c)
		}
		out, err := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...).Output()
		code := 0
		if err != nil {
			code = 1
		}
		return runtime.HostResult{Status: &execapi.Status{Code: code}, Stdout: out}, nil
	}
	cfg := steps.Config{Local: local.run, Roots: []string{filepath.Join(dir, "in")}, Remote: there, Remotes: []string{"web-1"}}
	const outside = "it was not run: cannot read "
	_, err = serve(t.Context(), t, cfg, func(d *daemon) error {
		for i, x := range []struct{ path, moved, refused string }{
			{"host " + file, "", ""},
			{"host " + dir + "/in/same", file, ""},
			{"host " + dir + "/in/etc", "/etc/passwd", ""},
			{"host " + dir + "/in/away", "", outside},
			{"host " + dir + "/in/up/f", "", outside},
			{"host " + dir + "/out/f", "", outside},
			{"host " + dir + "/out/none", "", outside},
			{"host " + dir + "/in/../out/f", "", outside},
			{"host " + dir + "/in/none", "", "no such file"},
			{"host in/f", "", outside},
			{"remote /etc/passwd", "", ""},
			{"remote " + dir + "/in/etc", "/etc/passwd", ""},
			{"remote " + file, "", outside},
			{"remote /etc/none", "", "cannot say where /etc/none leads"},
			{"remote /etc/../root", "", outside},
		} {
			target, path, _ := strings.Cut(x.path, " ")
			name, ran := "", &local
			if target == "remote" {
				name, ran = "web-1", &remote
			}
			ran.all = nil
			d.send(int64(i+1), target, name, func(s *carrelv1.AgentStep) { s.Path, s.TimeoutMs = path, 60_000 })
			r := d.result(int64(i + 1))
			if (len(ran.all) == 1) != (x.moved+x.refused == "") || r.GetPath() != x.moved || !strings.Contains(r.GetError(), x.refused) ||
				(r.GetError() != "") != (x.refused != "") {
				t.Errorf("%s: %d ran, %v", x.path, len(ran.all), r)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
