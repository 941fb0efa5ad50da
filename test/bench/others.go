package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/carrel-dev/carrel/test/bench/measure"
)

// others are programs that nothing is to be reached against, but that people use to run a
// command as somebody else or apart from the rest. They are measured where they are
// installed.
func (p *peers) others(b *bench) []measure.Contestant {
	var out []measure.Contestant
	for _, x := range []struct {
		name string
		argv []string
	}{
		{"setpriv", []string{"setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--no-new-privs", command}},
		{"unshare, 5 namespaces", []string{"unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--fork", command}},
		{"runuser -u nobody", []string{"runuser", "-u", "nobody", "--", command}},
		{"su nobody", []string{"su", "-s", "/bin/sh", "nobody", "-c", command}},
		{"sudo -u nobody", []string{"sudo", "-n", "-u", "nobody", command}},
		{"firejail", []string{"firejail", "--quiet", "--noprofile", command}},
	} {
		path, err := exec.LookPath(x.argv[0])
		if err != nil {
			b.Miss(x.name, err)
			continue
		}
		out = append(out, program(x.name, nil, nil, append([]string{path}, x.argv[1:]...)...))
	}
	m, err := p.startPodman(b)
	if err != nil {
		b.Miss("podman exec", err)
		return out
	}
	return append(out, program("podman exec", nil, nil, m.argv("exec", m.container, command)...))
}

// podman is podman with state of its own and a container that runs.
type podman struct {
	base      []string // the program and its global options
	options   []string // of run
	rootfs    string
	container string
}

// startPodman returns the podman that the figures share, or why there is none.
func (p *peers) startPodman(b *bench) (*podman, error) {
	if p.podman == nil && p.podmanErr == nil {
		p.podman, p.podmanErr = newPodman(b)
	}
	return p.podman, p.podmanErr
}

// newPodman starts a container of podman's with state of its own, and removes at the end
// what podman left outside it.
func newPodman(b *bench) (*podman, error) {
	path, err := exec.LookPath("podman")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "podman")
	m := &podman{
		base: []string{
			path, "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "runroot"), "--tmpdir", filepath.Join(dir, "tmp"),
			"--cgroup-manager=cgroupfs", "--runtime=runc", "--events-backend=none",
		},
		options: []string{"--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"},
		rootfs:  filepath.Join(dir, "rootfs"), container: filepath.Base(b.dir),
	}
	for _, d := range []string{"proc", "dev", "sys", "etc", "run", "tmp", "var"} {
		if err := os.MkdirAll(filepath.Join(m.rootfs, d), 0o755); err != nil {
			return nil, err
		}
	}
	mounts, err := hostPrograms(m.rootfs)
	if err != nil {
		return nil, err
	}
	for _, d := range mounts {
		m.options = append(m.options, "--volume", d+":"+d+":ro")
	}
	unmark := absent(podmanMarks)
	b.later(func(context.Context) error { unmark(); return nil })
	b.later(func(context.Context) error {
		return m.do("rm", "--force", "--all", "--time", "0") // including those of a killed run
	})
	if err := m.do(m.run([]string{"--detach", "--name", m.container}, "/bin/sleep", "infinity")...); err != nil {
		return nil, err
	}
	return m, nil
}

// argv is the command line of podman with args.
func (m *podman) argv(args ...string) []string { return slices.Concat(m.base, args) }

// run makes the arguments of a run of a command with these options.
func (m *podman) run(options []string, argv ...string) []string {
	return slices.Concat([]string{"run"}, options, m.options, []string{"--rootfs", m.rootfs}, argv)
}

func (m *podman) do(args ...string) error {
	argv := m.argv(args...)
	if out, err := exec.CommandContext(context.Background(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("podman %s: %w: %s", args[0], err, lastLine(out))
	}
	return nil
}

// podmanMarks are what podman makes outside the directories that it is given, what is
// inside first.
var podmanMarks = []string{
	"/run/runc", "/etc/cni/net.d/cni.lock", "/etc/cni/net.d", "/etc/cni",
	"/sys/fs/cgroup/libpod_parent/*", "/sys/fs/cgroup/libpod_parent",
	"/sys/fs/cgroup/*/libpod_parent/*", "/sys/fs/cgroup/*/libpod_parent",
}

// absent returns what removes those of patterns that are not there now.
func absent(patterns []string) (remove func()) {
	there := map[string]bool{}
	each := func(f func(path string)) {
		for _, p := range patterns {
			found, _ := filepath.Glob(p) // the patterns are good
			for _, path := range found {
				f(path)
			}
		}
	}
	each(func(path string) { there[path] = true })
	return func() {
		each(func(path string) {
			if !there[path] {
				_ = os.Remove(path) // somebody may use it by now
			}
		})
	}
}

// hostPrograms makes a root in which the host's programs can be mounted, as links where
// the host has links, and returns what is to be mounted.
func hostPrograms(rootfs string) (mounts []string, err error) {
	for _, d := range []string{"/bin", "/lib", "/lib64", "/usr"} {
		st, err := os.Lstat(d)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case st.Mode()&os.ModeSymlink != 0:
			var to string
			if to, err = os.Readlink(d); err == nil {
				err = os.Symlink(to, rootfs+d)
			}
		default:
			err = os.Mkdir(rootfs+d, 0o755)
			mounts = append(mounts, d)
		}
		if err != nil {
			return nil, err
		}
	}
	return mounts, nil
}
