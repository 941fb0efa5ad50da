package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// treeDirs directories of treeFiles files each are what --here shows.
const treeDirs, treeFiles = 50, 1000

// srtPackage is the sandbox runtime of npm. Beside Node it needs ripgrep and socat.
const srtPackage = "@anthropic-ai/sandbox-runtime"

// slowestRun is what srt takes for a command.
const slowestRun = 350 * time.Millisecond

// person is an ordinary user with a home, as whom programs are run.
type person struct {
	home string
	cred *syscall.Credential
}

func (b *bench) person() (p person, err error) {
	name, err := b.peers.users.add()
	if err != nil {
		return p, err
	}
	p.home = b.peers.users.home(name)
	u, err := user.Lookup(name)
	if err != nil {
		return p, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return p, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return p, err
	}
	p.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return p, nil
}

// command is a program as the person runs it, in dir below the home.
func (p person) command(dir string, argv ...string) *exec.Cmd {
	c := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	c.Dir = filepath.Join(p.home, dir)
	c.Env = []string{"HOME=" + p.home, "PATH=/usr/local/bin:/usr/bin:/bin"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	return c
}

func (p person) program(name, dir string, argv ...string) measure.Contestant {
	return measure.Contestant{Name: name, Op: measure.Timed(func() error { return p.command(dir, argv...).Run() })}
}

// run measures "carrel run" of an ordinary user, whole processes, beside what such a user
// has for it.
func (b *bench) run() error {
	p, err := b.person()
	if err != nil {
		return err
	}
	carrel := filepath.Join(b.bin, "carrel")
	if out, err := p.command("", carrel, "run", "--", command).CombinedOutput(); err != nil {
		return fmt.Errorf("carrel run: %w: %s", err, lastLine(out))
	}
	if err := p.tree("tree"); err != nil {
		return err
	}
	contestants := []measure.Contestant{
		p.program("carrel run", "", carrel, "run", "--", command),
		p.program("carrel run --here, 50,000 files", "tree", carrel, "run", "--here", "--", command),
	}
	ours := len(contestants)
	contestants = append(contestants, b.ordinary(p)...)
	got := measure.Interleave(b.ctx, b.pace(slowest), contestants)
	if srt, err := b.srt(p); err != nil {
		b.Miss(report.Srt, err)
	} else {
		// On their own, or its blocks would make those of the others as long as itself.
		slow := measure.Interleave(b.ctx, measure.Pace{Rounds: 5, Block: 3 * slowestRun, Warm: 1}, []measure.Contestant{contestants[0], srt})
		if err := b.times(report.RunSlow, time.Millisecond, slow[0], slow[1:]); err != nil {
			return err
		}
	}
	if err := b.times(report.Run, time.Millisecond, got[0], got[ours:]); err != nil {
		return err
	}
	alone := got[0]
	alone.Name = report.RunAlone
	if err := b.times(report.RunHere, time.Millisecond, got[1], append([]measure.Series{alone}, got[ours:]...)); err != nil {
		return err
	}
	return b.runMemory(p, carrel)
}

// ordinary are the peers that an ordinary user can start.
func (b *bench) ordinary(p person) []measure.Contestant {
	out := []measure.Contestant{p.program(report.Fork, "", command)}
	if b.peers.bwrap != "" {
		out = append(out, p.program(report.Bwrap, "", b.peers.bwrap, "--unshare-all", "--ro-bind", "/", "/", command))
	}
	for _, x := range []struct {
		debian
		name string
		args []string
	}{
		{debian{"unshare", "util-linux"}, "unshare, 7 namespaces", []string{
			"--user", "--map-current-user", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--mount-proc", command,
		}},
		{debian{"firejail", "firejail"}, "firejail", []string{"--quiet", "--noprofile", command}},
	} {
		path, err := exec.LookPath(x.program)
		if err == nil {
			err = p.command("", append([]string{path}, x.args...)...).Run()
		}
		if err != nil {
			b.Miss(x.name, fmt.Errorf("%w; it is in the package %s", err, x.pkg))
			continue
		}
		out = append(out, p.program(x.name, "", append([]string{path}, x.args...)...))
	}
	return out
}

// srt is a command in the sandbox runtime.
func (b *bench) srt(p person) (measure.Contestant, error) {
	path, err := b.srtProgram(p)
	if err != nil {
		return measure.Contestant{}, err
	}
	return p.program(report.Srt, "", path, command), nil
}

// srtProgram installs the sandbox runtime for this run, once, and tries it.
func (b *bench) srtProgram(p person) (string, error) {
	dir := filepath.Join(b.dir, "npm")
	path := filepath.Join(dir, "node_modules/.bin/srt")
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		_, err := os.Stat(path)
		return path, err
	} else if err != nil {
		return "", err
	}
	b.say("installing %s", srtPackage)
	npm := exec.CommandContext(b.ctx, "npm", "install", "--no-audit", "--no-fund", "--silent", srtPackage)
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot install %s: %w: %s", srtPackage, err, lastLine(out))
	}
	if out, err := p.command("", path, command).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, lastLine(out))
	}
	if out, err := p.command("", path, "--version").Output(); err == nil {
		b.Versions["srt"] = strings.TrimSpace(string(out))
	}
	return path, nil
}

// tree makes the directory that --here is tried on.
func (p person) tree(name string) error {
	for i := range treeDirs {
		dir := filepath.Join(p.home, name, fmt.Sprint(i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for j := range treeFiles {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), nil, 0o644); err != nil {
				return err
			}
		}
	}
	out, err := exec.CommandContext(context.Background(), "chown", "-R", fmt.Sprintf("%d:%d", p.cred.Uid, p.cred.Gid),
		filepath.Join(p.home, name)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("chown: %w: %s", err, lastLine(out))
	}
	return nil
}

// runMemory measures what carrel keeps in memory for one command that lasts.
func (b *bench) runMemory(p person, carrel string) error {
	c := p.command("", carrel, "run", "-i", "--", "/bin/cat")
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer func() {
		in.Close() // cat ends, and the run with it
		_ = c.Wait()
	}()
	if err := b.settle(); err != nil {
		return err
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.Process.Pid))
	if err != nil {
		return err
	}
	pids := []int{c.Process.Pid}
	for _, t := range tasks {
		list, err := os.ReadFile(t)
		if err != nil {
			return err
		}
		for f := range strings.FieldsSeq(string(list)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) != 2 {
		return errors.New("a run has another number of processes of its own than two")
	}
	sum := 0.0
	for _, pid := range pids {
		v, err := pss(pid)
		if err != nil {
			return err
		}
		sum += v
	}
	b.Add(report.Row{ID: report.RunMemory, Unit: "MiB", Ours: report.Stat{Name: "memory of carrel run", N: 1, P50: sum}})
	return nil
}
