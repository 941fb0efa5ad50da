package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Each workspace's carrel-egress has an id of its own where the range is large enough, and no workspace gets it.
func TestEgressUID(t *testing.T) {
	for _, count := range []uint32{4, 4095, 4096, 10_000, broker.DefaultUIDCount} {
		s := broker.Settings{UIDFirst: 5000, UIDCount: count}
		last := s.UIDFirst + count - 1
		seen := map[uint32]bool{}
		shared := 0
		most := count
		if count >= 4096 {
			most = count - count/4
		}
		for first := s.UIDFirst; first+3 <= s.UIDFirst+most-1; first += 3 {
			uid := s.EgressUID(workspace.IDsFrom(first))
			switch {
			case uid == last:
				shared++
			case seen[uid] || uid >= last || uid < s.UIDFirst+most:
				t.Fatalf("of %d ids, the workspace at %d has %d", count, first, uid)
			}
			seen[uid] = true
		}
		if (shared > 0) != (count < 4096) {
			t.Errorf("of %d ids, %d have the last one", count, shared)
		}
	}
	s := broker.Settings{UIDFirst: 5000, UIDCount: 5000}
	for uid, want := range map[uint32]bool{4999: false, 5000: true, 9999: true, 10_000: false, 0: false} {
		if s.InRange(uid) != want {
			t.Errorf("%d is in the range: %t", uid, !want)
		}
	}
}

func TestParseSettings(t *testing.T) {
	s, err := broker.ParseSettings([]byte(`{"daemon_uid":999}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.DataDir != broker.DefaultDataDir || s.HomeRoot != broker.DefaultDataDir+"/homes" || s.UIDFirst != 1879048192 ||
		s.CgroupMemoryPercent != 90 || s.CgroupPidsPercent != 75 || s.CgroupOwnerPercent != 75 {
		t.Errorf("defaults %+v", s)
	}
	for _, c := range []struct{ text, says string }{
		{``, "unexpected end"},
		{`{}`, "daemon_uid"},
		{`{"daemon_uid":0}`, "must not be root"},
		{`{"daemon_uid":-1}`, "daemon_uid"},
		{`{"daemon_uid":4294967295}`, "no user"},
		{`{"daemon_uid":999,"more":1}`, "more"},
		{`{"daemon_uid":999,"daemon_uid":998}`, "twice"},
		{`{"Daemon_uid":999}`, "spelled otherwise"},
		{`{"daemon_uid":999}{}`, "after top-level value"},
		{`{"daemon_uid":999,"data_dir":"data"}`, "data_dir"},
		{`{"daemon_uid":999,"data_dir":"/"}`, "data_dir"},
		{`{"daemon_uid":999,"data_dir":"/a/../b"}`, "data_dir"},
		{`{"daemon_uid":999,"runtime_dir":"/run/x/"}`, "runtime_dir"},
		{`{"daemon_uid":999,"home_root":"/a:b"}`, "home_root"},
		{`{"daemon_uid":999,"home_root":"/a\nroot"}`, "home_root"},
		{`{"daemon_uid":999,"shell":"/bin/sh\n"}`, "shell"},
		{`{"daemon_uid":999,"shell":"sh"}`, "shell"},
		{`{"daemon_uid":999,"uid_first":0}`, "uid_first"},
		{`{"daemon_uid":999,"uid_first":999}`, "uid_first"},
		{`{"daemon_uid":999,"uid_count":2}`, "uid_count"},
		{`{"daemon_uid":999,"uid_first":2147483600,"uid_count":100}`, "2147483648"},
		{`{"daemon_uid":1879048200}`, "inside the range"},
		{`{"daemon_uid":999,"cgroup_name":"../x"}`, "cgroup_name"},
		{`{"daemon_uid":999,"cgroup_name":""}`, "cgroup_name"},
		{`{"daemon_uid":999,"cgroup_memory_percent":101}`, "cgroup_memory_percent"},
		{`{"daemon_uid":999,"cgroup_pids_percent":0}`, "cgroup_pids_percent"},
		{`{"daemon_uid":999,"cgroup_owner_percent":0}`, "cgroup_owner_percent"},
		{`{"daemon_uid":999,"cgroup_owner_percent":101}`, "cgroup_owner_percent"},
		{`{"daemon_uid":999,"io_bytes_per_second":1000}`, "io_bytes_per_second"},
		{`{"daemon_uid":999,"io_bytes_per_second":-1}`, "io_bytes_per_second"},
		{`{"daemon_uid":999,"max_workspaces":0}`, "max_workspaces"},
		{`{"daemon_uid":999,"create_burst":-1}`, "create_burst"},
		{`{"daemon_uid":999,"create_per_hour":0}`, "create_per_hour"},
		{`{"daemon_uid":999,"create_per_hour":1000001}`, "create_per_hour"},
		{`{"daemon_uid":999,"limits_max":{"pids":-1}}`, "limits_max"},
		{`{"daemon_uid":999,"limits_max":{"disk":1}}`, "disk"},
	} {
		_, err := broker.ParseSettings([]byte(c.text))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v", c.text, err)
		}
	}
}

func TestReadSettings(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: a file of root's needs root")
	}
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode, uid int) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(p, uid, -1); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const good = `{"daemon_uid":999}`
	if _, err := broker.ReadSettings(file("good", good, 0o644, 0)); err != nil {
		t.Error(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("good", link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, says string }{
		{file("group", good, 0o664, 0), "chmod go-w"},
		{file("world", good, 0o602, 0), "chmod go-w"},
		{file("other", good, 0o600, 65432), "chown root"},
		{file("long", good+strings.Repeat(" ", 70_000), 0o600, 0), "longer"},
		{link, "symbolic"},
		{dir, "regular"},
		{"/dev/zero", "regular"},
		{filepath.Join(dir, "absent"), "no such file"},
	} {
		_, err := broker.ReadSettings(c.path)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: got %v", c.path, err)
		}
	}
}
