package broker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestRightsOfACaller(t *testing.T) {
	u := broker.UsersAt(etc(t, map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\nalice:x:5000:6000::/home/alice:/bin/sh\nbroken:x\nali:x:5000:7777::/home/ali:/bin/sh\n",
		"group":  "root:x:0:\nstaff:x:50:bob,alice\nusers:x:100:alice2,bob\nother:x:200:ali\nempty:x:201:\nbroken:x:202\nbad:x:no:alice\n",
	}), broker.Settings{})
	for _, c := range []struct {
		uid, gid, group uint32
		groups          []uint32
	}{
		{5000, 6000, 6000, []uint32{50, 200}},
		{5000, 100, 6000, []uint32{50, 200}}, // once in a group is not for ever
		{61001, 61001, 61001, nil},           // of no file
		{0, 0, 0, nil},
	} {
		group, groups, homes, err := u.Rights(c.uid, c.gid)
		if err != nil || group != c.group || !slices.Equal(groups, c.groups) ||
			!slices.Equal(homes, []string{"/root", "/home/alice", "/home/ali"}) {
			t.Errorf("uid %d: %d %v %v %v", c.uid, group, groups, homes, err)
		}
	}
	if _, _, _, err := broker.UsersAt(etc(t, map[string]string{"passwd": ""}), broker.Settings{}).Rights(1, 1); err == nil {
		t.Error("without group there is no error")
	}
}

func TestIdentity(t *testing.T) {
	was := broker.Identity{Device: 1, Inode: 2, Born: 3, Boot: "a"}
	for _, c := range []struct {
		now  broker.Identity
		want bool
	}{
		{was, true},
		{broker.Identity{Device: 1, Inode: 9, Born: 3, Boot: "a"}, false},
		{broker.Identity{Device: 1, Inode: 2, Born: 9, Boot: "a"}, false}, // the number was used again
		{broker.Identity{Device: 9, Inode: 2, Born: 3, Boot: "a"}, false},
		{broker.Identity{Device: 9, Inode: 2, Born: 3, Boot: "b"}, true}, // devices were numbered anew
		{broker.Identity{Device: 9, Inode: 2, Born: 9, Boot: "b"}, false},
		{broker.Identity{Device: 9, Inode: 2, Boot: "b"}, false},
	} {
		if got := c.now.Is(was); got != c.want {
			t.Errorf("%+v: %v", c.now, got)
		}
	}
	unborn := broker.Identity{Device: 1, Inode: 2, Boot: "a"}
	if (broker.Identity{Device: 9, Inode: 2, Boot: "b"}).Is(unborn) {
		t.Error("an inode number alone is enough")
	}
	if !(broker.Identity{Device: 1, Inode: 2, Boot: "b"}).Is(unborn) {
		t.Error("where the file system says less, the same device is another")
	}
}

// A grant that does not hold spends no ids and makes nothing; one for a workspace that is
// there is not used.
func TestGrantComesFirst(t *testing.T) {
	h := newHost()
	life := lifecycle(t, t.TempDir(), h)
	defer life.Close()
	asked := wanted(name, workspace.DefaultLimits)
	asked.Mounts = []workspace.Mount{{Source: "/a", Destination: "/workspace"}}
	h.set("TakeMounts", errors.New("no such right"))
	if _, err := life.Create(t.Context(), asked, nil); err == nil || !strings.Contains(err.Error(), "no such right") {
		t.Errorf("%v", err)
	}
	if did := h.reset(); slices.ContainsFunc(did, func(s string) bool { return strings.HasPrefix(s, "AddUser") }) || len(life.Entries()) != 0 {
		t.Errorf("it did %v", did)
	}
	h.set("TakeMounts", nil)
	made, err := life.Create(t.Context(), asked, nil)
	e := made.Workspace
	if err != nil || len(e.Mounts) != 1 || e.Mounts[0].Source != "/a" {
		t.Fatalf("%+v %v", e, err)
	}
	h.reset()
	again, err := life.Create(t.Context(), asked, nil)
	if err != nil || again.Workspace.IDs != e.IDs || len(h.reset()) != 0 {
		t.Errorf("%+v %v", again, err)
	}
	asked.KeyDigest = strings.Repeat("b", 64)
	if _, err := life.Create(t.Context(), asked, nil); !errdefs.IsAlreadyExists(err) || len(h.reset()) != 0 {
		t.Errorf("%v", err)
	}
}
