package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/carrel-dev/carrel/test/vm/machine"
)

// built is what was compiled for the guest.
type built struct {
	source string
	bin    string // directory of carrel's binaries
	tests  string // directory of the test binaries
	init   string
	// packages is the directory of two versions of carrel's deb and rpm, "" for none.
	packages string
	rpm      string // a directory with rpm unpacked, "" for none
}

func build(ctx context.Context, source, dir string, packages bool) (built, error) {
	b := built{source: source, bin: filepath.Join(dir, "bin"), tests: filepath.Join(dir, "tests"), init: filepath.Join(dir, "init")}
	for _, d := range []string{b.bin, b.tests} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return b, err
		}
	}
	tests := []string{"go", "test", "-c", "-o", b.tests + "/"}
	for _, s := range suite {
		tests = append(tests, "./"+s.dir)
	}
	commands := [][]string{
		{"go", "build", "-o", b.bin + "/", "./cmd/..."},
		{"go", "build", "-o", b.init, "./test/vm/init"},
	}
	if packages {
		b.packages = filepath.Join(dir, "packages")
		tests = append(tests, "./"+servicesDir)
		for _, v := range []string{"v0.0.1", "v0.0.2"} {
			commands = append(commands, []string{"make", "packages", "VERSION=" + v, "OUT=" + b.packages})
		}
	}
	for _, argv := range append(commands, tests) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return b, fmt.Errorf("cannot build for the guest: %s %s: %w\n%s", argv[0], argv[1], err, out)
		}
	}
	return b, nil
}

// makeDisk puts a Debian, carrel's binaries and each package's tests with their
// testdata on a disk.
func makeDisk(ctx context.Context, b built, tree, disk string) error {
	t, err := machine.NewTree(ctx, tree)
	if err != nil {
		return err
	}
	for _, at := range []string{checkoutBin, publicBin} {
		if err := t.AddDir(at, b.bin); err != nil {
			return err
		}
	}
	// The policy of instances that no test of policy is about.
	if err := t.Add(guestSource+"/test/permissive.yaml", filepath.Join(b.source, "test", "permissive.yaml"), 0o644); err != nil {
		return err
	}
	if b.packages != "" {
		if err := t.AddDir(packagesDir, b.packages); err != nil {
			return err
		}
		if b.rpm != "" {
			if err := t.AddUnpacked(ctx, b.rpm); err != nil {
				return err
			}
		}
		if err := t.Add(guestTest(servicesDir), filepath.Join(b.tests, testBinary(servicesDir)), 0o755); err != nil {
			return fmt.Errorf("cannot find the tests of %s: %w", servicesDir, err)
		}
	}
	for _, s := range suite {
		at := filepath.Join(guestSource, s.dir)
		if err := t.Add(guestTest(s.dir), filepath.Join(b.tests, testBinary(s.dir)), 0o755); err != nil {
			return fmt.Errorf("cannot find the tests of %s: %w", s.dir, err)
		}
		if err := t.AddDir(filepath.Join(at, "testdata"), filepath.Join(b.source, s.dir, "testdata")); err != nil {
			return err
		}
	}
	return t.Disk(ctx, disk)
}
