package workspace_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestParseOpenings(t *testing.T) {
	got, err := workspace.ParseOpenings([]string{"io_uring", "userns", "io_uring"})
	if err != nil || !slices.Equal(got, []workspace.Opening{workspace.UserNS, workspace.IOUring}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := workspace.ParseOpenings(nil); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for name, want := range map[string]string{
		"": "no such opening", "USERNS": "no such opening", "landlock": "userns,mounts,io_uring", "ptrace-self": "gdb and strace",
	} {
		if _, err := workspace.ParseOpenings([]string{"userns", name}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestCheckOpenings(t *testing.T) {
	const u, m, i = workspace.UserNS, workspace.NestedMounts, workspace.IOUring
	ro, rw := workspace.Mount{Destination: "/mnt/a", ReadOnly: true}, workspace.Mount{Destination: "/mnt/b"}
	for _, c := range []struct {
		set    []workspace.Opening
		mounts []workspace.Mount
		want   string // "" for what may be
	}{
		{nil, nil, ""},
		{nil, []workspace.Mount{rw}, ""},
		{[]workspace.Opening{u}, []workspace.Mount{rw}, ""},
		{[]workspace.Opening{u, m, i}, []workspace.Mount{ro}, ""},
		{[]workspace.Opening{m}, nil, "allow both"},
		{[]workspace.Opening{i, u}, nil, "in this order"},
		{[]workspace.Opening{u, u}, nil, "each must be named once"},
		{[]workspace.Opening{"x"}, nil, "no such opening"},
		{[]workspace.Opening{u, m}, []workspace.Mount{ro, rw}, "writable directory /mnt/b"},
		{[]workspace.Opening{i}, []workspace.Mount{rw}, "set-uid"},
	} {
		err := workspace.CheckOpenings(c.set, c.mounts)
		if c.want == "" && err != nil || c.want != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v with %v: %v", c.set, c.mounts, err)
		}
	}
}
