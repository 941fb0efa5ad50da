// Package built gives tests the programs of this tree. All tests build them with the same
// flags, and those that make starts share one directory, so that each program is compiled and
// linked once.
//
// It must not give programs of another tree: the go command decides what is out of date.
package built

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Crashpoints is the tag of programs that end where they are told to.
const Crashpoints = "crashpoints"

// sharedEnv names the directory that is shared, one for all tests of a tree. Without it each
// caller links its own.
const sharedEnv = "CARREL_TEST_BUILD"

// Programs puts carrel's programs, built with the tags, into dir. What is in dir stays as it is
// when the tree changes afterwards.
func Programs(ctx context.Context, dir string, tags ...string) error {
	if err := programs(ctx, dir, tags); err != nil {
		return fmt.Errorf("cannot build the programs: %w", err)
	}
	return nil
}

func programs(ctx context.Context, dir string, tags []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	shared := os.Getenv(sharedEnv)
	if shared == "" {
		return build(ctx, dir, tags)
	}
	shared = filepath.Join(shared, strings.Join(append([]string{"programs"}, tags...), "-"))
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(shared+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if err := build(ctx, shared, tags); err != nil {
		return err
	}
	all, err := os.ReadDir(shared)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := place(filepath.Join(shared, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// build runs the go command, which leaves a program that is up to date as it is, and puts a
// new file into the place of one that is not.
func build(ctx context.Context, dir string, tags []string) error {
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", strings.Join(tags, ","), "-o", dir+"/",
		"github.com/carrel-dev/carrel/cmd/...")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// place makes a program appear under another name: by a link where the file system can, since
// nothing writes into the file.
func place(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, os.ErrExist) {
		return err
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
