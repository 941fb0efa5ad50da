package probe_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// systemd is named only to those who have one that can give what limits take.
func TestDelegationRemedy(t *testing.T) {
	point, runtime, bin := t.TempDir(), t.TempDir(), t.TempDir()
	remedy := func() string { return probe.Delegation(point, runtime, filepath.Join(bin, "systemd-run"), 1000) }
	manager := filepath.Join(point, "user.slice/user-1000.slice/user@1000.service")
	for _, step := range []struct {
		name, want string
		do         func() error
	}{
		{"nothing", "have root give you a group", func() error { return nil }},
		{"no bus", "have root give you a group", func() error { return os.MkdirAll(filepath.Join(runtime, "1000"), 0o700) }},
		{"no systemd-run", "have root give you a group", func() error {
			l, err := net.Listen("unix", filepath.Join(runtime, "1000/bus"))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}},
		{
			"no manager", "have root give you a group",
			func() error { return os.WriteFile(filepath.Join(bin, "systemd-run"), []byte("#!/bin/sh\n"), 0o700) },
		},
		{"no memory", "no memory)", func() error {
			if err := os.MkdirAll(manager, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(manager, "cgroup.controllers"), []byte("cpu pids\n"), 0o600)
		}},
		{"all", "systemd-run --user --scope -p Delegate=yes carrel run", func() error {
			return os.WriteFile(filepath.Join(manager, "cgroup.controllers"), []byte("memory pids\n"), 0o600)
		}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := remedy(); !strings.Contains(got, step.want) {
			t.Errorf("%s: %s", step.name, got)
		}
	}
}
