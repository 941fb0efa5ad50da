package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// gvisorModule builds runsc from Go's module proxy: Debian's is years old. The flag is asked
// for by its use of the runtime.
const gvisorModule = "gvisor.dev/gvisor/runsc@v0.0.0-20250503011706-39ed1f5ac29c"

// gvisorOptions run it without a network and without control groups of its own, and with
// the platform that takes no KVM.
var gvisorOptions = []string{"--network=none", "--ignore-cgroups", "--platform=systrap"}

// gvisor finds runsc: installed, or built by an earlier run. A run that is not quick builds
// it, which takes some minutes once.
func gvisor(b *bench, o options) (string, error) {
	if path, err := exec.LookPath("runsc"); err == nil {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache/bench")
	path := filepath.Join(dir, "runsc")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if o.quick || !o.install {
		return "", fmt.Errorf("runsc is not installed: build it with: GOBIN=%s CGO_ENABLED=0 go install -ldflags=-checklinkname=0 %s",
			dir, gvisorModule)
	}
	b.say("building %s, which takes some minutes", gvisorModule)
	c := exec.CommandContext(b.ctx, "go", "install", "-ldflags=-checklinkname=0", gvisorModule)
	c.Dir = os.TempDir() // not of this module
	c.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build runsc: %w: %s", err, lastLine(out))
	}
	return path, nil
}
