package workspace_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestCheckMounts(t *testing.T) {
	mount := func(src, dst string) []workspace.Mount { return []workspace.Mount{{Source: src, Destination: dst}} }
	for _, good := range []string{
		"/workspace", "/workspace/a", "/mnt", "/mnt/a", "/srv/a b/ü", "~/a", "~/.cache/x", "/home/work/a",
		"/home/alice/p", "/x", "/tmp/x", "/root/x", "/workspaces",
	} {
		if err := workspace.CheckMounts(mount("/home/alice/p", good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "/", "~", "~/", "~x", "a", "/usr", "/usr/x", "/etc", "/etc/x", "/home", "/home/work", "/proc/x", "/tmp", "/var/tmp", "/var", "/dev/x",
		"/run/x", "/var/run/x", "/opt/x", "/lib64/x",
		"/mnt/../etc", "/mnt/.", "/mnt//a", "/mnt/a/", "~/../a", "~/./a", "/mnt/a\nb", "/mnt/\x00", "/mnt/\xff",
		"/mnt/" + strings.Repeat("a", 1100),
	} {
		if err := workspace.CheckMounts(mount("/home/alice/p", bad)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a mount at %q passes: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "/", "p", "./p", "/a/../b", "/a//b", "/a/", "/a\x1b[31m", "/\xff", "/" + strings.Repeat("a", 1100)} {
		if err := workspace.CheckMounts(mount(bad, "/workspace")); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a mount of %q passes: %v", bad, err)
		}
	}
	two := func(a, b string) []workspace.Mount { return append(mount("/a", a), mount("/b", b)...) }
	for _, pair := range [][2]string{
		{"/workspace", "/workspace"},
		{"/workspace", "/workspace/a"},
		{"/mnt/a/b", "/mnt/a"},
		{"~/a", "~/a/b"},
		{"~/a", "/home/work/a"},
	} {
		if workspace.CheckMounts(two(pair[0], pair[1])) == nil {
			t.Errorf("%v pass", pair)
		}
	}
	if err := workspace.CheckMounts(two("/mnt/a", "/mnt/ab")); err != nil {
		t.Error(err)
	}
	var many []workspace.Mount
	for i := range workspace.MaxMounts + 1 {
		many = append(many, mount("/a", fmt.Sprintf("/mnt/%d", i))...)
	}
	if workspace.CheckMounts(many) == nil || workspace.CheckMounts(many[1:]) != nil {
		t.Error("the most that there may be is not the bound")
	}
	for i := range many {
		many[i].Source = "/" + strings.Repeat("<", 1000) // six bytes each in JSON
	}
	if workspace.CheckMounts(many[1:]) == nil {
		t.Error("paths of any length together pass")
	}
	if workspace.CheckMounts([]workspace.Mount{{Source: "/a", Destination: "/workspace", OwnerUID: 1}}) == nil {
		t.Error("an owner can be chosen")
	}
}

func TestSameMounts(t *testing.T) {
	asked := []workspace.Mount{{Source: "/a", Destination: "~/x"}, {Source: "/b", Destination: "/mnt/b", ReadOnly: true}}
	force := []workspace.Mount{{Source: "/a", Destination: "/home/work/x", OwnerUID: 7}, {Source: "/b", Destination: "/mnt/b", ReadOnly: true}}
	if !workspace.SameMounts(asked, force) || !workspace.SameMounts(nil, nil) {
		t.Error("the same are others")
	}
	if workspace.SameMounts(asked[:1], force) {
		t.Error("others are the same")
	}
	force[1].ReadOnly = false
	if workspace.SameMounts(asked, force) {
		t.Error("a writable one is as good as a read-only one")
	}
}
