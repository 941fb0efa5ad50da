package sandbox_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A limit that was asked for and does not hold fails the start by its name: here home and
// temporary directories are directories of the host.
func TestDiskLimitThatDoesNotHold(t *testing.T) {
	_, err := launchtest.Start(t, func(c *launch.Config) { c.Spec.Limits.DiskBytes = workspace.MinDiskBytes })
	if err == nil {
		t.Fatal("it started")
	}
	for _, want := range []string{"required control disk is failed", "fallocate past the limit: ok", "/tmp holds"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

func TestDiskIsJudgedWhenAsked(t *testing.T) {
	if c := control(t, sandbox.Judge(sandbox.Rootful, sandbox.Asked{}, nil, nil), "disk"); c.State != workspace.Off ||
		c.Requested || c.Required || c.Remedy == "" {
		t.Errorf("%+v", c)
	}
	if c := control(t, sandbox.Judge(sandbox.Rootful, sandbox.Asked{Disk: true}, nil, nil), "disk"); c.State != workspace.Unavailable ||
		!c.Required || c.Remedy == "" {
		t.Errorf("%+v", c)
	}
}
