package carrel_test

import (
	"os"
	"testing"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func TestCreate(t *testing.T) {
	c, _, _ := desk(t)
	if w, created, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "demo"}); err != nil || created || w.GetName() != "ws-2a97516c" {
		t.Errorf("one that is there: %v %v %v", w, created, err)
	}
	dir := t.TempDir()
	if err := os.Symlink(dir, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	w, created, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "other", Limits: &carrelv1.Limits{Pids: 100}, NoStart: true},
		carrel.Mount{Source: dir + "/link/.", Destination: "/workspace"}, carrel.Mount{Source: "/usr", Destination: "~/usr", ReadOnly: true})
	if err != nil || !created || w.GetLimits().GetPids() != 100 || w.GetState() != "stopped" || len(w.GetMounts()) != 2 {
		t.Fatalf("%v %v %v", w, created, err)
	}
	// The path is where the kernel finds the directory, by way of no link.
	if m := w.GetMounts()[0]; m.GetSource() != dir || m.GetDestination() != "/workspace" || m.GetReadOnly() {
		t.Errorf("%v", m)
	}
	if m := w.GetMounts()[1]; m.GetSource() != "/usr" || !m.GetReadOnly() {
		t.Errorf("%v", m)
	}
	for what, x := range map[string]struct {
		m  carrel.Mount
		is func(error) bool
	}{
		"no directory":         {carrel.Mount{Source: dir + "/none", Destination: "/workspace"}, errdefs.IsNotFound},
		"a file":               {carrel.Mount{Source: "/etc/passwd", Destination: "/workspace"}, errdefs.IsInvalidArgument},
		"the root":             {carrel.Mount{Source: "/", Destination: "/workspace"}, errdefs.IsInvalidArgument},
		"a place that is not":  {carrel.Mount{Source: dir, Destination: "/etc"}, errdefs.IsInvalidArgument},
		"a descriptor's place": {carrel.Mount{Source: "/proc/self/fd", Destination: "/etc"}, errdefs.IsInvalidArgument},
	} {
		if _, _, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "x"}, x.m); !x.is(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
