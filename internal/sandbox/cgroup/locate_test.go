package cgroup

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/workspace"
)

// These look inside on purpose: locate and the table are decisions whose inputs a test
// host can only have one kind of.

func TestLocate(t *testing.T) {
	v1 := Mounts{V1: []V1Mount{{"memory", "/m"}, {"cpu,cpuacct", "/c"}, {"pids", "/p"}}, V2: "/u"}
	all := []string{"cpu", "memory", "pids"}
	for _, c := range []struct {
		name               string
		m                  Mounts
		available, enabled []string
		want               map[Controller]int
		remedy             map[Controller]string
	}{
		{"all on v1", v1, nil, nil, map[Controller]int{Memory: 0, CPU: 1, Pids: 2}, nil},
		{"all on v2", Mounts{V2: "/u"}, all, all, map[Controller]int{Memory: inV2, CPU: inV2, Pids: inV2}, nil},
		{"mixed", Mounts{V1: v1.V1[:1], V2: "/u"}, []string{"cpu", "pids"}, []string{"cpu", "pids"}, map[Controller]int{Memory: 0, CPU: inV2, Pids: inV2}, nil},
		{"v2 hands nothing down", Mounts{V2: "/u"}, all, nil, nil, map[Controller]string{
			Memory: "echo +memory > /u/cgroup.subtree_control", Pids: "echo +pids > /u/cgroup.subtree_control", CPU: "echo +cpu > /u/cgroup.subtree_control",
		}},
		{"v2 detached", Mounts{}, all, nil, nil, map[Controller]string{Memory: "echo +memory > /sys/fs/cgroup/cgroup.subtree_control"}},
		{"nowhere", Mounts{}, nil, nil, nil, map[Controller]string{Memory: "cgroup_disable=memory"}},
		{"with cpuset", Mounts{V1: []V1Mount{{"cpuset,cpu", "/x"}}}, nil, nil, nil, map[Controller]string{CPU: "umount /x"}},
	} {
		got := locate(c.m, c.available, c.enabled)
		for k, want := range c.want {
			if got[k].missing != nil || got[k].v1 != want {
				t.Errorf("%s: %s is at %+v, want %d", c.name, k, got[k], want)
			}
		}
		for k, want := range c.remedy {
			if m := got[k].missing; m == nil || !strings.Contains(m.Remedy, want) || m.Reason == "" || m.Controller != k {
				t.Errorf("%s: %s: got %+v, want the remedy %q", c.name, k, m, want)
			}
		}
	}
}

func TestSettings(t *testing.T) {
	l := workspace.Limits{MemoryBytes: 100, SwapBytes: 7, Pids: 9, CPUWeight: 100}
	want := map[string]int64{
		"v1 cmd memory.limit_in_bytes": 100, "v1 cmd memory.memsw.limit_in_bytes": 107, "v1 cmd pids.max": 9, "v1  cpu.shares": 1024,
		"v1 sup memory.limit_in_bytes": 64 << 20, "v1 sup pids.max": 64,
		"v2 cmd memory.max": 100, "v2 cmd memory.swap.max": 7, "v2 cmd memory.oom.group": 0, "v2 cmd pids.max": 9, "v2  cpu.weight": 100,
		"v2 sup memory.max": 64 << 20, "v2 sup pids.max": 64,
	}
	for _, s := range settings {
		for _, v1 := range []bool{true, false} {
			label := map[bool]string{true: "v1", false: "v2"}[v1]
			if f := s.file(v1); f != "" {
				key := label + " " + s.group + " " + f
				if got := s.value(l, v1); got != want[key] {
					t.Errorf("%s is %d, want %d", key, got, want[key])
				}
				delete(want, key)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("the table lacks %v", want)
	}
	for w, s := range map[int64]int64{1: 10, 100: 1024, 10000: 102400} {
		if shares(w) != s {
			t.Errorf("weight %d is %d shares, want %d", w, shares(w), s)
		}
	}
}

func TestHolds(t *testing.T) {
	for _, c := range []struct {
		got  string
		want int64
		ok   bool
	}{{"4096\n", 4096, true}, {"4096", 4100, true}, {"8192", 4100, false}, {"max", 4096, false}, {"", 0, false}} {
		if holds(c.got, c.want) != c.ok {
			t.Errorf("%q for %d", c.got, c.want)
		}
	}
}
