package cgroup_test

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

func TestParseMounts(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       cgroup.Mounts
	}{
		{"pure v2", `23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`, cgroup.Mounts{V2: "/sys/fs/cgroup"}},
		{"hybrid, systemd style", `32 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
`, cgroup.Mounts{V2: "/sys/fs/cgroup/unified", V1: []cgroup.V1Mount{
			{Name: "cpu,cpuacct", Point: "/sys/fs/cgroup/cpu,cpuacct"}, {Name: "memory", Point: "/sys/fs/cgroup/memory"}, {
				Name:  "pids",
				Point: "/sys/fs/cgroup/pids",
			},
		}}},
		{"pure v1", `35 31 0:32 / /cg\040roup/memory rw - cgroup cgroup rw,memory,clone_children,release_agent=/x
`, cgroup.Mounts{V1: []cgroup.V1Mount{{Name: "memory", Point: "/cg roup/memory"}}}},
		{"the better of two mounts", `35 31 0:32 /part /a rw - cgroup cgroup rw,memory
36 31 0:32 / /b ro - cgroup cgroup rw,memory
37 31 0:32 / /c rw - cgroup cgroup rw,memory
38 31 0:32 / /d rw - cgroup cgroup rw,memory
39 31 0:33 / /e ro - cgroup2 x rw
40 31 0:33 / /f rw - cgroup2 x rw
`, cgroup.Mounts{V2: "/f", V1: []cgroup.V1Mount{{Name: "memory", Point: "/c"}}}},
		{"nonsense", "x\n - \n1 2 3 4 5 6 - cgroup\n\n", cgroup.Mounts{}},
	} {
		if d := cmp.Diff(c.want, cgroup.ParseMounts(c.text)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "-a", "a b", "ä", strings.Repeat("x", 65)} {
		if _, err := cgroup.Open(cgroup.Config{Name: name, Shared: cgroup.Shared{MemoryBytes: 1 << 30}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("name %q: got %v", name, err)
		}
	}
	if _, err := cgroup.Open(cgroup.Config{Name: "x"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no ceiling: got %v", err)
	}
}

func TestParseMemTotal(t *testing.T) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := cgroup.ParseMemTotal(string(b)); err != nil || n < 64<<20 {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := cgroup.ParseMemTotal("MemTotal:       24684092 kB\n"); err != nil || n != 24684092<<10 {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := cgroup.ParseMemTotal("MemFree: 1 kB\n"); err == nil {
		t.Error("no MemTotal is no error")
	}
}
