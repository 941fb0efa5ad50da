// Command vm runs carrel's tests that depend on the kernel in emulated guests: hosts
// with pure cgroup v2, with pure cgroup v1 and with systemd, which the machine that runs it need not
// be. docs/testing-vm.md says how it works.
//
// It must not pass where nothing was proved: what cannot run is printed, and a guest
// that does not come to its end is a failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/vm/job"
	"github.com/carrel-dev/carrel/test/vm/machine"
)

// Exit codes: flag(1) uses 2 for a command line that it does not understand.
const exitFailed = 1

type options struct {
	layouts   []job.Layout
	run       *regexp.Regexp
	quick     bool
	full      bool
	require   bool
	verbose   bool
	list      bool
	cpus      int
	memoryMiB int
	timeout   time.Duration
	cache     string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintln(
			f.Output(), "Usage: go run ./test/vm [flags]\n\nRuns the tests that depend on the kernel in emulated guests. As root, on Debian, "+
				"amd64.\n\nFlags:",
		)
		f.PrintDefaults()
	}
	layouts := f.String("cgroup", "v2,v1", "the control group `layouts` to boot guests with; systemd is v2 with it as PID 1")
	run := f.String("run", "", "run only jobs whose name matches this `regexp`")
	f.BoolVar(&o.quick, "quick", false, "one v2 guest, no harms")
	f.BoolVar(&o.full, "full", false, "what takes minutes as well: the attacks of test/root, tests that move much output")
	f.BoolVar(&o.require, "require", false, "fail instead of skipping if no guest can be had here")
	f.BoolVar(&o.verbose, "v", false, "print what the jobs print")
	f.BoolVar(&o.list, "list", false, "list the jobs and end")
	f.IntVar(&o.cpus, "cpus", 2, "processors of a guest")
	f.IntVar(&o.memoryMiB, "memory", 1536, "memory of a guest, in `MiB`")
	f.DurationVar(&o.timeout, "timeout", 0, "how long a guest may take (default 30m, with -full 45m)")
	f.StringVar(&o.cache, "cache", ".cache/vm", "`directory` for the kernel and the logs, below the module's root if relative")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("cannot use the argument %q: there are only flags; see -help", f.Arg(0))
	}
	var err error
	if o.run, err = regexp.Compile(*run); err != nil {
		return o, fmt.Errorf("cannot use -run: %w", err)
	}
	for l := range strings.SplitSeq(*layouts, ",") {
		if l := job.Layout(l); l == job.V1 || l == job.V2 || l == job.Systemd {
			o.layouts = append(o.layouts, l)
			continue
		}
		return o, fmt.Errorf("cannot use the layout %q: there are v1, v2 and systemd", l)
	}
	if o.timeout == 0 {
		o.timeout = map[bool]time.Duration{false: 30 * time.Minute, true: 45 * time.Minute}[o.full]
	}
	if o.quick {
		o.layouts = []job.Layout{job.V2}
	}
	return o, nil
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err = run(ctx, o, os.Stdout)
	stop()
	switch {
	case errors.Is(err, machine.ErrCannotHave) && !o.require:
		fmt.Println("SKIP  all jobs, nothing was proved:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(exitFailed)
	}
}

func run(ctx context.Context, o options, to io.Writer) error {
	out := &prefixed{to: to}
	plans := map[job.Layout]job.Plan{}
	var layouts []job.Layout
	for _, l := range o.layouts {
		p := job.Plan{Cgroup: l, Jobs: slices.DeleteFunc(jobs(l, o.quick, o.full), func(j job.Job) bool { return !o.run.MatchString(j.Name) })}
		if len(p.Jobs) == 0 {
			continue
		}
		plans[l] = p
		layouts = append(layouts, l)
		if o.list {
			for _, j := range p.Jobs {
				fmt.Fprintf(out, "%s  %-28s %4ds\n", l, j.Name, j.Seconds)
			}
		}
	}
	if o.list {
		return nil
	}
	if o.layouts = layouts; len(layouts) == 0 {
		return fmt.Errorf("cannot find a job that matches %q; -list shows them", o.run)
	}
	began := time.Now()
	say := func(s string) { fmt.Fprintf(out, "[%5.1fs] %s\n", time.Since(began).Seconds(), s) }
	if err := machine.Ready(); err != nil {
		return err
	}
	source, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(o.cache) {
		o.cache = filepath.Join(source, o.cache)
	}
	unlock, err := lock(o.cache, say)
	if err != nil {
		return err
	}
	defer unlock()
	work, err := os.MkdirTemp("", "carrel-vm-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()

	g := machine.Config{CPUs: o.cpus, MemoryMiB: o.memoryMiB}
	if g.QEMU, err = machine.GetQEMU(ctx, say); err != nil {
		return err
	}
	kernel, err := machine.GetKernel(ctx, o.cache, say)
	if err != nil {
		return err
	}
	g.Kernel = kernel.Image
	say("building carrel and its tests")
	b, err := build(ctx, source, filepath.Join(work, "built"), slices.Contains(layouts, job.Systemd))
	if err != nil {
		return err
	}
	if b.packages != "" {
		if b.rpm, err = machine.GetRPM(ctx, o.cache, say); err != nil {
			say("without rpm: " + err.Error())
			b.rpm = ""
		}
	}
	say("making the disk")
	g.Disk = filepath.Join(work, "disk")
	if err := makeDisk(ctx, b, filepath.Join(work, "tree"), g.Disk); err != nil {
		return err
	}
	say(fmt.Sprintf("booting %s; logs in %s", kernel.Name, filepath.Join(o.cache, "log")))
	// Side by side: a guest waits as often as it works.
	failed := make([][]string, len(o.layouts))
	var group errgroup.Group
	for i, l := range o.layouts {
		g := g
		g.Initrd, g.Dir = filepath.Join(work, string(l)+".cpio"), filepath.Join(o.cache, "log", string(l))
		if err := machine.WriteInitramfs(g.Initrd, b.init, kernel.Modules, plans[l]); err != nil {
			return err
		}
		group.Go(func() (err error) {
			if failed[i], err = guest(ctx, g, plans[l], o, &prefixed{to: to, prefix: string(l) + "  "}); err != nil {
				return fmt.Errorf("cannot finish the %s guest: %w", l, err)
			}
			return nil
		})
	}
	err = group.Wait()
	say("done")
	if !o.full {
		say("left to -full: " + strings.Join(leftOut(), "; "))
	}
	if all := slices.Concat(failed...); len(all) > 0 {
		err = errors.Join(err, fmt.Errorf("these jobs failed: %s", strings.Join(all, "; ")))
	}
	return err
}

// lock keeps two runs from sharing a cache.
func lock(dir string, say func(string)) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		say("waiting for another run to end")
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
	}
	return func() { f.Close() }, nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find carrel's source; run this in its checkout: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
