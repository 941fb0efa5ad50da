// Command bench measures carrel and, alternately in the same run, the programs that
// people use for the same thing. docs/benchmarks.md says what each figure includes.
//
//	go run ./test/bench [-quick] [-only exec,cli] [-json FILE] [-save]
//
// It needs root and Debian's packages bubblewrap, crun, runc and zstd, which it installs,
// as it does podman unless the run is quick. It builds carrel from the checkout, runs it
// under a directory of its own and takes it away again, also when it is interrupted.
//
// It must not take the place of tests: it fails if something of carrel cannot be
// measured, not if a figure is out of reach.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// Exit codes: flag(1) uses 2 for a command line that it does not understand.
const exitFailed = 1

type options struct {
	quick, save, install bool
	only                 []string
	json, dir, markdown  string
}

// figures in the order they are measured: what can leave a mark on the others is last. A
// long one is left out of a quick run that does not ask for it.
var figures = []struct {
	name    string
	measure func(*bench) error
	long    bool
}{
	{"exec", (*bench).exec, false},
	{"exec8", (*bench).exec8, false},
	{"sdks", (*bench).sdks, false},
	{"clients", (*bench).clients, true},
	{"e2b", (*bench).e2b, true},
	{"cli", (*bench).cli, false},
	{"ping", (*bench).ping, false},
	{"stream", (*bench).stream, false},
	{"start", (*bench).start, false},
	{"run", (*bench).run, false},
	{"staged", (*bench).staged, false},
	{"egress", (*bench).egress, false},
	{"agent", (*bench).agent, false},
	{"fleet", (*bench).fleet, false},
	{"create", (*bench).create, false},
	{"creates", (*bench).creates, false},
	{"destroy", (*bench).destroy, false},
	{"archive", (*bench).archive, false},
	{"policy", (*bench).policy, false},
	{"answered", (*bench).answered, false},
	{"audit", (*bench).audit, false},
	{"journaled", (*bench).journaled, false},
	{"verify", (*bench).verify, false},
	{"memory", (*bench).memory, false},
	{"silent", (*bench).silent, true},
	{"scale", (*bench).scale, true},
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == echoArg {
		echo()
		return
	}
	if len(os.Args) > 1 && (os.Args[1] == floorRecordArg || os.Args[1] == floorStartArg) {
		if err := liveFloor(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench: the floor:", err)
			os.Exit(exitFailed)
		}
		return
	}
	if len(os.Args) == 4 && os.Args[1] == zerosArg {
		fmt.Fprintln(os.Stderr, "bench:", serveZeros(os.Args[2], os.Args[3]))
		os.Exit(exitFailed)
	}
	if len(os.Args) == 2 && os.Args[1] == clientArg {
		if err := client(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(exitFailed)
		}
		return
	}
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	if o.markdown != "" {
		if err := markdown(o.markdown, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(exitFailed)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err = run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitFailed)
	}
}

func markdown(path string, out io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := report.Read(f)
	if err != nil {
		return err
	}
	return r.Markdown(out)
}

func parse(args []string) (options, error) {
	var o options
	var names []string
	for _, f := range figures {
		names = append(names, f.name)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "Usage: go run ./test/bench [flags]\n\nMeasures carrel beside its peers. As root.\n\nFlags:")
		f.PrintDefaults()
	}
	only := f.String("only", "", "measure only these `figures`, of "+strings.Join(names, ","))
	f.BoolVar(&o.quick, "quick", false, "fewer rounds: under two minutes, and less steady")
	f.BoolVar(&o.save, "save", false, "keep the JSON as bench/DATE-MACHINE.json too")
	f.StringVar(&o.json, "json", "", "write the JSON to this `file` instead of bench/out")
	f.StringVar(&o.dir, "dir", "/var/tmp", "a `directory` on the disk to be measured")
	f.StringVar(&o.markdown, "markdown", "", "measure nothing, and print the JSON in this `file` as Markdown")
	f.BoolVar(&o.install, "install", true, "install missing peers with apt-get")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for s := range strings.SplitSeq(*only, ",") {
		switch {
		case s == "":
		case slices.Contains(names, s):
			o.only = append(o.only, s)
		default:
			fmt.Fprintf(f.Output(), "there is no figure %q; there are %s\n", s, strings.Join(names, ", "))
			return o, errors.New("unknown figure")
		}
	}
	return o, nil
}

// wants reports whether a figure is measured.
func (o options) wants(figure string, long bool) bool {
	if len(o.only) > 0 {
		return slices.Contains(o.only, figure)
	}
	return !long || !o.quick
}

// bench is what a run has at hand.
type bench struct {
	ctx   context.Context
	quick bool
	dir   string // of this run alone
	bin   string
	peers *peers
	*report.Result

	progress io.Writer
	main     *carrelHost // shared by all figures but memory; made when first needed
	asks     *asking     // as that, by what is about the agent
	cleanups []func(context.Context) error
}

