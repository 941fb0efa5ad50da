package cgroup_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// locate and the table are decisions whose inputs a test host can only have one kind of.

func TestLocate(t *testing.T) {
	v1 := cgroup.Mounts{V1: []cgroup.V1Mount{{Name: "memory", Point: "/m"}, {Name: "cpu,cpuacct", Point: "/c"}, {
		Name:  "pids",
		Point: "/p",
	}}, V2: "/u"}
	all := []string{"cpu", "memory", "pids"}
	for _, c := range []struct {
		name               string
		m                  cgroup.Mounts
		available, enabled []string
		want               map[cgroup.Controller]int
		remedy             map[cgroup.Controller]string
	}{
		{"all on v1", v1, nil, nil, map[cgroup.Controller]int{cgroup.Memory: 0, cgroup.CPU: 1, cgroup.Pids: 2}, nil},
		{"all on v2", cgroup.Mounts{V2: "/u"}, all, all, map[cgroup.Controller]int{
			cgroup.Memory: cgroup.InV2, cgroup.CPU: cgroup.InV2,
			cgroup.Pids: cgroup.InV2,
		}, nil},
		{
			"mixed",
			cgroup.Mounts{V1: v1.V1[:1], V2: "/u"},
			[]string{"cpu", "pids"},
			[]string{"cpu", "pids"},
			map[cgroup.Controller]int{cgroup.Memory: 0, cgroup.CPU: cgroup.InV2, cgroup.Pids: cgroup.InV2},
			nil,
		},
		{"v2 hands nothing down", cgroup.Mounts{V2: "/u"}, all, nil, nil, map[cgroup.Controller]string{
			cgroup.Memory: "echo +memory > /u/cgroup.subtree_control",
			cgroup.Pids:   "echo +pids > /u/cgroup.subtree_control",
			cgroup.CPU:    "echo +cpu > /u/cgroup.subtree_control",
		}},
		{
			"v2 detached",
			cgroup.Mounts{},
			all, nil, nil,
			map[cgroup.Controller]string{cgroup.Memory: "echo +memory > /sys/fs/cgroup/cgroup.subtree_control"},
		},
		{"nowhere", cgroup.Mounts{}, nil, nil, nil, map[cgroup.Controller]string{cgroup.Memory: "cgroup_disable=memory"}},
		{
			"with cpuset",
			cgroup.Mounts{V1: []cgroup.V1Mount{{Name: "cpuset,cpu", Point: "/x"}}},
			nil, nil, nil,
			map[cgroup.Controller]string{cgroup.CPU: "umount /x"},
		},
	} {
		at, missing := cgroup.Locate(c.m, c.available, c.enabled)
		for k, want := range c.want {
			if got, ok := at[k]; !ok || got != want {
				t.Errorf("%s: %s is at %d (%v), want %d", c.name, k, got, missing[k], want)
			}
		}
		for k, want := range c.remedy {
			if m, ok := missing[k]; !ok || !strings.Contains(m.Remedy, want) || m.Reason == "" || m.Controller != k {
				t.Errorf("%s: %s: got %+v, want the remedy %q", c.name, k, m, want)
			}
		}
	}
}

func TestSettings(t *testing.T) {
	l := workspace.Limits{MemoryBytes: 100, SwapBytes: 7, Pids: 9, CPUWeight: 100}
	want := map[string]int64{
		"v1 cmd memory.limit_in_bytes": 100, "v1 cmd memory.memsw.limit_in_bytes": 107, "v1 cmd pids.max": 9, "v1  cpu.shares": 1024,
		"v1 cmd memory.kmem.tcp.limit_in_bytes": 100,
		"v1 sup memory.limit_in_bytes":          64 << 20, "v1 sup pids.max": 64,
		"v1 net memory.limit_in_bytes": 128 << 20, "v1 net memory.kmem.tcp.limit_in_bytes": 128 << 20, "v1 net pids.max": 64,
		"v2 net memory.max": 128 << 20, "v2 net pids.max": 64,
		"v2 cmd memory.max": 100, "v2 cmd memory.swap.max": 7, "v2 cmd memory.oom.group": 0, "v2 cmd pids.max": 9, "v2  cpu.weight": 100,
		"v2 sup memory.max": 64 << 20, "v2 sup pids.max": 64, "v2  io.weight": 100, "v2  io.bfq.weight": 100,
	}
	if d := cmp.Diff(want, cgroup.Written(l)); d != "" {
		t.Error(d)
	}
	for w, s := range map[int64]int64{1: 10, 100: 1024, 10000: 102400} {
		if cgroup.Shares(w) != s {
			t.Errorf("weight %d is %d shares, want %d", w, cgroup.Shares(w), s)
		}
	}
}

func TestHolds(t *testing.T) {
	for _, c := range []struct {
		got  string
		want int64
		ok   bool
	}{{"4096\n", 4096, true}, {"4096", 4100, true}, {"8192", 4100, false}, {"max", 4096, false}, {"", 0, false}, {"default 2\n", 2, true}} {
		if cgroup.Holds(c.got, c.want) != c.ok {
			t.Errorf("%q for %d", c.got, c.want)
		}
	}
}
