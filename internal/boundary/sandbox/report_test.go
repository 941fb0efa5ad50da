package sandbox_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func control(t *testing.T, r workspace.Report, id string) workspace.Control {
	t.Helper()
	for _, c := range r.Controls {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("no control %s", id)
	return workspace.Control{}
}

func TestJudge(t *testing.T) {
	r := sandbox.Judge(sandbox.Rootful, sandbox.Asked{}, nil, []sandbox.Finding{
		{Control: "seccomp", OK: true, Evidence: "a"},
		{Control: "seccomp", OK: true, Evidence: "b"},
		{Control: "landlock", OK: true, Evidence: "c"},
		{Control: "landlock", OK: false, Evidence: "d"},
		{Control: "invented", OK: true, Evidence: "e"},
	})
	if c := control(t, r, "seccomp"); c.State != workspace.Verified || c.Evidence != "a; b" || c.Remedy != "" {
		t.Errorf("%+v", c)
	}
	// One bad finding outweighs the good ones.
	if c := control(t, r, "landlock"); c.State != workspace.Failed || c.Evidence != "d" || c.Remedy == "" {
		t.Errorf("%+v", c)
	}
	// What was not asked for is off, and what was must be found.
	if c := control(t, r, "project-mounts"); c.State != workspace.Off || c.Requested || c.Required {
		t.Errorf("%+v", c)
	}
	if c := control(t, sandbox.Judge(sandbox.Rootful, sandbox.Asked{Projects: true}, nil, nil),
		"project-mounts"); c.State != workspace.Unavailable || !c.Required {
		t.Errorf("%+v", c)
	}
	// Nothing found is not verified.
	if c := control(t, r, "pids"); c.State != workspace.Unavailable || !c.Required || c.Remedy == "" {
		t.Errorf("%+v", c)
	}
	err := r.Err()
	if err == nil {
		t.Fatal("the report passes")
	}
	for _, want := range []string{"landlock is failed (d)", "pids is unavailable", "remedy:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "seccomp is") || strings.Contains(err.Error(), "disk is") {
		t.Errorf("what holds, or is not required, is named: %v", err)
	}
	if (workspace.Report{}).Err() == nil {
		t.Error("an empty report passes")
	}
}

func TestUnexpectedMounts(t *testing.T) {
	s := &sandbox.Spec{Mode: sandbox.Rootful, Name: "ws-2a97516c"}
	ro := []string{"ro", "nosuid", "nodev", "relatime"}
	for _, tt := range []struct {
		m  sandbox.Mount
		ok bool
	}{
		{sandbox.Mount{Point: "/", Type: "tmpfs", Options: ro}, true},
		{sandbox.Mount{Point: "/", Type: "ext4", Options: ro}, false},
		{sandbox.Mount{Point: "/", Type: "tmpfs", Options: []string{"rw", "nosuid", "nodev"}}, false},
		{sandbox.Mount{Point: "/usr", Type: "ext4", Options: ro}, true},
		{sandbox.Mount{Point: "/usr/local", Type: "xfs", Options: ro}, true},
		{sandbox.Mount{Point: "/usr", Type: "ext4", Options: []string{"rw", "nosuid", "nodev"}}, false},
		{sandbox.Mount{Point: "/usrx", Type: "ext4", Options: ro}, false},
		{sandbox.Mount{Point: "/mnt", Type: "ext4", Options: ro}, false},
		{sandbox.Mount{Point: "/home", Type: "ext4", Options: ro}, false},
		{sandbox.Mount{Point: "/home/work", Type: "ext4", Options: []string{"rw", "nosuid", "nodev"}}, true},
		{sandbox.Mount{Point: "/home/work", Type: "ext4", Options: []string{"rw", "nodev"}}, false},
		{sandbox.Mount{Point: "/home/ws-00000000", Type: "ext4", Options: ro}, false},
		{sandbox.Mount{Point: "/proc", Type: "proc", Options: []string{"rw", "nosuid", "nodev", "noexec"}}, true},
		{sandbox.Mount{Point: "/proc", Type: "ext4", Options: []string{"rw", "nosuid", "nodev", "noexec"}}, false},
		{sandbox.Mount{Point: "/sys/fs/cgroup/memory", Type: "cgroup", Options: []string{"rw", "nosuid", "nodev", "noexec"}}, false},
		{sandbox.Mount{Point: "/dev/pts", Type: "devpts", Options: []string{"rw", "nosuid", "noexec"}, Super: []string{"rw", "max=64"}}, true},
		{sandbox.Mount{Point: "/dev/pts", Type: "devpts", Options: []string{"rw", "nosuid", "noexec", "max=64"}, Super: []string{"rw"}}, false},
		{sandbox.Mount{Point: "/dev/pts", Type: "tmpfs", Options: []string{"rw", "nosuid", "noexec"}, Super: []string{"rw", "max=64"}}, false},
		{sandbox.Mount{Point: "/etc/ssl", Type: "ext4", Options: ro}, true},
		{sandbox.Mount{Point: "/run/docker.sock", Type: "tmpfs", Options: []string{"rw"}}, false},
	} {
		if msg := sandbox.Expect(s).Unexpected(tt.m); (msg == "") != tt.ok {
			t.Errorf("%+v: %q", tt.m, msg)
		}
	}
}

func TestProjectMountsAreLookedFor(t *testing.T) {
	s := &sandbox.Spec{Mode: sandbox.Rootful, Name: "ws-2a97516c", Projects: []sandbox.Project{
		{Destination: "/workspace", Pinned: []string{".git"}},
		{Destination: "/home/work/docs", ReadOnly: true},
	}}
	rw, ro := []string{"rw", "nosuid", "nodev", "idmapped"}, []string{"ro", "nosuid", "nodev", "idmapped"}
	good := func() []sandbox.Mount {
		return []sandbox.Mount{
			{Point: "/home/work", Type: "ext4", Options: []string{"rw", "nosuid", "nodev"}},
			{Point: "/workspace", Type: "ext4", Options: rw},
			{Point: "/workspace/.git", Type: "ext4", Options: ro},
			{Point: "/home/work/docs", Type: "ext4", Options: ro},
		}
	}
	holds := func(seen []sandbox.Mount) bool {
		for _, m := range seen {
			if sandbox.Expect(s).Unexpected(m) != "" {
				return false
			}
		}
		found := sandbox.ProjectFindings(sandbox.Rootful, seen, s.Projects)
		for _, f := range found {
			if !f.OK {
				return false
			}
		}
		return len(found) == 2
	}
	if !holds(good()) {
		t.Fatalf("%+v", sandbox.ProjectFindings(sandbox.Rootful, good(), s.Projects))
	}
	for name, change := range map[string]func([]sandbox.Mount) []sandbox.Mount{
		"no mount":          func(m []sandbox.Mount) []sandbox.Mount { return append(m[:1:1], m[2:]...) },
		"nothing protected": func(m []sandbox.Mount) []sandbox.Mount { return append(m[:2:2], m[3:]...) },
		"writable .git":     func(m []sandbox.Mount) []sandbox.Mount { m[2].Options = rw; return m },
		"writable docs":     func(m []sandbox.Mount) []sandbox.Mount { m[3].Options = rw; return m },
		"not idmapped":      func(m []sandbox.Mount) []sandbox.Mount { m[1].Options = rw[:3]; return m },
		"set-uid":           func(m []sandbox.Mount) []sandbox.Mount { m[1].Options = []string{"rw", "nodev", "idmapped"}; return m },
		"a mount in a mount": func(m []sandbox.Mount) []sandbox.Mount {
			return append(m, sandbox.Mount{Point: "/workspace/x", Type: "ext4", Options: rw})
		},
	} {
		if holds(change(good())) {
			t.Errorf("%s goes unnoticed", name)
		}
	}
}

func TestSpecIsChecked(t *testing.T) {
	good := func() sandbox.Spec {
		return sandbox.Spec{
			Version: sandbox.SpecVersion, Mode: sandbox.Rootful, Name: "ws-2a97516c", User: "ws-2a97516c",
			IDs: workspace.IDsFrom(1879048192), Shell: "/bin/bash",
			Limits: workspace.DefaultLimits, TmpfsBytes: 1 << 26,
		}
	}
	if s := good(); s.Validate() != nil {
		t.Fatal(s.Validate())
	}
	for name, change := range map[string]func(*sandbox.Spec){
		"mode":              func(s *sandbox.Spec) { s.Mode = "" },
		"version":           func(s *sandbox.Spec) { s.Version++ },
		"name":              func(s *sandbox.Spec) { s.Name = "../x" },
		"user":              func(s *sandbox.Spec) { s.User = "a:0:0" },
		"newline":           func(s *sandbox.Spec) { s.User = "a\nroot::0:0" },
		"ids":               func(s *sandbox.Spec) { s.IDs.Work = 0 },
		"root":              func(s *sandbox.Spec) { s.IDs = workspace.IDsFrom(0) },
		"shell":             func(s *sandbox.Spec) { s.Shell = "/bin/sh\nroot" },
		"tmpfs":             func(s *sandbox.Spec) { s.TmpfsBytes = 0 },
		"limits":            func(s *sandbox.Spec) { s.Limits.Pids = 0 },
		"egress to nowhere": func(s *sandbox.Spec) { s.Net.Egress = true },
		"project":           func(s *sandbox.Spec) { s.Projects = make([]sandbox.Project, 1) },
		"place": func(s *sandbox.Spec) {
			s.Projects, s.FDs.Projects = []sandbox.Project{{Destination: "/usr/x", ReadOnly: true}}, []int{9}
		},
		"home": func(s *sandbox.Spec) {
			s.Projects, s.FDs.Projects = []sandbox.Project{{Destination: workspace.Home, ReadOnly: true}}, []int{9}
		},
		"writable": func(s *sandbox.Spec) {
			s.Projects, s.FDs.Projects = []sandbox.Project{{Destination: "/mnt/x"}}, []int{9}
		},
		"groups": func(s *sandbox.Spec) { s.Cgroup.V1 = []string{"memory"} },
	} {
		s := good()
		change(&s)
		if s.Validate() == nil {
			t.Errorf("a spec with a bad %s passes", name)
		}
	}
}

func TestReadSpec(t *testing.T) {
	write := func(b []byte) int {
		fd, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fd, b); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for _, bad := range [][]byte{nil, []byte("{"), make([]byte, sandbox.MaxSpec+1), []byte(`{"version":1}`)} {
		if _, err := sandbox.ReadSpec(write(bad)); err == nil {
			t.Errorf("%.20q is taken for a spec", bad)
		}
	}
	b, err := json.Marshal(sandbox.Spec{
		Version: sandbox.SpecVersion, Mode: sandbox.Rootful, Name: "ws-2a97516c", User: "u",
		IDs: workspace.IDsFrom(1879048192), Shell: "/bin/sh", Limits: workspace.DefaultLimits, TmpfsBytes: 1 << 26,
	})
	if err != nil {
		t.Fatal(err)
	}
	fd := write(b)
	if s, err := sandbox.ReadSpec(fd); err != nil || workspace.Home != "/home/work" {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := os.Stat("/proc/self/fd/" + string(rune('0'+fd%10))); fd < 10 && err == nil {
		t.Error("the spec is left open")
	}
}
