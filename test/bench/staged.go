package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// stagedChanges is how many files diff and apply are measured with.
const stagedChanges = 1000

// buildFiles are the sources of the build that is run in a copy and in the directory itself, and makes as many files there.
const buildFiles = 40

// staged measures runs in a copy beside runs in the directory itself, and what a person does with a copy, whole processes.
func (b *bench) staged() error {
	p, err := b.person()
	if err != nil {
		return err
	}
	carrel := filepath.Join(b.bin, "carrel")
	if err := p.project("small"); err != nil {
		return err
	}
	in := func(name, how string, argv ...string) measure.Contestant {
		return p.program(name, "small", append([]string{carrel, "run", "--here=" + how, "--"}, argv...)...)
	}
	got := measure.Interleave(b.ctx, b.pace(slowest), []measure.Contestant{
		in("staged", "staged", command), in(report.Direct, "direct", command),
	})
	if err := b.times(report.StagedStart, time.Millisecond, got[0], got[1:]); err != nil {
		return err
	}
	// Where the directory has been built already the copy is as it, and gone.
	discard := func() error { _ = p.command("small", carrel, "discard").Run(); return nil }
	got = measure.Interleave(b.ctx, measure.Pace{Rounds: 5, Block: slowestBuild, Warm: 1}, []measure.Contestant{
		after(in("a build, staged", "staged", "make", "-s", "-B"), discard), in(report.Direct, "direct", "make", "-s", "-B"),
	})
	if err := b.times(report.StagedBuild, time.Millisecond, got[0], got[1:]); err != nil {
		return err
	}
	return b.stagedChanges(p, carrel)
}

// slowestBuild is how long one build may take.
const slowestBuild = 4 * time.Second

// after is a contestant behind which something is done that does not count.
func after(c measure.Contestant, f func() error) measure.Contestant {
	op := c.Op
	c.Op = func() (time.Duration, error) {
		took, err := op()
		if err == nil {
			err = f()
		}
		return took, err
	}
	return c
}

// stagedChanges measures diff and apply of many files. Each apply is undone, so that the next one begins with the same.
func (b *bench) stagedChanges(p person, carrel string) error {
	if err := p.project("large"); err != nil {
		return err
	}
	script := fmt.Sprintf("for i in $(seq %d); do mkdir -p n/$((i %% 20)); echo $i > n/$((i %% 20))/$i; done", stagedChanges)
	out, err := p.command("large", carrel, "run", "--here=staged", "--", "sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("carrel run --here=staged: %w: %s", err, lastLine(out))
	}
	runs, err := os.ReadDir(filepath.Join(p.home, ".local/state/carrel/staged"))
	if err != nil || len(runs) != 1 {
		return fmt.Errorf("there are %d staged copies: %w", len(runs), err)
	}
	undo := func() error { return p.command("large", carrel, "undo", runs[0].Name()).Run() }
	got := measure.Interleave(b.ctx, measure.Pace{Rounds: 5, Block: time.Second, Warm: 1}, []measure.Contestant{
		p.program("carrel diff", "large", carrel, "diff"), after(p.program("carrel apply", "large", carrel, "apply"), undo),
	})
	return errors.Join(b.times(report.StagedDiff, time.Millisecond, got[0], nil), b.times(report.StagedApply, time.Millisecond, got[1], nil))
}

// project makes a repository with a program in C.
func (p person) project(name string) error {
	dir := filepath.Join(p.home, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	const rules = "all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O1 -c -o $@ $<\n"
	files := map[string]string{"Makefile": rules, ".gitignore": "*.o\n"}
	for i := range buildFiles {
		files[fmt.Sprintf("f%d.c", i)] = fmt.Sprintf("#include <stdio.h>\nint f%d(int a) { return printf(\"%%d\", a); }\n", i)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	own := fmt.Sprintf("%d:%d", p.cred.Uid, p.cred.Gid)
	if out, err := exec.CommandContext(context.Background(), "chown", "-R", own, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("chown: %w: %s", err, lastLine(out))
	}
	for _, argv := range [][]string{
		{"git", "init", "-q"}, {"git", "add", "."}, {"git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"},
	} {
		if out, err := p.command(name, argv...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, lastLine(out))
		}
	}
	return nil
}
