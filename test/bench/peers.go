package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// command is what every contestant runs.
const command = "/bin/true"

// peers are the installed programs that carrel is compared with.
type peers struct {
	bwrap string // path; "" if it is missing
	oci   []*ociRuntime
	users users
	// podman is looked up once, when it is first needed.
	podman    *podman
	podmanErr error
}

// ociRuntime is runc or crun with a container that runs.
type ociRuntime struct {
	name      string
	path      string
	global    []string // options before the command, beside --root and --log
	state     string   // its --root
	bundle    string
	container string
	// enter makes the calling thread ready to run it; nil if any thread is.
	enter func() error
}

// debian is a program that is looked for, and the package that has it.
type debian struct{ program, pkg string }

// packages are of the peers of most figures, zstd is of the archive's alone.
var (
	packages = []debian{{"bwrap", "bubblewrap"}, {"crun", "crun"}, {"runc", "runc"}}
	zstd     = debian{"zstd", "zstd"}
	// runPackages are peers of an ordinary user, and what srt needs.
	runPackages = []debian{{"firejail", "firejail"}, {"rg", "ripgrep"}, {"socat", "socat"}}
	// podmanPackage brings a lot with it, so a quick run does without.
	podmanPackage = debian{"podman", "podman"}
)

// findPeers looks for the peers, installs those that are missing, and starts a container
// of each OCI runtime. What is not available is noted.
func findPeers(b *bench, o options) *peers {
	wanted := slices.Clone(packages)
	if o.wants("archive", false) {
		wanted = append(wanted, zstd)
	}
	if o.install {
		install(b, wanted)
		if o.wants("run", false) {
			install(b, runPackages)
		}
		if o.wants("egress", false) {
			install(b, append(slices.Clone(runPackages), tinyproxyPackage))
		}
		if o.wants("fleet", false) {
			install(b, []debian{ansiblePackage})
		}
		if o.wants("create", false) && !o.quick {
			install(b, []debian{podmanPackage}) // apart, so that the others come without it
		}
	}
	p := &peers{users: newUsers(b)}
	for _, x := range append(slices.Clone(packages), debian{"runsc", "of gVisor, see test/bench/gvisor.go"}) {
		path, err := exec.LookPath(x.program)
		if x.program == "runsc" {
			path, err = gvisor(b, o)
		}
		if err != nil {
			b.Miss(x.program, fmt.Errorf("%w; it is in the package %s", err, x.pkg))
			continue
		}
		if out, err := exec.CommandContext(b.ctx, path, "--version").Output(); err == nil {
			first, _, _ := strings.Cut(string(out), "\n")
			b.Versions[x.program] = first
		}
		if x.program == "bwrap" {
			p.bwrap = path
			continue
		}
		r := &ociRuntime{name: x.program, path: path, state: filepath.Join(b.dir, x.program), bundle: filepath.Join(b.dir, x.program+"-bundle")}
		if x.program == "runsc" {
			r.global = gvisorOptions
		}
		if err := r.prepare(b); err != nil {
			b.Miss(x.program, err)
			continue
		}
		p.oci = append(p.oci, r)
	}
	return p
}

// install installs what is missing of wanted.
func install(b *bench, wanted []debian) {
	var lacking []string
	for _, p := range wanted {
		if _, err := exec.LookPath(p.program); err != nil {
			lacking = append(lacking, p.pkg)
		}
	}
	if len(lacking) == 0 {
		return
	}
	b.say("installing %s", strings.Join(lacking, " "))
	if err := aptInstall(b.ctx, lacking); err != nil {
		b.Miss("installing "+strings.Join(lacking, " "), err)
	}
}

func aptInstall(ctx context.Context, pkgs []string) error {
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, pkgs...)} {
		c := exec.CommandContext(ctx, "apt-get", args...)
		c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLine(out))
		}
	}
	return nil
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// fork is the floor of them all: a fork and an exec.
func fork() measure.Contestant {
	return program(report.Fork, nil, nil, command)
}

// beside are the peers that run a command, as contestants.
func (p *peers) beside() []measure.Contestant {
	var out []measure.Contestant
	if p.bwrap != "" {
		out = append(out, program(report.Bwrap, nil, nil, p.bwrap, "--unshare-all", "--ro-bind", "/", "/", command))
	}
	for _, r := range p.oci {
		out = append(out, program(r.name+" exec", nil, r.enter, append(r.argv(), "exec", r.container, command)...))
	}
	return out
}

// program runs a program to its end, which must be a good one. env is as in exec.Cmd. No
// context is given: the goroutine that watches one would be measured too.
func program(name string, env []string, enter func() error, argv ...string) measure.Contestant {
	return measure.Contestant{Name: name, Enter: enter, Op: measure.Timed(func() error {
		c := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
		c.Env = env
		return c.Run()
	})}
}