// run measures what o asks for and writes the table to out.
func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("cannot measure as this user: carrel's broker and the peers take root; try: sudo go run ./test/bench")
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	b := &bench{ctx: ctx, quick: o.quick, progress: progress, Result: &report.Result{
		Schema: report.Schema, Began: time.Now().UTC(), Quick: o.quick, Commit: commit(ctx, root), Versions: map[string]string{},
	}}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		err = errors.Join(err, b.cleanUp())
	}()
	if b.Machine, err = report.ThisMachine(o.dir); err != nil {
		return err
	}
	if b.dir, err = b.makeDir(o.dir); err != nil {
		return err
	}
	if err := b.build(root); err != nil {
		return err
	}
	b.peers = findPeers(b, o)
	var measured []string
	for _, f := range figures {
		if !o.wants(f.name, f.long) {
			if len(o.only) == 0 {
				b.Miss(f.name, fmt.Errorf("it takes too long for a quick run; ask for it with -only %s", f.name))
			}
			continue
		}
		measured = append(measured, f.name)
		b.say("measuring %s", f.name)
		b.Machine.Idle = min(b.Machine.Idle, report.Idle(300*time.Millisecond))
		began := time.Now()
		if err := f.measure(b); err != nil {
			return fmt.Errorf("cannot measure %s: %w", f.name, err)
		}
		b.say("measured %s in %.0f s", f.name, time.Since(began).Seconds())
	}
	for _, what := range b.Unjudged(measured) {
		b.Miss(what, errors.New("there is nothing to hold it against; the reason is above"))
	}
	if !b.Machine.Quiet() {
		b.Remark(
			"the machine was only %.0f %% idle before one of the figures, so others used it: values are too high and verdicts in doubt",
			100*b.Machine.Idle,
		)
	}
	b.Seconds, b.Machine.LoadAfter = time.Since(b.Began).Seconds(), report.Load()
	if err := b.Table(out); err != nil {
		return err
	}
	return b.keep(root, o)
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

// later has f called at the end of the run, the last one first.
func (b *bench) later(f func(context.Context) error) { b.cleanups = append(b.cleanups, f) }

func (b *bench) cleanUp() error {
	// A carrel with thousands of workspaces is what takes longest to take away.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	var errs []error
	b.say("taking everything away")
	for _, f := range slices.Backward(b.cleanups) {
		errs = append(errs, f(ctx))
	}
	b.cleanups = nil
	return errors.Join(errs...)
}

// makeDir makes the directory of this run. The daemon's user has to get in.
func (b *bench) makeDir(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "carrel-bench-")
	if err != nil {
		return "", fmt.Errorf("cannot make a directory for the run: %w", err)
	}
	b.later(func(context.Context) error {
		// What is mounted there may be the host's own: none of it is removed with the directory.
		if err := unmountBelow(dir); err != nil {
			return fmt.Errorf("cannot remove %s: %w", dir, err)
		}
		return os.RemoveAll(dir)
	})
	return dir, os.Chmod(dir, 0o711)
}

// build makes the programs as a release has them.
func (b *bench) build(root string) error {
	b.say("building carrel")
	b.bin = filepath.Join(b.dir, "bin")
	c := exec.CommandContext(b.ctx, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", b.bin+"/", "./cmd/...")
	c.Dir = root
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build carrel: %w\n%s", err, out)
	}
	return nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd/carreld")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("cannot find carrel's sources: run this inside its repository")
		}
	}
}

// commit is the commit that is measured, if git knows it.
func commit(ctx context.Context, root string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// keep writes the JSON to where it was asked for.
func (b *bench) keep(root string, o options) error {
	path := o.json
	if path == "" {
		path = filepath.Join(root, "bench/out", b.Began.Format("20060102T150405Z")+".json")
	}
	if err := b.write(path); err != nil {
		return err
	}
	if !o.save {
		return nil
	}
	base := filepath.Join(root, "bench", b.Began.Format(time.DateOnly)+"-"+b.Machine.Label())
	for n := 1; ; n++ {
		path := base + ".json"
		if n > 1 {
			path = fmt.Sprintf("%s-%d.json", base, n)
		}
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return b.write(path)
		}
	}
}

func (b *bench) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot keep the result: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("cannot keep the result: %w", err)
	}
	if err := errors.Join(b.JSON(f), f.Close()); err != nil {
		return fmt.Errorf("cannot keep the result in %s: %w", path, err)
	}
	b.say("the result is in %s", path)
	return nil
}

// pace is how long something is measured whose slowest contestant takes slow.
func (b *bench) pace(slow time.Duration) measure.Pace {
	p := measure.Pace{Rounds: 15, Block: max(200*time.Millisecond, 8*slow), Warm: 2}
	if b.quick {
		p = measure.Pace{Rounds: 6, Block: max(100*time.Millisecond, 4*slow), Warm: 2}
	}
	return p
}