// prepare makes a bundle and starts a container that stays.
func (r *ociRuntime) prepare(b *bench) error {
	if r.name == "crun" && b.Machine.Cgroup == "hybrid" {
		// crun 1.8 refuses hybrid control groups, so its threads see v1 alone.
		enter, err := withoutUnified(b)
		if err != nil {
			return err
		}
		r.enter = enter
	}
	if err := r.makeBundle(b.ctx); err != nil {
		return fmt.Errorf("cannot make a bundle: %w", err)
	}
	r.container = filepath.Base(b.dir) + "-" + r.name
	b.later(func(context.Context) error { return r.remove(r.container) })
	return r.runDetached(r.container)
}

// makeBundle writes a bundle as the runtime's own "spec" has it, with the host's
// programs, no terminal, no limits and a process that waits.
func (r *ociRuntime) makeBundle(ctx context.Context) error {
	rootfs := filepath.Join(r.bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, r.path, "spec")
	if r.global != nil {
		c.Args = append(c.Args, "--", command) // runsc asks for one
	}
	c.Dir = r.bundle
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(out))
	}
	file := filepath.Join(r.bundle, "config.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(raw, &spec); err != nil {
		return err
	}
	process, ok := spec["process"].(map[string]any)
	mounts, ok2 := spec["mounts"].([]any)
	linux, ok3 := spec["linux"].(map[string]any)
	if !ok || !ok2 || !ok3 {
		return errors.New("its spec has no process, mounts or linux")
	}
	process["terminal"] = false
	process["args"] = []string{"/bin/sleep", "infinity"}
	delete(process, "rlimits")
	spec["root"] = map[string]any{"path": rootfs, "readonly": true}
	linux["cgroupsPath"] = "/" + filepath.Base(filepath.Dir(r.bundle)) + "-" + r.name
	host, err := hostPrograms(rootfs)
	if err != nil {
		return err
	}
	for _, d := range host {
		mounts = append(mounts, map[string]any{"destination": d, "source": d, "type": "bind", "options": []string{"rbind", "ro"}})
	}
	spec["mounts"] = mounts
	if raw, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, raw, 0o600)
}

// runDetached starts a container and returns when its process runs.
func (r *ociRuntime) runDetached(name string) error {
	return r.do("run", "--detach", "--bundle", r.bundle, name)
}

// argv is the runtime with its own options.
func (r *ociRuntime) argv() []string {
	return append([]string{r.path, "--root", r.state}, r.global...)
}

func (r *ociRuntime) remove(name string) error { return r.do("delete", "--force", name) }

// do runs the runtime on a thread that is ready for it.
func (r *ociRuntime) do(args ...string) error {
	result := make(chan error)
	go func() {
		result <- func() error {
			if r.enter != nil {
				runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
				if err := r.enter(); err != nil {
					return err
				}
			}
			return r.here(args...)
		}()
	}()
	return <-result
}

// here runs the runtime on this thread. The container keeps the standard streams, so what
// it says goes to a file.
func (r *ociRuntime) here(args ...string) error {
	log := filepath.Join(r.bundle, "log")
	c := exec.CommandContext(context.Background(), r.path, slices.Concat(r.argv()[1:], []string{"--log", log}, args)...)
	if err := c.Run(); err != nil {
		said, _ := os.ReadFile(log) // the error stands without it
		return fmt.Errorf("%s %s: %w: %s", r.name, args[0], err, lastLine(said))
	}
	return nil
}

// runs is the start of a container as a contestant: until its process runs, without its
// removal.
func (r *ociRuntime) runs() measure.Contestant {
	name := r.container + "-again"
	return measure.Contestant{Name: r.name + " run -d", Enter: r.enter, Op: func() (time.Duration, error) {
		began := time.Now()
		err := r.here("run", "--detach", "--bundle", r.bundle, name)
		took := time.Since(began)
		return took, errors.Join(err, r.here("delete", "--force", name))
	}}
}

// withoutUnified makes a mount namespace in which the second hierarchy of a hybrid host
// is not mounted, and returns what takes a locked thread into it.
func withoutUnified(b *bench) (enter func() error, err error) {
	made := make(chan error)
	fd := -1
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not fit for anything else
		made <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH); err != nil {
				return err
			}
			fd, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return err
		}()
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("cannot make a mount namespace without cgroup v2: %w", err)
	}
	b.later(func(context.Context) error { return unix.Close(fd) })
	return func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		return unix.Setns(fd, unix.CLONE_NEWNS)
	}, nil
}
